"""The section ``selection`` of a run: which experiences to keep and which to replay."""

from __future__ import annotations

from typing import Literal

import msgspec


class Synthetic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Experiences replaced by ones recomputed with the twin's plant, for more diversity (000 §6.2.1, §6.3.1).

    See ``onrig.sim.synthetic`` for the law.
    """

    states: float = 0.0
    """Fraction of the memory whose state is drawn anew; the action is then the policy's there, exploration included."""
    actions: float = 0.0
    """Fraction of the memory whose action is drawn anew."""
    refresh: float = 1.0
    """Probability that a synthetic experience makes room when its turn to be overwritten comes, else it stays."""


class Weighted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Importance of what it is said of, 1 for everything else."""

    weight: float


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which experiences to keep and which to replay, in the notation of 000 §5.2."""

    strategy: str = "FIFO[Uniform]"
    capacity: int | None = None
    """In experiences; by default 10 000 (000 §4), or all of the run's for FULL."""
    capacity_bytes: int | None = None
    """Instead of ``capacity``: as many experiences as fit, with all that keeping them in order takes."""
    write_probability: float = 1.0
    """Chance of each experience to be offered to the memory at all ([DE] of 000 §6.4: 50 Hz over the rate)."""
    synthetic: Synthetic | None = None
    intervened: Literal["keep", "drop"] | Weighted = "keep"
    """Experiences in which the shield acted: kept, left out of the memory, or kept with this weight in the critic's
    loss.  Their action is the executed one in any case."""
