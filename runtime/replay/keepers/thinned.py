"""Dropped experiences, [DE] of 000 §6.4: each new one is offered to the keeper only with a certain probability."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.keepers.keeper import REJECTED, Arrays, Keeper
from onrig.runtime.replay.layout import Slots
from onrig.runtime.replay.order.uniforms import Uniforms


class Thinned:
    """Any keeper behind a chance of ``probability`` per experience (000: the ratio of the sampling frequencies)."""

    def __init__(self, keeper: Keeper, probability: float, rng: np.random.Generator) -> None:
        """Offer ``keeper`` that share of the experiences; ValueError unless 0 < ``probability`` <= 1."""
        if not 0.0 < probability <= 1.0:
            raise ValueError(f"the write probability must lie in (0, 1], got {probability}")
        self._keeper: Final = keeper
        self._probability: Final = probability
        self._uniforms: Final = Uniforms(rng)
        self._dropped = 0

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self._keeper.capacity

    @property
    def cyclic(self) -> bool:
        """As the keeper within."""
        return self._keeper.cyclic

    @property
    def refused(self) -> int:
        """Experiences not kept: dropped here, or refused by the keeper within."""
        return self._dropped + self._keeper.refused

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._keeper.nbytes

    def place(self) -> int:
        """Return the keeper's slot, or ``REJECTED`` when the experience is dropped."""
        if self._uniforms.next() < self._probability:
            return self._keeper.place()
        self._dropped += 1
        return REJECTED

    def written(self, slot: int, exploration: float) -> None:
        """Pass on."""
        self._keeper.written(slot, exploration)

    def replayed(self, slots: Slots) -> None:
        """Pass on."""
        self._keeper.replayed(slots)

    def td_updated(self, slots: Slots, abs_td: NDArray[np.float32]) -> None:
        """Pass on."""
        self._keeper.td_updated(slots, abs_td)

    def state(self) -> Arrays:
        """Return the keeper's state and the position in the random stream."""
        return self._keeper.state() | {
            "thinned/probability": np.array(self._probability),
            "thinned/dropped": np.array(self._dropped),
            "thinned/uniforms": self._uniforms.state(),
        }

    def restore(self, state: Arrays) -> None:
        """Take up ``state``."""
        got = float(state["thinned/probability"]) if "thinned/probability" in state else 1.0
        if got != self._probability:
            raise ValueError(f"state of a keeper with write probability {got}, expected {self._probability}")
        self._keeper.restore(state)
        self._dropped = int(state["thinned/dropped"])
        self._uniforms.restore(state["thinned/uniforms"].astype(np.uint64))
