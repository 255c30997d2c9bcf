"""What the random controller earns: the zero of the normalised performance (000 §5.1)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from onrig.sim.baselines.task_model import TaskModel

EPISODES: Final = 10_000


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    standard_error: float


def random_reward(model: TaskModel, episodes: int = EPISODES, seed: int = 0) -> Estimate:
    """Mean reward per step of independent uniform actions over whole episodes from the task's start.

    Episodes are independent, so that the standard error is taken over their means; raises ValueError below two.
    """
    if episodes < 2:
        raise ValueError(f"a standard error needs at least 2 episodes, got {episodes}")
    rng = np.random.default_rng(seed)
    states = np.tile(model.start, (episodes, 1))
    total = np.zeros(episodes)
    for _ in range(model.steps):
        actions = rng.uniform(model.action_low, model.action_high, (episodes, len(model.action_low)))
        states, reward = model.advance(states, actions)
        total += reward
    means = total / model.steps
    return Estimate(float(means.mean()), float(means.std(ddof=1) / np.sqrt(episodes)))
