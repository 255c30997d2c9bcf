"""Random retention: a reservoir (Resv), and random thinning in front of any keeper."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import REJECTED, Arrays, Keeper, Signal
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.order.uniforms import UNIFORMS_BYTES, Uniforms


class Reservoir(Keeper):
    """Resv: keeps every experience offered so far with equal probability (de Bruin et al. 2018, §7.1.1).

    Vitter's algorithm R (ACM TOMS 11(1), 1985): the i-th offer is accepted with probability C/i, and
    stored in a slot drawn uniformly.  One draw decides both: floor(U i) < C has probability C/i and is then uniform
    over the slots.
    """

    name = "Resv"
    fixed_bytes = UNIFORMS_BYTES

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        super().__init__(capacity, rng)
        self._n_offered = 0
        self._uniforms: Final = Uniforms(rng)
        self._uniform: Final = self._uniforms.next

    def place(self) -> int:
        """Return the slot for the next offer, or ``REJECTED``."""
        self._n_offered = i = self._n_offered + 1
        if i <= self.capacity:
            return i - 1
        slot = int(self._uniform() * i)
        if slot < self.capacity:
            return slot
        self.n_rejected += 1
        return REJECTED

    def state(self) -> Arrays:
        """Return the counts and the position in the random stream."""
        return super().state() | {
            "offered": np.array(self._n_offered),
            "refused": np.array(self.n_rejected),
            "uniforms": self._uniforms.state(),
        }

    def restore(self, state: Arrays) -> None:
        """Restore ``state``."""
        super().restore(state)
        self._n_offered = int(state["offered"])
        self.n_rejected = int(state["refused"])
        self._uniforms.restore(state["uniforms"].astype(np.uint64))


class ThinnedKeeper(Keeper):
    """Keeper that passes each experience to another keeper with ``probability`` ([DE] of §6.4, a ratio of sampling
    frequencies)."""

    def __init__(self, keeper: Keeper, probability: float, rng: np.random.Generator) -> None:
        """Offer experiences to ``keeper`` with ``probability``; raises ValueError unless it lies in (0, 1]."""
        if not 0.0 < probability <= 1.0:
            raise ValueError(f"the write probability must lie in (0, 1], got {probability}")
        super().__init__(keeper.capacity, rng)
        self.cyclic = keeper.cyclic
        self._keeper: Final = keeper
        self._probability: Final = probability
        self._uniforms: Final = Uniforms(rng)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._keeper.nbytes

    @property
    def unthinned(self) -> Keeper:
        """The keeper behind the thinning."""
        return self._keeper

    def place(self) -> int:
        """Return the keeper's slot, or ``REJECTED`` if the experience is dropped."""
        slot = self._keeper.place() if self._uniforms.next() < self._probability else REJECTED
        self.n_rejected += slot == REJECTED
        return slot

    def on_write(self, slot: int, exploration: float, episode: int) -> None:
        self._keeper.on_write(slot, exploration, episode)

    def on_feedback(self, signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        self._keeper.on_feedback(signal, slots, values)

    def state(self) -> Arrays:
        """Return the keeper's state, the count of dropped experiences, and the position in the random stream."""
        return self._keeper.state() | {
            "thinned/probability": np.array(self._probability),
            "thinned/dropped": np.array(self.n_rejected - self._keeper.n_rejected),
            "thinned/uniforms": self._uniforms.state(),
        }

    def restore(self, state: Arrays) -> None:
        """Restore ``state``."""
        saved_probability = float(state["thinned/probability"]) if "thinned/probability" in state else 1.0
        if saved_probability != self._probability:
            raise ValueError(
                f"state of a keeper with write probability {saved_probability}, expected {self._probability}"
            )
        self._keeper.restore(state)
        self.n_rejected = int(state["thinned/dropped"]) + self._keeper.n_rejected
        self._uniforms.restore(state["thinned/uniforms"].astype(np.uint64))
