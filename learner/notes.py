"""Notes kept for each slot of the memories: columns of numbers, reset when a slot is rewritten.

They are saved with the learner, and never sent to the rig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.runtime.memory.layout import Slots


class Notes:
    """Columns (S, capacity, ...) with a row for each slot of each of S trials, whose memories fill from slot 0
    upwards."""

    def __init__(self, trials: int, capacity: int) -> None:
        self.trials = trials
        self.capacity = capacity
        self.stored: NDArray[np.int64] = np.zeros(trials, np.int64)
        """(S,): number of slots written at least once."""
        self.changes = 0
        """Number of times that slots were written or reset.  As long as it stays the same, the columns have been
        modified only by their owners."""
        self._columns: dict[str, NDArray[Any]] = {}
        self._initial: dict[str, float] = {}

    def add_column(
        self, name: str, initial: float, dtype: DTypeLike = np.float32, shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Add a column (S, capacity, *shape) for its owner to write; a rewritten slot is reset to ``initial``."""
        array: NDArray[Any] = np.full((self.trials, self.capacity, *shape), initial, dtype)
        self._columns[name], self._initial[name] = array, initial
        return array

    def on_write(self, trial: int, slots: Slots) -> None:
        """Reset the notes on a trial's slots (k,), which have received new experiences."""
        if not len(slots):
            return
        self.changes += 1
        self.stored[trial] = max(self.stored[trial], slots.max() + 1)
        for name, column in self._columns.items():
            column[trial, slots] = self._initial[name]

    def clear(self) -> None:
        """Reset all notes, for use with a different memory."""
        self.changes += 1
        self.stored[:] = 0
        for name, column in self._columns.items():
            column[:] = self._initial[name]

    def stored_column(self, trial: int, name: str) -> NDArray[Any]:
        """Return the written slots of one trial's column: (stored, ...)."""
        return self._columns[name][trial, : self.stored[trial]]

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"stored": self.stored.copy(), **{name: column.copy() for name, column in self._columns.items()}}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``; raise KeyError or ValueError, and change nothing, if it does not fit."""
        for name, column in self._columns.items():
            if state[name].shape != column.shape:
                raise ValueError(f"column {name} of shape {state[name].shape}, expected {column.shape}")
        self.changes += 1
        self.stored[:] = state["stored"]
        for name, column in self._columns.items():
            column[:] = state[name]
