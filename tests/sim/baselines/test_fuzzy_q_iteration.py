"""Fuzzy Q-iteration: a contraction to the fixed point, and policies better than the random one."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.sim.baselines.fuzzy_q_iteration import (
    EPSILON,
    GAMMA,
    Axis,
    Backup,
    Grid,
    Partition,
    dense_axis,
    discrete_actions,
    interpolate_action,
    mean_rewards,
    partition_for,
    periodic_axis,
    solve,
)
from tests.sim.baselines.models import ALL, MAGMAN, PENDULUM, with_task

TINY = {"pendulum": Grid((12, 13), 3), "hardware": Grid((12, 13), 3), "magman": Grid((9, 9), 3)}


@pytest.mark.parametrize("name", ALL)
def test_a_tiny_grid_already_beats_the_random_controller_by_far(name: str) -> None:
    model = ALL[name]
    reached = mean_rewards(model, solve(model, TINY[name]))
    n = model.task.normalization
    assert n is not None
    for reward in reached:
        assert (reward - n.random_reward) / (n.reference_reward - n.random_reward) > 0.5


def test_a_finer_grid_does_better() -> None:
    by_size = [mean_rewards(PENDULUM, solve(PENDULUM, Grid((n, n + 1), 3))) for n in (8, 16, 40)]
    ahead = [r.look_ahead for r in by_size]
    assert ahead == sorted(ahead)
    assert ahead[-1] > ahead[0] + 5.0


def test_the_update_contracts_by_gamma() -> None:
    partition = partition_for(PENDULUM, (8, 9))
    backup = Backup(PENDULUM, partition, discrete_actions(PENDULUM, 5))
    rng = np.random.default_rng(0)
    for _ in range(5):
        one, other = rng.normal(0, 100, backup.shape), rng.normal(0, 100, backup.shape)
        before, after = np.abs(one - other).max(), np.abs(backup(one) - backup(other)).max()
        assert 0.0 < after <= GAMMA * before * (1 + 1e-12)
    shifted = backup(one + 1.0) - backup(one)
    assert shifted == pytest.approx(np.full(backup.shape, GAMMA))


def test_the_update_equals_the_formula_term_by_term() -> None:
    partition = partition_for(MAGMAN, (5, 5))
    actions = discrete_actions(MAGMAN, 3)
    backup = Backup(MAGMAN, partition, actions, 0.9)
    theta = np.random.default_rng(0).normal(size=backup.shape)
    following = backup(theta)
    nodes = partition.nodes()
    for i, j in ((0, 0), (7, 3), (24, len(actions) - 1)):
        after, reward = MAGMAN.advance(nodes[i : i + 1], actions[j : j + 1])
        index, weight = partition.memberships(after)
        values = [sum(w * theta[k, a] for k, w in zip(index[0], weight[0], strict=True)) for a in range(len(actions))]
        assert following[i, j] == pytest.approx(reward[0] + 0.9 * max(values))


def test_iteration_ends_at_the_fixed_point_and_as_soon_as_possible() -> None:
    solution = solve(PENDULUM, TINY["pendulum"])
    backup = Backup(PENDULUM, solution.partition, solution.actions)
    theta = np.zeros(backup.shape)
    changes = []
    for _ in range(solution.iterations):
        following = backup(theta)
        changes.append(np.abs(following - theta).max())
        theta = following
    assert np.array_equal(theta, solution.theta)
    assert changes[-1] < EPSILON <= min(changes[:-1])


def test_the_unit_of_the_reward_does_not_matter() -> None:
    reward = PENDULUM.task.reward
    weights = [{name: 1e-6 * w for name, w in of.items()} for of in (reward.weights, reward.action_weights)]
    less = msgspec.structs.replace(reward, weights=weights[0], action_weights=weights[1])
    tiny = with_task(PENDULUM, reward=less)
    one, other = solve(PENDULUM, TINY["pendulum"]), solve(tiny, TINY["pendulum"])
    assert other.iterations > 50
    assert (other.theta.argmax(axis=1) == one.theta.argmax(axis=1)).mean() > 0.95


def test_the_result_is_reproducible() -> None:
    one, other = (solve(MAGMAN, TINY["magman"]) for _ in range(2))
    assert np.array_equal(one.theta, other.theta)
    assert mean_rewards(MAGMAN, one) == mean_rewards(MAGMAN, other)


def test_one_actuator_is_levelled_about_its_safe_value() -> None:
    actions = discrete_actions(PENDULUM, 5)[:, 0]
    assert actions == pytest.approx([-3.0, -0.75, 0.0, 0.75, 3.0])


def test_several_actuators_switch_together_and_are_levelled_alone() -> None:
    actions = discrete_actions(MAGMAN, 5)
    assert len(actions) == 2**4 + 4 * 3
    rows = {tuple(row) for row in actions.round(9).tolist()}
    assert {(0.6, 0.0, 0.6, 0.0), (0.6, 0.6, 0.6, 0.6), (0.0, 0.15, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)} <= rows
    assert (0.15, 0.15, 0.0, 0.0) not in rows


@pytest.mark.parametrize("levels", [1, 4])
def test_levels_without_the_safe_value_between_are_refused(levels: int) -> None:
    with pytest.raises(ValueError, match="odd number"):
        discrete_actions(PENDULUM, levels)


@pytest.mark.parametrize(("gamma", "epsilon"), [(1.0, 0.01), (-0.1, 0.01), (0.9, 0.0)])
def test_an_iteration_that_would_not_end_is_refused(gamma: float, epsilon: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        solve(PENDULUM, TINY["pendulum"], gamma, epsilon)


def test_at_a_node_the_interpolated_policy_takes_the_best_action_of_that_node() -> None:
    solution = solve(PENDULUM, TINY["pendulum"])
    nodes = solution.partition.nodes()
    for k in (0, 50, len(nodes) - 1):
        best = solution.actions[np.argmax(solution.theta[k])]
        assert interpolate_action(solution, nodes[k]) == pytest.approx(best, abs=1e-9)


PARTITION = partition_for(PENDULUM, (8, 7))


@settings(max_examples=60)
@given(st.floats(-50, 50), st.floats(-200, 200))
def test_weights_are_non_negative_and_sum_to_one(angle: float, velocity: float) -> None:
    index, weight = PARTITION.memberships(np.array([[angle, velocity]]))
    assert weight.min() >= 0.0
    assert weight.sum() == pytest.approx(1.0, abs=1e-12)
    assert index.min() >= 0
    assert index.max() < 8 * 7


def test_the_weight_of_a_node_is_its_own_alone() -> None:
    for partition in (PARTITION, partition_for(MAGMAN, (7, 5))):
        nodes = partition.nodes()
        index, weight = partition.memberships(nodes)
        share = np.zeros((len(nodes), len(nodes)))
        np.add.at(share, (np.arange(len(nodes))[:, None], index), weight)
        assert share == pytest.approx(np.eye(len(nodes)), abs=1e-9)


def test_a_bilinear_function_is_interpolated_exactly() -> None:
    partition = Partition((Axis(np.array([-1.0, 0.5, 2.0])), Axis(np.array([0.0, 0.1, 3.0]))))

    def f(x: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.asarray(1.0 + 2.0 * x[:, 0] - 3.0 * x[:, 1] + 0.5 * x[:, 0] * x[:, 1])

    x = np.random.default_rng(0).uniform([-1, 0], [2, 3], (50, 2))
    index, weight = partition.memberships(x)
    assert (weight * f(partition.nodes())[index]).sum(axis=1) == pytest.approx(f(x))


def test_beyond_the_nodes_the_outermost_value_applies() -> None:
    lower, upper, share = dense_axis(-2.0, 2.0, 0.0, 5).memberships(np.array([-9.0, 9.0]))
    assert lower[0] == 0
    assert share[0] == 0.0
    assert upper[1] == 4
    assert share[1] == 1.0


@settings(max_examples=60)
@given(st.floats(-math.pi, math.pi), st.integers(-2, 2))
def test_an_angle_is_the_same_after_complete_turns(angle: float, turns: int) -> None:
    axis = periodic_axis(math.pi, 8)
    values = np.random.default_rng(0).normal(size=8)

    def value(x: float) -> float:
        lower, upper, share = axis.memberships(np.array([x]))
        return float((values[lower] * (1 - share) + values[upper] * share)[0])

    assert value(angle + 2 * math.pi * turns) == pytest.approx(value(angle), abs=1e-9)


def test_between_the_last_and_the_first_node_of_a_turn_both_count() -> None:
    axis = Axis(np.array([0.0, 1.0, 4.0]), 2 * math.pi)
    lower, upper, share = axis.memberships(np.array([4.0 + 0.25 * (2 * math.pi - 4.0)]))
    assert (int(lower[0]), int(upper[0])) == (2, 0)
    assert share[0] == pytest.approx(0.25)


def test_nodes_are_densest_at_the_target_and_one_lies_on_it() -> None:
    for axis, target in (
        (PARTITION.axes[1], 0.0),
        (dense_axis(-0.035, 0.105, 0.035, 21), 0.035),
        (dense_axis(0.0, 10.0, 2.0, 11), 2.0),
        (periodic_axis(math.pi, 12), math.pi),
    ):
        gaps = np.diff(axis.nodes)
        assert (gaps > 0).all()
        (at,) = np.flatnonzero(axis.nodes == target)
        assert (np.diff(gaps[:at]) < 0).all()
        assert (np.diff(gaps[at:]) > 0).all()


def test_nodes_span_the_range_in_the_requested_number() -> None:
    axis = dense_axis(-0.4, 0.4, 0.1, 9)
    assert (len(axis.nodes), axis.nodes[0], axis.nodes[-1]) == (9, pytest.approx(-0.4), pytest.approx(0.4))
    turn = periodic_axis(0.0, 10)
    assert len(turn.nodes) == 10
    assert turn.nodes[0] == pytest.approx(-math.pi)


@pytest.mark.parametrize(("around", "nodes"), [(0.0, 2), (2.0, 9), (-1.0, 9)])
def test_an_impossible_axis_is_refused(around: float, nodes: int) -> None:
    with pytest.raises(ValueError, match="at least 3 nodes"):
        dense_axis(-1.0, 1.0, around, nodes)


def test_a_turn_takes_an_even_number_of_nodes() -> None:
    with pytest.raises(ValueError, match="even number"):
        periodic_axis(0.0, 7)
