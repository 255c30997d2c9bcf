"""The transitions every library is given: the same ones in the same order."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

POOL: Final = 4096
"""Distinct transitions; a larger memory is filled with them again and again."""
BATCH: Final = 16
"""Minibatch of 000."""
INSERTS: Final = 200
UPDATES: Final = 100
"""The duty cycle of 000: one episode of 200 steps, then 100 batch updates (8 replays of each experience)."""


class Transitions(NamedTuple):
    """``n`` transitions as a rig delivers them, field by field."""

    observation: Floats
    """(n, n_obs)"""
    action: Floats
    """(n, n_act)"""
    reward: Floats
    """(n,)"""
    next_observation: Floats
    """(n, n_obs)"""
    terminated: NDArray[np.bool_]
    """(n,)"""
    exploration: Floats
    """(n,)"""

    def part(self, first: int, n: int) -> Transitions:
        """Return ``n`` transitions from ``first`` on, or what there is of them."""
        some = slice(first, first + n)
        return Transitions(
            self.observation[some],
            self.action[some],
            self.reward[some],
            self.next_observation[some],
            self.terminated[some],
            self.exploration[some],
        )


class Errors(NamedTuple):
    """What a learner sends back: TD errors of minibatches, absolute values."""

    slots: NDArray[np.int64]
    """(n, BATCH), drawn uniformly, distinct within a minibatch."""
    td: Floats
    """(n, BATCH)"""


def transitions(n: int, n_obs: int, n_act: int, seed: int) -> Transitions:
    """Draw ``n`` transitions; rewards are 0, 1, 2, ..., so that each names its transition."""
    rng = np.random.default_rng(seed)
    return Transitions(
        rng.uniform(-1, 1, (n, n_obs)).astype(np.float32),
        rng.uniform(-1, 1, (n, n_act)).astype(np.float32),
        np.arange(n, dtype=np.float32),
        rng.uniform(-1, 1, (n, n_obs)).astype(np.float32),
        rng.random(n) < 0.005,
        rng.exponential(size=n).astype(np.float32),
    )


def td_errors(n: int, seed: int) -> Floats:
    """Draw ``n`` absolute TD errors, (n,)."""
    return np.random.default_rng([seed, 1]).exponential(size=n).astype(np.float32)


def errors(n: int, capacity: int, seed: int) -> Errors:
    """Draw ``n`` minibatches of slots and their errors."""
    rng = np.random.default_rng([seed, 2])
    slots = rng.integers(0, capacity, (n, BATCH))
    for row in slots:
        while len(set(row.tolist())) < BATCH:
            row[:] = rng.integers(0, capacity, BATCH)
    return Errors(slots, td_errors(n * BATCH, seed).reshape(n, BATCH))
