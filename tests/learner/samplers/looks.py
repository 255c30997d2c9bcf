"""Experiences and policies for samplers that evaluate them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Minibatches
from onrig.learner.samplers import ReplayView


def random_view(actions: NDArray[np.floating], observations: int = 1) -> ReplayView:
    """Random experiences with these actions (S, slots, m), under a policy that depends on the first observation."""
    S, slots, m = actions.shape
    columns = [np.random.default_rng(slots).standard_normal((slots, observations)) for _ in range(2)]
    rewards = np.random.default_rng(m).standard_normal((slots,))

    def gather(slots: NDArray[np.int64]) -> Minibatches:
        observation, next_observation = (column[slots] for column in columns)
        return Minibatches(
            observation,
            actions[np.arange(S)[:, None], slots],
            rewards[slots],
            next_observation,
            np.zeros(slots.shape, np.bool_),
        )

    def policy(observation: NDArray[np.floating]) -> NDArray[np.floating]:
        action: NDArray[np.floating] = np.tanh(observation[..., :1] + np.arange(m))
        return action

    return ReplayView(gather, policy, lambda at: at / slots, observations, m)
