"""The sampling controller: seeds, terminations, and its reward compared with the finite-horizon optimum."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from onrig.runtime.run_loading import load_run
from onrig.sim.baselines.reference_scores import ATTEMPTS, cache_folder, horizon_grids_for, optimum_baseline
from onrig.sim.baselines.sampling import Effort, play_episodes
from onrig.sim.baselines.task_model import TaskModel, random_reward
from tests.sim.baselines.models import MAGMAN, PENDULUM, with_task

SMALL = Effort(24, 10, 2)


def test_a_seed_gives_the_same_episodes_and_episodes_differ() -> None:
    short = msgspec.structs.replace(MAGMAN, steps=30)
    once, again = (play_episodes(short, SMALL, 0.0, short.draw(2), seed=3) for _ in range(2))
    assert np.array_equal(once.total, again.total)
    assert once.total[0] != once.total[1]
    assert once.n_steps.tolist() == [30.0, 30.0]


def test_it_earns_more_than_random_actions_with_several_actuators() -> None:
    short = msgspec.structs.replace(MAGMAN, steps=40)
    found = play_episodes(short, SMALL, 0.0, short.draw(2)).mean_rewards(short.steps, 0.0).mean()
    assert found > random_reward(short, 50).mean + 0.1 * abs(found)


@pytest.mark.parametrize(("cut_off_reward", "ends"), [(-1e4, False), (0.0, True)])
def test_it_ends_an_episode_early_only_if_that_pays(cut_off_reward: float, ends: bool) -> None:
    model = msgspec.structs.replace(with_task(PENDULUM, terminate={"velocity": (-0.8, 0.8)}), steps=15)
    played = play_episodes(model, Effort(48, 10, 2), cut_off_reward, model.draw(2))
    assert (played.n_steps < 15).tolist() == [ends, ends]


def test_it_knows_the_start_and_the_future_targets_of_an_episode() -> None:
    velocity = {"kind": "distance", "observation": "velocity", "target": "wanted", "weight": 1}
    run = load_run(
        "pendulum",
        [
            "task.targets={wanted: {kind: drawn, low: -2, high: 2}}",
            f"task.reward={{target: {{}}, weights: {{}}, terms: {{off: {json.dumps(velocity)}}}}}",
            "task.start={angle: [-0.2, 0.2], velocity: 0}",
        ],
    )
    model = TaskModel(run.rig, run.task, PENDULUM.plant, 0.02, 30)
    draws = model.draw(3)
    assert len(np.unique(draws.starts[:, 0])) == len(np.unique(draws.targets[:, 0])) == 3
    found = play_episodes(model, SMALL, 0.0, draws).mean_rewards(model.steps, 0.0)
    assert (found > -0.3).all()
    assert random_reward(model, 50).mean < -1.0


def optimum(model: TaskModel) -> float:
    """Lower bound on the mean reward per step of the finite-horizon optimum; solved once, in minutes."""
    grid = horizon_grids_for(model, "fine")[0]
    return optimum_baseline(model, grid, cache_folder()).polished


@pytest.mark.study
@pytest.mark.parametrize("seed", range(3))
def test_on_the_pendulum_it_is_within_2_percent_of_the_finite_horizon_optimum(seed: int) -> None:
    played = play_episodes(PENDULUM, Effort(512, 75, 3), 0.0, PENDULUM.draw(ATTEMPTS), seed)
    assert played.mean_rewards(PENDULUM.steps, 0.0).max() > 1.02 * optimum(PENDULUM)


@pytest.mark.study
@pytest.mark.parametrize("seed", range(3))
def test_on_the_magman_it_is_within_3_percent_of_the_finite_horizon_optimum(seed: int) -> None:
    played = play_episodes(MAGMAN, Effort(64, 15, 3), 0.0, MAGMAN.draw(ATTEMPTS), seed)
    assert played.mean_rewards(MAGMAN.steps, 0.0).max() > 1.03 * optimum(MAGMAN)
