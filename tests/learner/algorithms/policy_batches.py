"""Random batches for the tests of algorithms that learn from their own policies; their parameters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms.actor_critic import ActorCritic
from onrig.learner.algorithms.on_policy import OnPolicy, PolicyBatch


def make_policy_batch(algorithm: OnPolicy, seeds: list[int], n: int, m: int, K: int = 1, T: int = 32) -> PolicyBatch:
    """Let the policies act on random observations; each trial's random numbers depend only on its seed."""

    def random(*shape: int) -> NDArray[np.float64]:
        return np.stack([np.random.default_rng([seed, len(shape), *shape]).standard_normal(shape) for seed in seeds])

    observation = 2.0 * random(K, T, n) + 1.0
    noise = random(K, T, m).reshape(len(seeds), K * T, m)
    drawn_action = algorithm.draw(observation.reshape(len(seeds), K * T, n), noise).reshape(len(seeds), K, T, m)
    end_draws = random(K, T)
    is_terminated, is_truncated = end_draws > 1.2, end_draws < -1.2
    next_observation = np.concatenate((observation[:, :, 1:], random(K, n)[:, :, None]), axis=2)
    no_recording = np.zeros(is_terminated.shape, np.bool_)
    return PolicyBatch(
        observation,
        drawn_action,
        drawn_action[..., 0] - observation[..., 0],
        next_observation,
        is_terminated,
        is_truncated,
        no_recording,
    )


def policies(algorithm: ActorCritic) -> NDArray[np.floating]:
    """Parameters of mean and spread, (S, P)."""
    return _copy_parameters(algorithm, "policy/", "spread/")


def value_parameters(algorithm: ActorCritic) -> NDArray[np.floating]:
    """Parameters of values, (S, P)."""
    return _copy_parameters(algorithm, "value/")


def _copy_parameters(algorithm: ActorCritic, *names: str) -> NDArray[np.floating]:
    fields = [field for name, field in algorithm.layout.fields.items() if name.startswith(names)]
    return np.concatenate([algorithm.rows[:, field.slice] for field in fields], axis=1)
