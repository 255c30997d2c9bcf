"""Slots that are never overwritten, in front of any keeper."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import REJECTED, Arrays, Keeper, Signal
from onrig.runtime.memory.layout import Slots


class ReservedKeeper(Keeper):
    """Keeper of the first ``reserved`` experiences in the first slots; another keeper manages the remaining slots.

    The state has the name of the other keeper.
    """

    def __init__(self, keeper: Keeper, reserved: int, rng: np.random.Generator) -> None:
        # Never cyclic, because slot 0 does not follow the last slot.
        super().__init__(reserved + keeper.capacity, rng)
        self._keeper: Final = keeper
        self._reserved: Final = reserved
        self._filled = 0

    @property
    def nbytes(self) -> int:
        return self._keeper.nbytes

    def place(self) -> int:
        """Return the next reserved slot, then those of the other keeper."""
        if self._filled < self._reserved:
            self._filled += 1
            return self._filled - 1
        slot = self._keeper.place()
        self.n_rejected = self._keeper.n_rejected
        return slot if slot == REJECTED else self._reserved + slot

    def on_write(self, slot: int, exploration: float, episode: int) -> None:
        if slot >= self._reserved:
            self._keeper.on_write(slot - self._reserved, exploration, episode)

    def on_feedback(self, signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        is_managed = slots >= self._reserved
        self._keeper.on_feedback(signal, slots[is_managed] - self._reserved, values[is_managed])

    def state(self) -> Arrays:
        """Return the other keeper's state, extended to all slots, and the numbers of reserved slots and of filled
        ones."""
        n_reserved = self._reserved
        state = {
            name: np.concatenate((np.zeros(n_reserved, values.dtype), values)) if self._is_per_slot(values) else values
            for name, values in self._keeper.state().items()
        }
        numbers = {"capacity": np.array(self.capacity), "reserved": np.array([n_reserved, self._filled])}
        return state | numbers

    def _is_per_slot(self, values: NDArray[np.generic]) -> bool:
        return values.shape == (self._keeper.capacity,)

    def restore(self, state: Arrays) -> None:
        """Restore ``state``."""
        reserved, filled = state["reserved"].tolist() if "reserved" in state else (0, 0)
        if reserved != self._reserved:
            raise ValueError(f"state of a memory with {reserved} reserved slots, expected {self._reserved}")
        managed_state = self._keeper.state()
        keeper_state = {
            name: values[reserved:] if name in managed_state and self._is_per_slot(managed_state[name]) else values
            for name, values in state.items()
        }
        self._keeper.restore(keeper_state | {"capacity": managed_state["capacity"]})
        self._filled, self.n_rejected = filled, self._keeper.n_rejected
