"""Missed ticks, and which of them fall into stalls of the machine, as sentinels saw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.record import Miss
from onrig.tools.bench.loop.sentinel import NOTED_NS, Seen
from onrig.tools.bench.loop.tally import Missed

_SHARE: Final = 0.25
"""Of a period: a shorter stall cannot have cost a tick that had the rest of the period left."""


class Explained(NamedTuple):
    """A miss, and the machine's part in it."""

    missed: Missed
    stall_ms: float
    """The longest stall at that time; 0 where no sentinel saw one."""
    line_ms: float = 0.0
    """The longest that a byte took through a pseudo-terminal at that time; 0 where it was quick."""

    @property
    def is_machine(self) -> bool:
        """Whether the machine stood still at that time."""
        return self.stall_ms > 0

    @property
    def is_line(self) -> bool:
        """Whether it ran, but its kernel was slow to hand bytes on."""
        return self.line_ms > 0 and not self.is_machine

    @property
    def is_program(self) -> bool:
        """Whether it is to be put down to the program: its own work ran over, and no stall was seen."""
        return self.missed.cause is Miss.PROGRAM and not self.is_machine


class Stalls:
    """What the sentinels saw that is long enough to cost a tick at a given period."""

    def __init__(self, seen: Sequence[Seen], period_ns: int) -> None:
        least = max(NOTED_NS, _SHARE * period_ns)
        self._spans = {
            kind: np.array(
                sorted(span for s in seen if s.kind == kind for span in s.stalls if span[1] - span[0] >= least),
                np.int64,
            ).reshape(-1, 2)
            for kind in ("timer", "line")
        }
        self._period_ns = period_ns

    def explain(self, missed: Missed) -> Explained:
        """Look between one period before the first missed frame was due and what came in its place."""
        longest = []
        for due, woken in (self._spans[kind].T for kind in ("timer", "line")):
            there = (woken >= missed.due_ns - self._period_ns) & (due <= missed.received_ns)
            longest.append(int((woken - due)[there].max()) / 1e6 if there.any() else 0.0)
        return Explained(missed, *longest)

    def share_of(self, measured_s: float) -> float:
        """Share of the time, at most, in which a miss would be put down to a stall by mere coincidence."""
        spans = np.concatenate(list(self._spans.values()))
        reach = (spans[:, 1] - spans[:, 0]) + 2 * self._period_ns
        return min(1.0, float(reach.sum()) / (measured_s * 1e9)) if measured_s > 0 else 0.0


class LoopMiss(msgspec.Struct, frozen=True):
    """A missed tick as the JSON has it."""

    rate_hz: float
    subject: str
    frames: int
    cause: str
    due_ns: int
    delay_us: float
    """From when the first missed frame was due until the frame came that was answered."""
    stall_ms: float
    line_ms: float
    near_swap: bool
    tick_before_us: float
    longest_stage: str
    """Of the tick before."""


def as_row(rate_hz: float, subject: str, e: Explained) -> LoopMiss:
    """Put a miss into the shape of the JSON."""
    m = e.missed
    return LoopMiss(
        rate_hz,
        subject,
        m.frames,
        m.cause.name.lower(),
        m.due_ns,
        round((m.received_ns - m.due_ns) / 1000, 1),
        round(e.stall_ms, 3),
        round(e.line_ms, 3),
        m.near_swap,
        round(m.tick_before_us, 1),
        m.longest_stage,
    )
