"""The random controller's mean reward."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.sim.baselines.random_policy import random_reward
from tests.sim.baselines.models import ALL, PENDULUM


@pytest.mark.parametrize("name", ALL)
def test_it_is_the_random_reward_of_the_task_within_its_error(name: str) -> None:
    model = ALL[name]
    estimate = random_reward(model, episodes=1000)
    # The rounding of the task's own figure, and its Monte Carlo error, which cannot have been smaller than ours at 1e4.
    slack = 0.02 * abs(model.task.normalization.random_reward) / 100
    assert abs(estimate.mean - model.task.normalization.random_reward) < 4 * estimate.standard_error + slack


def test_the_same_seed_gives_the_same_figure_and_another_seed_another() -> None:
    assert random_reward(PENDULUM, 20, seed=3) == random_reward(PENDULUM, 20, seed=3)
    assert random_reward(PENDULUM, 20, seed=3) != random_reward(PENDULUM, 20, seed=4)


def test_the_standard_error_is_the_spread_of_repeated_estimates() -> None:
    estimates = [random_reward(PENDULUM, 50, seed) for seed in range(60)]
    spread = np.std([e.mean for e in estimates], ddof=1)
    told = np.mean([e.standard_error for e in estimates])
    assert 0.7 < spread / told < 1.4


def test_one_episode_has_no_standard_error() -> None:
    with pytest.raises(ValueError, match="at least 2 episodes"):
        random_reward(PENDULUM, 1)
