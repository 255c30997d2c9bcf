"""Resv: every experience ever offered is kept with the same probability (000 §7.1.1)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.keepers.keeper import REJECTED, Arrays, check_state
from onrig.runtime.replay.layout import Slots
from onrig.runtime.replay.order.uniforms import Uniforms


class Reservoir:
    """Vitter's algorithm R (ACM TOMS 11(1), 1985): the i-th offer is accepted with probability C/i, in a uniform slot.

    One number decides both: floor(U i) < C happens with probability C/i and is then uniform over the slots.
    """

    kind: Final = "Resv"
    cyclic: Final = False
    nbytes: Final = 0

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self.capacity: Final = capacity
        self.refused = 0
        self._offered = 0
        self._uniforms: Final = Uniforms(rng)
        self._uniform: Final = self._uniforms.next

    def place(self) -> int:
        """Return the slot for the next offer, or ``REJECTED``."""
        self._offered = i = self._offered + 1
        if i <= self.capacity:
            return i - 1
        slot = int(self._uniform() * i)
        if slot < self.capacity:
            return slot
        self.refused += 1
        return REJECTED

    def written(self, slot: int, exploration: float) -> None:
        """Nothing to note."""

    def replayed(self, slots: Slots) -> None:
        """Nothing to note."""

    def td_updated(self, slots: Slots, abs_td: NDArray[np.float32]) -> None:
        """Nothing to note."""

    def state(self) -> Arrays:
        """Return the counts and the position in the random stream."""
        return {
            "kind": np.array(self.kind),
            "capacity": np.array(self.capacity),
            "offered": np.array(self._offered),
            "refused": np.array(self.refused),
            "uniforms": self._uniforms.state(),
        }

    def restore(self, state: Arrays) -> None:
        """Take up ``state``."""
        check_state(state, self.kind, self.capacity)
        self._offered = int(state["offered"])
        self.refused = int(state["refused"])
        self._uniforms.restore(state["uniforms"].astype(np.uint64))
