"""A retention strategy: what it says of itself, and how it decides which slot a new experience takes.

A keeper never sees the experiences.  For each one offered the caller does, in this order::

    slot = keeper.place()
    if slot >= 0:
        storage.insert(slot, ...)
        keeper.written(slot, exploration)
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.memory.layout import Slots

REJECTED: Final = -1
"""What ``place`` returns when the new experience is not to be kept."""

Arrays = dict[str, NDArray[np.generic]]
"""A keeper's state, ready for a checkpoint."""


class Signal(enum.Enum):
    """What a strategy may look at, besides age and chance."""

    EXPLORATION = "exploration"
    """Distance of the action from the policy's own, known when an experience is written."""
    TD_ERROR = "TD error"
    """Latest |TD error|, fed back by the learner."""


class Parameter(NamedTuple):
    """The number that a strategy takes in round brackets."""

    symbol: str
    """How the notation writes it."""
    name: str
    of: str
    """What it is the ``name`` of."""
    high: float
    """Largest value; the smallest is 0."""


class Keeper:
    """One retention strategy over slots 0 ... capacity - 1; a subclass overrides what it listens to."""

    name: ClassVar[str]
    """As the notation of strategies writes it."""
    parameter: ClassVar[Parameter | None] = None
    """What the constructor takes behind capacity and random stream; None for nothing."""
    looks_at: ClassVar[frozenset[Signal]] = frozenset()
    bytes_per_slot: ClassVar[float] = 0.0
    """The most it holds for each slot."""
    fixed_bytes: ClassVar[int] = 0
    """The most it holds whatever its capacity, beside a few hundred bytes."""
    checkpoint_bytes_per_slot: ClassVar[float] = 0.0
    """Of its state: the copy that checkpoints keep in memory, and the one that replaces it."""
    holds: ClassVar[str] = ""
    """What it holds, for people."""
    cyclic: bool = False
    """Whether slots are written round robin (:class:`~onrig.runtime.replay.memory.storage.Storage`)."""

    def __init__(self, capacity: int, rng: np.random.Generator, *parameters: float) -> None:
        self.capacity: Final = capacity
        self.refused = 0
        """Experiences offered so far that were not kept."""

    @property
    def nbytes(self) -> int:
        """Bytes held, beside ``fixed_bytes``."""
        return 0

    def place(self) -> int:
        """Return the slot that the next experience takes, or ``REJECTED``; a slot must be written at once."""
        raise NotImplementedError

    def written(self, slot: int, exploration: float) -> None:
        """Note a new experience with this exploration magnitude in ``slot``, the one ``place`` returned."""

    def learned(self, signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        """Note the learner's latest ``values`` for ``slots`` (same length), in order, repetitions allowed.

        Values of experiences rewritten since must have been dropped (``Storage.is_current``).  Raises ValueError for a
        NaN before any value is taken.
        """

    def state(self) -> Arrays:
        """Return everything a keeper of the same name and capacity needs to make the same decisions."""
        return {"kind": np.array(self.name), "capacity": np.array(self.capacity)}

    def restore(self, state: Arrays) -> None:
        """Take up ``state``; raises ValueError for one of another name or capacity."""
        got = (str(state["kind"]) if "kind" in state else "none", int(state["capacity"]) if "capacity" in state else 0)
        if got != (self.name, self.capacity):
            raise ValueError(f"state of keeper {got[0]} with {got[1]} slots, expected {self.name} with {self.capacity}")
