"""FIFO and FULL: slots in turn; FIFO starts over when the buffer is full, FULL keeps everything it ever took."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.keepers.keeper import REJECTED, Arrays, check_state
from onrig.runtime.replay.layout import Slots


class Fifo:
    """First in, first out: the oldest experience makes room (000 §7.1.1, age)."""

    kind: Final = "FIFO"
    cyclic: Final = True
    nbytes: Final = 0

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.refused: Final = 0
        self._next = 0

    def place(self) -> int:
        """Return the slot written longest ago."""
        slot = self._next
        self._next = slot + 1 if slot + 1 < self.capacity else 0
        return slot

    def written(self, slot: int, exploration: float) -> None:
        """Nothing to note: age is the slot's own."""

    def replayed(self, slots: Slots) -> None:
        """Nothing to note."""

    def td_updated(self, slots: Slots, abs_td: NDArray[np.float32]) -> None:
        """Nothing to note."""

    def state(self) -> Arrays:
        """Return the next slot."""
        return {"kind": np.array(self.kind), "capacity": np.array(self.capacity), "next": np.array(self._next)}

    def restore(self, state: Arrays) -> None:
        """Take up ``state``."""
        check_state(state, self.kind, self.capacity)
        self._next = int(state["next"])


class Full:
    """FULL DB of 000: nothing is ever overwritten, so the capacity must cover the whole run.

    Past its capacity it refuses (``place`` returns ``REJECTED``, ``refused`` counts) instead of forgetting: a run
    sized too small shows in the count, and the rig goes on.
    """

    kind: Final = "FULL"
    cyclic: Final = True
    nbytes: Final = 0

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.refused = 0
        self._next = 0

    def place(self) -> int:
        """Return the next free slot, ``REJECTED`` when there is none."""
        slot = self._next
        if slot == self.capacity:
            self.refused += 1
            return REJECTED
        self._next = slot + 1
        return slot

    def written(self, slot: int, exploration: float) -> None:
        """Nothing to note."""

    def replayed(self, slots: Slots) -> None:
        """Nothing to note."""

    def td_updated(self, slots: Slots, abs_td: NDArray[np.float32]) -> None:
        """Nothing to note."""

    def state(self) -> Arrays:
        """Return the next slot and the count of refusals."""
        return {
            "kind": np.array(self.kind),
            "capacity": np.array(self.capacity),
            "next": np.array(self._next),
            "refused": np.array(self.refused),
        }

    def restore(self, state: Arrays) -> None:
        """Take up ``state``."""
        check_state(state, self.kind, self.capacity)
        self._next = int(state["next"])
        self.refused = int(state["refused"])
