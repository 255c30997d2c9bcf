"""FIFO and FULL: slots in order.  When the memory is full, FIFO wraps around and FULL refuses."""

from __future__ import annotations

import numpy as np

from onrig.runtime.replay.memory.keepers.keeper import REJECTED, Arrays, Keeper


class Fifo(Keeper):
    """First in, first out: the oldest experience is overwritten (de Bruin et al. 2018, §7.1.1, age)."""

    name = "FIFO"
    cyclic = True

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        super().__init__(capacity, rng)
        self._next = 0

    def place(self) -> int:
        """Return the slot written longest ago."""
        slot = self._next
        self._next = slot + 1 if slot + 1 < self.capacity else 0
        return slot

    def state(self) -> Arrays:
        """Return the next slot."""
        return super().state() | {"next": np.array(self._next)}

    def restore(self, state: Arrays) -> None:
        """Take up ``state``."""
        super().restore(state)
        self._next = int(state["next"])


class Full(Keeper):
    """FULL DB of de Bruin et al. 2018: nothing is overwritten, so the capacity must cover the whole run.

    Beyond its capacity it refuses and counts experiences: the count shows that a run was sized too small, and the rig
    keeps running.
    """

    name = "FULL"
    cyclic = True

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        super().__init__(capacity, rng)
        self._next = 0

    def place(self) -> int:
        """Return the next free slot, ``REJECTED`` when there is none."""
        slot = self._next
        if slot == self.capacity:
            self.refused += 1
            return REJECTED
        self._next = slot + 1
        return slot

    def state(self) -> Arrays:
        """Return the next slot and the count of refusals."""
        return super().state() | {"next": np.array(self._next), "refused": np.array(self.refused)}

    def restore(self, state: Arrays) -> None:
        """Take up ``state``."""
        super().restore(state)
        self._next = int(state["next"])
        self.refused = int(state["refused"])
