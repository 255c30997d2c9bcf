"""The sampling controller: seeds, terminations, and what it earns against the finite-horizon optimum."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.sim.baselines.sampling import Effort, play
from onrig.sim.baselines.task_model import random_reward
from tests.sim.baselines.models import MAGMAN, PENDULUM, with_task

SMALL = Effort(24, 10, 2)


def test_a_seed_gives_the_same_episodes_and_episodes_differ() -> None:
    short = msgspec.structs.replace(MAGMAN, steps=30)
    once, again = (play(short, SMALL, 0.0, 2, seed=3) for _ in range(2))
    assert np.array_equal(once.total, again.total)
    assert once.total[0] != once.total[1]
    assert once.lived.tolist() == [30.0, 30.0]


def test_it_earns_more_than_random_actions_with_several_actuators() -> None:
    short = msgspec.structs.replace(MAGMAN, steps=40)
    found = play(short, SMALL, 0.0, 2).mean_reward(short.steps, 0.0)
    assert found.mean > random_reward(short, 50).mean + 0.1 * abs(found.mean)


@pytest.mark.parametrize(("unlived", "ends"), [(-1e4, False), (0.0, True)])
def test_it_ends_an_episode_early_only_where_that_pays(unlived: float, ends: bool) -> None:
    model = msgspec.structs.replace(with_task(PENDULUM, terminate={"velocity": (-0.8, 0.8)}), steps=15)
    played = play(model, Effort(48, 10, 2), unlived, 2)
    assert (played.lived < 15).tolist() == [ends, ends]


@pytest.mark.study
def test_on_the_pendulum_it_is_within_2_percent_of_the_finite_horizon_optimum() -> None:
    reference = PENDULUM.task.normalization
    assert reference is not None
    found = play(PENDULUM, Effort(128, 75, 3), 0.0, 2).mean_reward(PENDULUM.steps, 0.0)
    assert found.mean > 1.02 * reference.reference_reward
