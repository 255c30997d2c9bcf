"""What the rounds of ``onrig bench replay`` came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onrig.tools.benchmarks.cases import Shape
from onrig.tools.benchmarks.messages import Timings
from onrig.tools.benchmarks.timing import Quantiles, quantiles_us


class Place(NamedTuple):
    """Where a figure belongs."""

    case: str
    shape: Shape
    capacity: int
    package: str


class Tail(NamedTuple):
    """p99.99 of calls and of the spans of clock reads between them, in microseconds."""

    calls: float
    spans: float


class Figure(NamedTuple):
    """All rounds of one case and one library, in microseconds."""

    all: Quantiles
    """Over the calls of all rounds."""
    wall: Tail | None
    """By the clock, each in its quietest round: a loud neighbour does not decide.  None where no spans were taken."""
    busy: Tail | None
    """By the processor's time, over all rounds."""


class Weight(NamedTuple):
    """Bytes per transition."""

    resident: float | None
    """By which the process grew."""
    arrays: float | None
    """Of the arrays held."""


Figures = dict[Place, Figure]
Weights = dict[Place, Weight]


def figure(rounds: Sequence[Timings], beside_stalls: Sequence[Timings]) -> Figure:
    """Put rounds together; ValueError when there is no call in any of them."""
    everything = quantiles_us(_joined(t.calls for t in rounds))
    if not beside_stalls:
        return Figure(everything, None, None)
    wall = Tail(_quietest(t.calls for t in beside_stalls), _quietest(t.spans for t in beside_stalls))
    busy_calls, busy_spans = (
        quantiles_us(_joined(durations))
        for durations in ((t.busy_calls for t in beside_stalls), (t.busy_spans for t in beside_stalls))
    )
    return Figure(everything, wall, Tail(busy_calls.p9999, busy_spans.p9999))


def _quietest(rounds: Iterable[Sequence[int]]) -> float:
    return min(quantiles_us(of_round).p9999 for of_round in rounds if of_round)


def _joined(rounds: Iterable[Sequence[int]]) -> list[int]:
    return [ns for of_round in rounds for ns in of_round]
