"""What a retention strategy is: it decides which slot a new experience takes (ARCHITECTURE §6).

A keeper sees three streams of events — written, replayed, TD updated — and never the experiences themselves.  For
every experience offered the caller does, in this order::

    slot = keeper.place()
    if slot >= 0:
        storage.insert(slot, ...)
        keeper.written(slot, exploration)
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.layout import Slots

REJECTED: Final = -1
"""What ``place`` returns when the new experience is not to be kept."""

Arrays = dict[str, NDArray[np.generic]]
"""A keeper's state, ready for a checkpoint."""


class Keeper(Protocol):
    """One retention strategy over slots 0 ... capacity - 1."""

    @property
    def capacity(self) -> int:
        """Number of slots."""
        ...

    @property
    def cyclic(self) -> bool:
        """Whether slots are written round robin (see :class:`~onrig.runtime.replay.storage.Storage`)."""
        ...

    @property
    def refused(self) -> int:
        """Experiences offered so far that were not kept."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held, beside a few hundred."""
        ...

    def place(self) -> int:
        """Return the slot that the next experience takes, or ``REJECTED``; a slot is to be written at once."""
        ...

    def written(self, slot: int, exploration: float) -> None:
        """A new experience with this exploration magnitude now lies in ``slot``, the one ``place`` returned."""
        ...

    def replayed(self, slots: Slots) -> None:
        """The experiences in ``slots`` were in a batch."""
        ...

    def td_updated(self, slots: Slots, abs_td: NDArray[np.float32]) -> None:
        """Take the latest |TD error| of the experiences in ``slots`` (same length), in order, repetitions allowed.

        Errors of experiences rewritten since must have been sifted out (``Storage.is_current``).  A value that is
        no number is refused with ValueError, before any is taken.
        """
        ...

    def state(self) -> Arrays:
        """Return everything a keeper of the same kind and capacity needs to make the same decisions."""
        ...

    def restore(self, state: Arrays) -> None:
        """Take up ``state``; raises ValueError when it is of another kind or capacity."""
        ...


def check_state(state: Arrays, kind: str, capacity: int) -> None:
    """Raise ValueError unless ``state`` was written by a keeper of this kind and capacity."""
    got = (str(state["kind"]) if "kind" in state else "none", int(state["capacity"]) if "capacity" in state else 0)
    if got != (kind, capacity):
        raise ValueError(f"state of keeper {got[0]} with {got[1]} slots, expected {kind} with {capacity}")
