"""FIFO and FULL, which fill the slots in order.  Once the memory is full, FIFO wraps around and FULL rejects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import REJECTED, Arrays, Keeper
from onrig.runtime.memory.layout import Slots


class Fifo(Keeper):
    """First in, first out: the oldest experience is overwritten (de Bruin et al. 2018, §7.1.1, age)."""

    name = "FIFO"
    cyclic = True

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        super().__init__(capacity, rng)
        self._next_slot = 0

    def place(self) -> int:
        """Return the next slot: a free one or, once all are filled, the one written longest ago."""
        slot = self._next_slot
        self._next_slot = slot + 1 if slot + 1 < self.capacity else 0
        return slot

    def place_all(self, exploration: NDArray[np.floating], episode: int) -> Slots:
        """Return the next slots in order."""
        slots = (self._next_slot + np.arange(len(exploration), dtype=np.int64)) % self.capacity
        self._next_slot = (self._next_slot + len(exploration)) % self.capacity
        return slots

    def state(self) -> Arrays:
        """Return the next slot."""
        return super().state() | {"next": np.array(self._next_slot)}

    def restore(self, state: Arrays) -> None:
        """Restore ``state``."""
        super().restore(state)
        self._next_slot = int(state["next"])


class Full(Keeper):
    """FULL DB of de Bruin et al. 2018: nothing is overwritten, so the capacity must cover the entire run.

    A full memory rejects and counts experiences, so that the rig keeps running and the count reveals a capacity that is
    too small.
    """

    name = "FULL"
    keeps_all = True
    cyclic = True

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        super().__init__(capacity, rng)
        self._next_slot = 0

    def place(self) -> int:
        """Return the next free slot, or ``REJECTED`` if there is none."""
        slot = self._next_slot
        if slot == self.capacity:
            self.n_rejected += 1
            return REJECTED
        self._next_slot = slot + 1
        return slot

    def place_all(self, exploration: NDArray[np.floating], episode: int) -> Slots:
        """Return the free slots in order, followed by ``REJECTED`` for each experience that does not fit."""
        slots = self._next_slot + np.arange(len(exploration), dtype=np.int64)
        is_free = slots < self.capacity
        self.n_rejected += len(slots) - int(is_free.sum())
        self._next_slot = min(self._next_slot + len(slots), self.capacity)
        return np.where(is_free, slots, REJECTED)

    def state(self) -> Arrays:
        """Return the next slot and the count of rejections."""
        return super().state() | {"next": np.array(self._next_slot), "refused": np.array(self.n_rejected)}

    def restore(self, state: Arrays) -> None:
        """Restore ``state``."""
        super().restore(state)
        self._next_slot = int(state["next"])
        self.n_rejected = int(state["refused"])
