"""Backward induction: the formula, the optimum of a horizon short enough to try everything, better than fuzzy QI."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from onrig.sim.baselines import fuzzy_q_iteration
from onrig.sim.baselines.finite_horizon import candidate_actions, induce, look_ahead, run
from onrig.sim.baselines.fuzzy_q_iteration import Grid, discrete_actions
from onrig.sim.baselines.task_model import TaskModel
from tests.sim.baselines.models import ALL, HARDWARE, MAGMAN, PENDULUM, with_task

SMALL = {"pendulum": Grid((120, 121), 9), "hardware": Grid((60, 61), 9), "magman": Grid((60, 60), 9)}


def shortened(model: TaskModel, steps: int) -> TaskModel:
    return msgspec.structs.replace(model, steps=steps)


@pytest.mark.parametrize("name", ["pendulum", "hardware"])
def test_it_earns_more_than_fuzzy_q_iteration_on_the_same_grid(name: str) -> None:
    model, grid = ALL[name], Grid((60, 61), 9)
    fuzzy = fuzzy_q_iteration.mean_rewards(model, fuzzy_q_iteration.solve(model, grid))
    earned = look_ahead(model, induce(model, grid)).mean_reward
    assert earned > max(fuzzy)


@pytest.mark.parametrize("name", ALL)
def test_estimate_and_earnings_are_within_a_tenth_of_mu_r_of_the_reference(name: str) -> None:
    model = ALL[name]
    induction = induce(model, SMALL[name])
    n = model.task.normalization
    assert n is not None
    for reward in (induction.start_mean(model), look_ahead(model, induction).mean_reward):
        assert (reward - n.random_reward) / (n.reference_reward - n.random_reward) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", ALL)
def test_each_value_is_the_best_of_reward_and_interpolated_value_thereafter(name: str) -> None:
    model = shortened(ALL[name], 4)
    induction = induce(model, Grid((10, 11), 5))
    nodes = induction.partition.nodes()
    assert (induction.values[-1] == 0.0).all()
    for t, i in itertools.product((0, 2, 3), (0, 9, 57, len(nodes) - 1)):
        actions = candidate_actions(model, nodes[i : i + 1], 5)[0]
        after, reward = model.advance(np.tile(nodes[i], (len(actions), 1)), actions)
        index, weight = induction.partition.memberships(after)
        best = (reward + (weight * induction.values[t + 1][index]).sum(axis=1)).max()
        assert induction.values[t, i] == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("model", [PENDULUM, HARDWARE])
def test_over_a_few_steps_it_finds_what_trying_everything_finds(model: TaskModel) -> None:
    short = shortened(model, 5)
    every = np.array(list(itertools.product(discrete_actions(short, 5)[:, 0], repeat=short.steps)))
    states, total = np.tile(short.start, (len(every), 1)), np.zeros(len(every))
    for t in range(short.steps):
        states, reward = short.advance(states, every[:, t : t + 1])
        total += reward
    best = total.max() / short.steps
    induction = induce(short, Grid((240, 241), 5))
    assert induction.start_mean(short) == pytest.approx(best, rel=1e-3)
    assert look_ahead(short, induction).mean_reward >= best - 1e-3 * abs(best)


def test_actions_earn_what_the_model_predicts() -> None:
    short = shortened(PENDULUM, 3)
    ran = run(short, np.array([[3.0], [-1.0], [0.0]]))
    state, total = short.start, 0.0
    for action in ran.actions:
        after, reward = short.advance(state[None], action[None])
        state, total = after[0], total + float(reward[0])
    assert ran.mean_reward == pytest.approx(total / 3)
    assert np.array_equal(ran.states[-1], state)
    with pytest.raises(ValueError, match="one action for each of 3 steps"):
        run(short, np.zeros((2, 1)))


def test_the_levels_of_several_free_actuators_join_the_strongest_pulls_through_rest() -> None:
    at = np.array([[0.035, 0.0]])
    actions = candidate_actions(MAGMAN, at, 5)[0]
    assert len(actions) == 5 + 2**4
    assert actions[0] == pytest.approx([0.6, 0.0, 0.0, 0.0])
    assert actions[2] == pytest.approx([0.0, 0.0, 0.0, 0.0])
    assert actions[4] == pytest.approx([0.0, 0.6, 0.6, 0.6])
    speed = MAGMAN.advance(np.tile(at, (len(actions), 1)), actions)[0][:, 1]
    assert speed[0] == speed.min()
    assert speed[4] == speed.max()
    assert (np.diff(speed[:5]) > 0.0).all()


def test_actuators_with_a_cost_are_levelled_as_for_fuzzy_q_iteration() -> None:
    paid = with_task(MAGMAN, reward=msgspec.structs.replace(MAGMAN.task.reward, action_weights={"current_1": 1.0}))
    assert np.array_equal(candidate_actions(paid, paid.start[None], 5)[0], discrete_actions(paid, 5))


def test_progress_counts_the_steps() -> None:
    progress: list[tuple[int, int]] = []
    induce(shortened(PENDULUM, 3), Grid((8, 9), 3), lambda done, steps: progress.append((done, steps)))
    assert progress == [(1, 3), (2, 3), (3, 3)]
