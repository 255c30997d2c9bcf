"""What the rounds of ``onrig bench replay`` came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tools.benchmarks.cases import Shape
from tools.benchmarks.timing import Quantiles, quantiles_us


class Place(NamedTuple):
    """Where a figure belongs."""

    case: str
    shape: Shape
    capacity: int
    package: str


class Figure(NamedTuple):
    """All rounds of one case and one library, in microseconds."""

    all: Quantiles
    """Over the calls of all rounds."""
    tail: float
    """Median over the rounds of the p99.99 of calls: a minute in which a neighbour was loud does not decide."""
    stalls: float | None
    """The same of the spans of clock reads between the calls; None where there were none."""


class Weight(NamedTuple):
    """Bytes per transition."""

    resident: float | None
    """By which the process grew."""
    arrays: float | None
    """Of the arrays held."""


Figures = dict[Place, Figure]
Weights = dict[Place, Weight]


def figure(calls: Sequence[Sequence[int]], spans: Sequence[Sequence[int]]) -> Figure:
    """Put rounds of durations (ns) together; ValueError when there is none in any round."""
    everything = quantiles_us([ns for of_round in calls for ns in of_round])
    tail = statistics.median(quantiles_us(of_round).p9999 for of_round in calls if of_round)
    quiet = [quantiles_us(of_round).p9999 for of_round in spans if of_round]
    return Figure(everything, tail, statistics.median(quiet) if quiet else None)
