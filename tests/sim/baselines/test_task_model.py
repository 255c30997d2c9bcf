"""The exact model of a task, compared with the twin's step and the tick's reward."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.runtime import scoring
from onrig.runtime.task import Normalization, compile_reward
from onrig.sim.baselines.task_model import Episodes, grid_problems, random_reward, task_model_problems
from onrig.sim.plants.integrate import step
from tests.sim.baselines.models import ALL, MAGMAN, PENDULUM, with_task


@pytest.mark.parametrize("name", ALL)
def test_a_batch_advances_like_single_systems_and_earns_the_rewards_of_the_tick(name: str) -> None:
    model = ALL[name]
    rng = np.random.default_rng(1)
    low = np.array([o.low for o in model.rig.observations])
    high = np.array([o.high for o in model.rig.observations])
    states = rng.uniform(low, high, (20, 2))
    actions = rng.uniform(model.action_low, model.action_high, (20, len(model.action_low)))
    following, reward = model.advance(states, actions)
    earned = compile_reward(model.task, model.rig)
    for k in range(20):
        single = step(model.plant, tuple(states[k].tolist()), tuple(actions[k].tolist()), model.period_s)
        assert following[k] == pytest.approx(single, rel=1e-12, abs=1e-12)
        assert reward[k] == pytest.approx(earned(single, actions[k].tolist()), rel=1e-12)


def test_the_shipped_tasks_have_a_model() -> None:
    assert all(task_model_problems(m.rig, m.task, m.plant) == [] for m in ALL.values())


def test_a_rig_that_observes_its_command_has_no_model() -> None:
    sees = msgspec.structs.replace(MAGMAN.rig, previous_command=True)
    assert "previous command" in task_model_problems(sees, MAGMAN.task, MAGMAN.plant)[0]


def test_a_task_without_a_grid_is_reported() -> None:
    assert all(grid_problems(m.rig, m.task, m.plant) == [] for m in ALL.values())
    ends = with_task(PENDULUM, terminate={"velocity": (-20.0, 20.0)})
    assert grid_problems(ends.rig, ends.task, ends.plant) == ["the task terminates"]
    beyond = with_task(PENDULUM, reward=msgspec.structs.replace(PENDULUM.task.reward, target={"velocity": 40.0}))
    assert grid_problems(beyond.rig, beyond.task, beyond.plant) == [
        "the task's target 40 lies outside velocity's range of -30 to 30"
    ]
    two = msgspec.structs.replace(PENDULUM.rig, actuators=PENDULUM.rig.actuators * 2)
    assert "do not support a wrapped angle" in grid_problems(two, PENDULUM.task, PENDULUM.plant)[-1]
    assert all(task_model_problems(m.rig, m.task, m.plant) == [] for m in (ends, beyond))


# -- the random controller ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_it_is_the_random_reward_of_the_task_within_its_error(name: str) -> None:
    model = ALL[name]
    estimate = random_reward(model, episodes=1000)
    # The rounding of the task's figure, and its Monte Carlo error, which was at least ours at 1e4.
    n = model.task.normalization
    assert n is not None
    slack = 0.02 * abs(n.random_reward) / 100
    assert abs(estimate.mean - n.random_reward) < 4 * estimate.standard_error + slack


def test_the_same_seed_gives_the_same_figure_and_another_seed_another_one() -> None:
    assert random_reward(PENDULUM, 20, seed=3) == random_reward(PENDULUM, 20, seed=3)
    assert random_reward(PENDULUM, 20, seed=3) != random_reward(PENDULUM, 20, seed=4)


def test_the_standard_error_is_the_spread_of_repeated_estimates() -> None:
    estimates = [random_reward(PENDULUM, 50, seed) for seed in range(60)]
    spread = np.std([e.mean for e in estimates], ddof=1)
    stated_error = np.mean([e.standard_error for e in estimates])
    assert 0.7 < spread / stated_error < 1.4


def test_one_episode_has_no_standard_error() -> None:
    with pytest.raises(ValueError, match="at least 2 episodes"):
        random_reward(PENDULUM, 1)


def test_for_a_terminating_task_it_is_the_mean_over_the_steps_lived() -> None:
    model = with_task(PENDULUM, terminate={"velocity": (-3.0, 3.0)})
    rng, states = np.random.default_rng(0), np.tile(model.start, (200, 1))
    total, n_steps, alive = 0.0, 0, np.ones(200, bool)
    for _ in range(model.steps):
        states, reward, over = model.follow(
            states, rng.uniform(-3.0, 3.0, (200, 1)), np.zeros((200, 1)), np.zeros((200, 0))
        )
        total, n_steps = total + float(reward[alive].sum()), n_steps + int(alive.sum())
        alive &= ~over
    found = random_reward(model, 200)
    assert found.mean == pytest.approx(total / n_steps)
    assert 0.0 < found.standard_error < 0.05 * abs(found.mean)


def test_steps_cut_off_by_a_termination_count_as_in_normalised_scores() -> None:
    ended = Episodes(np.array([-40.0, -30.0]), np.array([10.0, 20.0]))
    assert ended.mean_rewards(20, -5.0).mean() == pytest.approx(0.5 * ((-40.0 - 50.0) / 20 - 30.0 / 20))
    punished = with_task(PENDULUM, reward=msgspec.structs.replace(PENDULUM.task.reward, terminal=-500.0))
    of_random = msgspec.structs.replace(punished.task, normalization=Normalization(-160.0, -40.0))
    exact = scoring.compile_cut_off_reward(of_random, PENDULUM.rig)((0.0, 50.0))
    assert scoring.lowest_cut_off_reward(punished.task, -160.0) == exact == -500.0
    assert scoring.lowest_cut_off_reward(PENDULUM.task, -160.0) == -160.0
