"""Slots that are never overwritten, in front of any keeper."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import REJECTED, Arrays, Keeper, Signal
from onrig.runtime.memory.layout import Slots


class ReservedKeeper(Keeper):
    """Keeper that reserves the first slots for the first ``n_reserved`` experiences; another keeper manages the
    remaining slots.

    The state has the other keeper's name.
    """

    def __init__(self, keeper: Keeper, n_reserved: int, rng: np.random.Generator) -> None:
        # Never cyclic, because slot 0 does not follow the last slot.
        super().__init__(n_reserved + keeper.capacity, rng)
        self._keeper: Final = keeper
        self._n_reserved: Final = n_reserved
        self._n_filled = 0

    @property
    def nbytes(self) -> int:
        return self._keeper.nbytes

    def place(self) -> int:
        """Return the next reserved slot, or the other keeper's slot once the reserved ones are filled."""
        if self._n_filled < self._n_reserved:
            self._n_filled += 1
            return self._n_filled - 1
        slot = self._keeper.place()
        self.n_rejected = self._keeper.n_rejected
        return slot if slot == REJECTED else self._n_reserved + slot

    def on_write(self, slot: int, exploration: float, episode: int) -> None:
        if slot >= self._n_reserved:
            self._keeper.on_write(slot - self._n_reserved, exploration, episode)

    def on_feedback(self, signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        is_managed = slots >= self._n_reserved
        self._keeper.on_feedback(signal, slots[is_managed] - self._n_reserved, values[is_managed])

    def state(self) -> Arrays:
        """Return the other keeper's state, extended to all slots, with the numbers of reserved and of filled reserved
        slots."""
        n_reserved = self._n_reserved
        state = {
            name: np.concatenate((np.zeros(n_reserved, values.dtype), values)) if self._is_per_slot(values) else values
            for name, values in self._keeper.state().items()
        }
        numbers = {"capacity": np.array(self.capacity), "reserved": np.array([n_reserved, self._n_filled])}
        return state | numbers

    def _is_per_slot(self, values: NDArray[np.generic]) -> bool:
        return values.shape == (self._keeper.capacity,)

    def restore(self, state: Arrays) -> None:
        """Restore ``state``."""
        n_reserved, n_filled = state["reserved"].tolist() if "reserved" in state else (0, 0)
        if n_reserved != self._n_reserved:
            raise ValueError(f"state of a memory with {n_reserved} reserved slots, expected {self._n_reserved}")
        managed_state = self._keeper.state()
        keeper_state = {
            name: values[n_reserved:] if name in managed_state and self._is_per_slot(managed_state[name]) else values
            for name, values in state.items()
        }
        self._keeper.restore(keeper_state | {"capacity": managed_state["capacity"]})
        self._n_filled, self.n_rejected = n_filled, self._keeper.n_rejected
