"""Sampling: which experiences a minibatch is made of (ARCHITECTURE §6), apart from which ones are kept.

A sampler works on slot numbers alone.  It hears of what happens to the slots through events and answers with slots; the
columns are gathered by whoever holds the storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

State = dict[str, NDArray[np.generic]]
"""Plain arrays, as they go into an ``.npz`` file."""


class Draw(NamedTuple):
    """Slots for consecutive updates, one row each."""

    slots: NDArray[np.int64]
    """(updates, batch)"""
    weights: NDArray[np.float32] | None
    """Importance-sampling weights, (updates, batch); None where all are 1."""


class Sampler(Protocol):
    """One sampling strategy of one trial; draws depend on its seed and the events it heard, nothing else."""

    @property
    def feedback(self) -> bool:
        """True where a draw depends on the TD errors of the update before it: such draws are asked for one by one."""

    def begin_episode(self, episode: int) -> None:
        """Hear how far the run is: the training episode whose updates come next (schedules over episodes)."""

    def written(self, slots: NDArray[np.int64]) -> None:
        """Hear that these slots hold new experiences, in insertion order; slots fill from 0 upwards."""

    def updated(self, slots: NDArray[np.int64], td: NDArray[np.floating]) -> None:
        """Hear the TD errors of slots that were just learned from."""

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Choose ``updates`` minibatches; the same as so many single draws.

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """

    def state(self) -> State:
        """Copy out everything the next draws depend on."""

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from a state of ``state()``: the next draws are the same."""
