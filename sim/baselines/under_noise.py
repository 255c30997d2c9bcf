"""A baseline controller on its task with noise on sensors and actuators (de Bruin et al. 2018, App. C)."""

from __future__ import annotations

from typing import Final

import numpy as np

from onrig.runtime.normalisation import Normalisation
from onrig.runtime.random_streams import Role, stream
from onrig.sim.baselines.fuzzy_q_iteration import Solution
from onrig.sim.baselines.task_model import Estimate, TaskModel, Values

REPETITIONS: Final = 50
EPISODES: Final = 1000
"""Episodes per repetition; the paper also takes the best of about this number for its learners."""


def best_under_noise(
    model: TaskModel,
    solution: Solution,
    sigma: Values,
    *,
    episodes: int = EPISODES,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Estimate:
    """Estimate the mean and standard error, over repetitions, of the best mean reward among noisy episodes.

    The controller is the one computed without noise, with actions interpolated between nodes.  ``sigma``: standard
    deviations (n + m,) of the noise on the rig's observations and actions, normalised.  Noise is added as in trials
    (``onrig.learner.trials.worlds.plants``).  Raises ValueError for fewer than two repetitions.
    """
    if repetitions < 2:
        raise ValueError(f"a standard error needs at least 2 repetitions, got {repetitions}")
    best_means = [_mean_rewards(model, solution, sigma, episodes, seed, i).max() for i in range(1, repetitions + 1)]
    return Estimate(float(np.mean(best_means)), float(np.std(best_means, ddof=1) / np.sqrt(repetitions)))


def _mean_rewards(
    model: TaskModel, solution: Solution, sigma: Values, episodes: int, seed: int, repetition: int
) -> Values:
    """Return the mean rewards per step (episodes,) of one repetition."""
    rig, rng = model.rig, stream(seed, Role.PLANT_EVAL, repetition)
    names = list(model.plant.state_names)
    observed_columns = [names.index(o.sensor or o.name) for o in rig.observations]
    half_range = Normalisation.from_signals((*rig.observations, *rig.actuators)).half_range
    n = len(observed_columns)
    node_actions = solution.actions[solution.theta.argmax(axis=1)]
    states, total_reward = np.tile(model.start, (episodes, 1)), np.zeros(episodes)
    for _ in range(model.steps):
        noise = rng.standard_normal((episodes, len(half_range))) * sigma * half_range
        measured_states = states.copy()
        measured_states[:, observed_columns] += noise[:, :n]
        index, weight = solution.partition.memberships(measured_states)
        actions = np.einsum("ek,ekm->em", weight, node_actions[index]) + noise[:, n:]
        states, reward = model.advance(states, actions)
        total_reward += reward
    return total_reward / model.steps
