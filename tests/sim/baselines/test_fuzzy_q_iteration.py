"""Fuzzy Q-iteration: a contraction to the fixed point, and policies that beat the random one."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.sim.baselines.fuzzy_q_iteration import (
    EPSILON,
    GAMMA,
    Backup,
    Grid,
    discrete_actions,
    interpolated,
    mean_rewards,
    solve,
)
from onrig.sim.baselines.partition import partition_for
from tests.sim.baselines.models import ALL, MAGMAN, PENDULUM

TINY = {"pendulum": Grid((12, 13), 3), "hardware": Grid((12, 13), 3), "magman": Grid((9, 9), 3)}


@pytest.mark.parametrize("name", ALL)
def test_a_tiny_grid_already_beats_the_random_controller_by_far(name: str) -> None:
    model = ALL[name]
    reached = mean_rewards(model, solve(model, TINY[name]))
    n = model.task.normalization
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


def test_the_update_is_the_formula_term_by_term() -> None:
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


def test_iteration_ends_at_the_fixed_point_and_as_soon_as_it_may() -> None:
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


def test_the_result_is_the_same_every_time() -> None:
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
        assert interpolated(solution, nodes[k]) == pytest.approx(best, abs=1e-9)
