"""Random batches of experiences for the tests of algorithms that learn from their own policies; their parameters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms.actor_critic import ActorCritic
from onrig.learner.algorithms.on_policy import OnPolicy, PolicyBatch


def policy_batch(algorithm: OnPolicy, seeds: list[int], n: int, m: int, K: int = 1, T: int = 32) -> PolicyBatch:
    """Let the policies act on random observations; each trial's numbers are its seed's alone."""

    def random(*shape: int) -> NDArray[np.float64]:
        return np.stack([np.random.default_rng([seed, len(shape), *shape]).standard_normal(shape) for seed in seeds])

    observation = 2.0 * random(K, T, n) + 1.0
    noise = random(K, T, m).reshape(len(seeds), K * T, m)
    drawn = algorithm.draw(observation.reshape(len(seeds), K * T, n), noise).reshape(len(seeds), K, T, m)
    ends = random(K, T)
    over, late = ends > 1.2, ends < -1.2
    after = np.concatenate((observation[:, :, 1:], random(K, n)[:, :, None]), axis=2)
    own = np.zeros(over.shape, np.bool_)
    return PolicyBatch(observation, drawn, drawn[..., 0] - observation[..., 0], after, over, late, own)


def policies(algorithm: ActorCritic) -> NDArray[np.floating]:
    """Parameters of mean and spread, (S, P)."""
    return _copied(algorithm, "policy/", "spread/")


def value_nets(algorithm: ActorCritic) -> NDArray[np.floating]:
    """Parameters of values, (S, P)."""
    return _copied(algorithm, "value/")


def _copied(algorithm: ActorCritic, *names: str) -> NDArray[np.floating]:
    fields = [field for name, field in algorithm.layout.fields.items() if name.startswith(names)]
    return np.concatenate([algorithm.rows[:, field.slice] for field in fields], axis=1)
