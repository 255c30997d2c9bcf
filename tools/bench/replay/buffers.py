"""Test transitions, and the common interface to the memories of all libraries.

Each library is used in its fastest documented way for single transitions. Inputs are converted to the library's types
(a TensorDict, a Batch, rows with an environment axis) outside the timed section; samples have the library's types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

POOL_SIZE: Final = 4096
"""Number of distinct transitions; a larger memory is filled with repetitions."""
BATCH_SIZE: Final = 16
"""Mini-batch size of de Bruin et al. 2018."""
INSERTS_PER_CYCLE: Final = 200
UPDATES_PER_CYCLE: Final = 100
"""Duty cycle of de Bruin et al. 2018: an episode of 200 steps, then 100 batch updates, or 8 replays per step."""


class Transitions(NamedTuple):
    """``n`` transitions as produced by a rig, field by field."""

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

    def select(self, start: int, n: int) -> Transitions:
        """Return up to ``n`` transitions from index ``start``."""
        selection = slice(start, start + n)
        return Transitions(
            self.observation[selection],
            self.action[selection],
            self.reward[selection],
            self.next_observation[selection],
            self.terminated[selection],
            self.exploration[selection],
        )


class Errors(NamedTuple):
    """Feedback from a learner: absolute TD errors of minibatches."""

    slots: NDArray[np.int64]
    """(n, BATCH), drawn uniformly, distinct within a minibatch."""
    td: Floats
    """(n, BATCH)"""


def random_transitions(n: int, n_obs: int, n_act: int, seed: int) -> Transitions:
    """Draw ``n`` transitions whose rewards 0, 1, 2, ... identify them."""
    rng = np.random.default_rng(seed)
    return Transitions(
        rng.uniform(-1, 1, (n, n_obs)).astype(np.float32),
        rng.uniform(-1, 1, (n, n_act)).astype(np.float32),
        np.arange(n, dtype=np.float32),
        rng.uniform(-1, 1, (n, n_obs)).astype(np.float32),
        rng.random(n) < 0.005,
        rng.exponential(size=n).astype(np.float32),
    )


def random_td_errors(n: int, seed: int) -> Floats:
    """Draw ``n`` absolute TD errors, (n,)."""
    return np.random.default_rng([seed, 1]).exponential(size=n).astype(np.float32)


def random_errors(n: int, capacity: int, seed: int) -> Errors:
    """Draw ``n`` minibatches of slots and their errors."""
    rng = np.random.default_rng([seed, 2])
    slots = rng.integers(0, capacity, (n, BATCH_SIZE))
    for row in slots:
        while len(set(row.tolist())) < BATCH_SIZE:
            row[:] = rng.integers(0, capacity, BATCH_SIZE)
    return Errors(slots, random_td_errors(n * BATCH_SIZE, seed).reshape(n, BATCH_SIZE))


ALPHA: Final = 0.6
BETA: Final = 0.4
"""Exponents of proportional PER, the same for every library."""


class Columns(NamedTuple):
    """Sample with one array per field."""

    observation: Floats
    action: Floats
    reward: Floats
    next_observation: Floats
    terminated: NDArray[np.generic]


class Buffer(ABC):
    """A library's memory; FIFO unless stated otherwise, so that transition i is in slot i % capacity."""

    @abstractmethod
    def extend(self, t: Transitions) -> None:
        """Insert transitions as fast as the library can (not timed)."""

    @abstractmethod
    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        """Assign the absolute TD errors ``td`` (n,) to ``slots`` (n,), if sampling uses them (not timed)."""

    @abstractmethod
    def probabilities(self, td: Floats) -> NDArray[np.float64]:
        """Return the documented draw probability of each slot of the full memory, given these errors."""

    @abstractmethod
    def columns(self) -> Columns:
        """Draw a mini-batch as separate columns (not timed)."""

    @abstractmethod
    def prepare(self, t: Transitions, e: Errors) -> None:
        """Convert ``POOL_SIZE`` transitions and mini-batches of errors to the library's types."""

    @abstractmethod
    def insert(self, i: int) -> object:
        """Insert prepared transition ``i``; return ``SKIPPED`` if it was not kept."""

    @abstractmethod
    def sample(self, size: int) -> object:
        """Draw ``size`` transitions with all their columns."""

    @abstractmethod
    def update(self, i: int) -> None:
        """Apply the errors of prepared minibatch ``i``."""

    @abstractmethod
    def learn(self, i: int) -> None:
        """Draw a mini-batch and, if sampling uses errors, assign those of prepared mini-batch ``i``."""

    def insert_drawable(self, i: int) -> object:
        """Insert prepared transition ``i`` so that the next sample may contain it."""
        return self.insert(i)

    def cycle(self, i: int) -> None:
        """Run the ``i``-th duty cycle."""
        for j in range(i * INSERTS_PER_CYCLE, (i + 1) * INSERTS_PER_CYCLE):
            self.insert(j % POOL_SIZE)
        for j in range(UPDATES_PER_CYCLE):
            self.learn(j)

    def begin_round(self) -> None:  # noqa: B027 most memories have no such state
        """Restore the state in which inserts are kept with the same probability as in the first round."""

    def array_bytes(self) -> int | None:
        """Return the size of the memory's arrays in bytes, or None if only the process's growth can be measured."""
        return None


def uniform_probabilities(capacity: int) -> NDArray[np.float64]:
    """Return 1 / capacity for each slot."""
    return np.full(capacity, 1.0 / capacity)


def proportional_probabilities(td: Floats, epsilon: float) -> NDArray[np.float64]:
    """Return P(i) ~ (|TD error| + epsilon)^ALPHA for each slot."""
    priority: NDArray[np.float64] = (td.astype(np.float64) + epsilon) ** ALPHA
    probabilities: NDArray[np.float64] = priority / priority.sum()
    return probabilities
