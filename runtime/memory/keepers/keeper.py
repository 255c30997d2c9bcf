"""Base of the retention strategies: their description, and the choice of a slot for each new experience.

A keeper does not receive the experiences themselves. The caller offers each one as follows::

    slot = keeper.place()
    if slot >= 0:
        storage.insert(slot, ...)
        keeper.on_write(slot, exploration, episode)
"""

from __future__ import annotations

import enum
import math
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.layout import Slots

REJECTED: Final = -1
"""Return value of ``place`` for a rejected experience."""

Arrays = dict[str, NDArray[np.generic]]
"""A keeper's state, ready for a checkpoint."""


class Signal(enum.Enum):
    """Inputs of a strategy other than age and chance."""

    EXPLORATION = "exploration"
    """Distance between the action and the policy's action, known when an experience is written."""
    TD_ERROR = "TD error"
    """Latest absolute TD error, fed back by the learner."""
    POLICY = "policy"
    """The current policy's action in the states of stored experiences."""
    TARGET = "target"
    """Latest training target of the critic, reported by the learner's algorithm."""
    FAR = "far-policy bit"
    """1 if the importance weight lies outside ReF-ER's bounds, otherwise 0."""
    KL = "KL divergence"
    """Divergence between the behaviour in a stored experience and the current policy."""
    RETURN = "return"
    """Returns of training episodes."""


FEEDBACK: Final = {"td": Signal.TD_ERROR, "far": Signal.FAR, "kl": Signal.KL}
"""The learner's feedback on replayed experiences, keyed by its name on the link."""


class Parameter(NamedTuple):
    """A strategy's parameter, written in parentheses."""

    symbol: str
    """Symbol in the notation."""
    name: str
    subject: str
    """What the parameter belongs to, such as the "rank law" of an "exponent"."""
    high: float
    low: float = 0.0
    example: float = 1.0
    is_integer: bool = False
    """Whether it is a whole number."""

    def value(self, strategy: str, text: str | None) -> float:
        """Parse ``text``, the part in parentheses after the name ``strategy``; raises ValueError."""
        if text is None:
            example = f"{strategy}({self.format_value(self.example)})"
            raise ValueError(f"{strategy} needs the {self.name} of its {self.subject}, such as {example}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high or (self.is_integer and value % 1):
            expected = f"a {'whole ' if self.is_integer else ''}number of {self.low:g} to {self.high:g}"
            raise ValueError(f"the {self.name} of {strategy} must be {expected}, got '{text}'")
        return value

    def format_value(self, value: float) -> str:
        """Format a value as in the notation."""
        return f"{value:.0f}" if self.is_integer else repr(value)


class Keeper:
    """One retention strategy over slots 0 ... capacity - 1; subclasses override the methods for the events they use."""

    name: ClassVar[str]
    """Name in the strategy notation."""
    parameter: ClassVar[Parameter | None] = None
    """Constructor argument after capacity and random stream; None if there is none."""
    required_signals: ClassVar[frozenset[Signal]] = frozenset()
    bytes_per_slot: ClassVar[float] = 0.0
    """Upper bound on the bytes per slot."""
    fixed_bytes: ClassVar[int] = 0
    """Upper bound on the bytes that do not depend on the capacity, not counting a few hundred."""
    checkpoint_bytes_per_slot: ClassVar[float] = 0.0
    """Bytes per slot for checkpoints of its state: the stored copy, and the next one while it is being written."""
    holds: ClassVar[str] = ""
    """Description of what its memory holds, for users."""
    keeps_all: ClassVar[bool] = False
    """Whether nothing is overwritten, so that the default capacity holds the entire run."""
    cyclic: bool = False
    """Whether slots are written round robin (:class:`~onrig.runtime.memory.storage.Storage`)."""

    def __init__(self, capacity: int, rng: np.random.Generator, *parameters: float) -> None:
        self.capacity: Final = capacity
        self.n_rejected = 0
        """Number of experiences offered and rejected."""

    @property
    def nbytes(self) -> int:
        """Bytes held, excluding ``fixed_bytes``."""
        return 0

    @property
    def unthinned(self) -> Keeper:
        """Keeper that receives every experience offered."""
        return self

    def place(self) -> int:
        """Return the slot for the next experience, or ``REJECTED``; the slot must be written before the next call."""
        raise NotImplementedError

    def on_write(self, slot: int, exploration: float, episode: int) -> None:
        """Record a new experience with this exploration magnitude in the ``slot`` returned by ``place``.

        ``episode`` is the same number for all experiences of an episode, and a different one for the next episode.
        """

    def place_all(self, exploration: NDArray[np.floating], episode: int) -> Slots:
        """Place and record consecutive experiences of an episode with exploration magnitudes (n,); return slots
        (n,)."""
        slots = []
        for magnitude in exploration.tolist():
            slot = self.place()
            if slot >= 0:
                self.on_write(slot, magnitude, episode)
            slots.append(slot)
        return np.array(slots, np.int64)

    def on_feedback(self, signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        """Record the learner's latest ``values`` for ``slots`` (same length), in order; slots may repeat.

        The caller drops values of experiences that have been overwritten since (``Storage.is_current``).  Raises
        ValueError for a NaN before any value is used.
        """

    def state(self) -> Arrays:
        """Return all state that a keeper of the same name and capacity needs to make the same decisions."""
        return {"kind": np.array(self.name), "capacity": np.array(self.capacity)}

    def restore(self, state: Arrays) -> None:
        """Restore ``state``; raises ValueError if it comes from a keeper with a different name or capacity."""
        saved = (
            str(state["kind"]) if "kind" in state else "none",
            int(state["capacity"]) if "capacity" in state else 0,
        )
        if saved != (self.name, self.capacity):
            raise ValueError(
                f"state of keeper {saved[0]} with {saved[1]} slots, expected {self.name} with {self.capacity}"
            )
