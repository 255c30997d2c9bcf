"""Statistics of the rounds of ``onrig bench replay``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from onrig.tools.bench.replay.cases import Shape
from onrig.tools.bench.replay.subject import BOUND_SIGMAS, Verdict
from onrig.tools.bench.report import Check, at_least, at_most
from onrig.tools.bench.timing import Quantiles, Timings, quantiles_us


class FigureKey(NamedTuple):
    """Key of a figure."""

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
    """Statistics over the calls of all rounds."""
    wall: Tail | None
    """Wall-clock tails, each in its quietest round, to discount other load. None if no spans were taken."""
    busy: Tail | None
    """Processor-time tails, over all rounds."""


class MemorySize(NamedTuple):
    """Bytes per transition."""

    resident: float | None
    """Bytes by which the process grew."""
    arrays: float | None
    """Bytes of its arrays."""


Figures = dict[FigureKey, Figure]
Weights = dict[FigureKey, MemorySize]


def figure(rounds: Sequence[Timings], beside_stalls: Sequence[Timings]) -> Figure:
    """Statistics over rounds; ValueError if none has a call."""
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


_SMALL: Final = 10_000
_LARGE: Final = 1_000_000
_US: Final = {
    ("insert FIFO", _SMALL): 2.0,
    **{(f"insert {keeper}", _SMALL): 4.0 for keeper in ("Resv", "TDE(1.0)", "Expl(1.0)", "MinError")},
    **{(f"insert {keeper}", _LARGE): 8.0 for keeper in ("Resv", "TDE(1.0)", "Expl(1.0)", "MinError")},
    ("update 16 TDE(1.0)", _SMALL): 30.0,
    ("update 16 PER", _SMALL): 30.0,
    ("sample 16 Uniform", _SMALL): 6.0,
    ("sample 16 PER", _SMALL): 8.0,
}
"""Upper bounds on the median, in microseconds."""
_INSERTS: Final = tuple(f"insert {keeper}" for keeper in ("FIFO", "FULL", "Resv", "TDE(1.0)", "Expl(1.0)", "MinError"))
_STALL_MARGIN_US: Final = 50.0
_FASTER_THAN_CPPRB: Final = (("insert FIFO", "insert FIFO", 5.0), ("sample 16 PER", "sample 16 PropPER", 1.0))
_CYCLES: Final = (
    ("cycle FIFO[Uniform]", "cycle FIFO[Uniform]"),
    ("cycle FIFO[PER]", "cycle FIFO[PropPER+IS]"),
    ("cycle TDE(1.0)[PER]", "cycle FIFO[PropPER+IS]"),
    ("cycle Expl(1.0)[PER]", "cycle FIFO[PropPER+IS]"),
)
"""Onrig's case, and the peers' equivalent."""
_PAGES_BYTES: Final = 512 * 1024
"""Allowed growth of the process beyond the arrays: allocator overhead."""


def verdict_checks(verdicts: Iterable[tuple[str, Verdict]]) -> list[Check]:
    """Return one check per library and kind of draw: distance of the chi-square statistic in sigmas."""
    checks = []
    for package, v in verdicts:
        name = f"gate: {package} {v.kind} draws by its distribution, chi-square off by at most, sigmas"
        checks.append(Check(name, round(abs(v.sigmas), 2), BOUND_SIGMAS, v.passed))
    return checks


def speed_checks(figures: Figures, shape: Shape) -> list[Check]:
    """Return the bounds on time for one shape."""

    def at(case: str, capacity: int, package: str = "onrig") -> float | None:
        found = figures.get(FigureKey(case, shape, capacity, package))
        return None if found is None else found.all.p50

    checks = []
    for (case, capacity), bound in _US.items():
        ours = at(case, capacity)
        if ours is not None:
            checks.append(at_most(f"{case}, {shape}, {capacity}: p50 us at most", ours, bound))
    for case, theirs, ratio in _FASTER_THAN_CPPRB:
        ours, cpprb = at(case, _SMALL), at(theirs, _SMALL, "cpprb")
        if ours and cpprb:
            checks.append(at_least(f"{case}, {shape}, {_SMALL}: times faster than cpprb at least", cpprb / ours, ratio))
    for case, theirs in _CYCLES:
        ours = at(case, _SMALL)
        peers = [
            f.all.p50
            for place, f in figures.items()
            if place[:3] == (theirs, shape, _SMALL) and place.package != "onrig"
        ]
        if ours and peers:
            name = f"{case}, {shape}, {_SMALL}: times faster than the fastest peer at least"
            checks.append(at_least(name, min(peers) / ours, 1.0))
    return checks + _tail_checks(figures, shape)


def _tail_checks(figures: Figures, shape: Shape) -> list[Check]:
    checks = []
    for place, f in figures.items():
        if place.package != "onrig" or place.shape != shape or place.case not in _INSERTS:
            continue
        for clock, tail in (("", f.wall), (" of processor time", f.busy)):
            if tail is not None:
                name = f"{place.case}, {shape}, {place.capacity}: p99.99 us{clock} at most the stall floor's plus 50"
                checks.append(at_most(name, tail.calls, tail.spans + _STALL_MARGIN_US))
    return checks


_BESIDE_BYTES = 16
"""Exploration, episode, step and meta word of a transition."""


def memory_checks(weights: Weights) -> list[Check]:
    """Return the bounds on bytes per transition."""
    checks = []
    for place, weight in weights.items():
        if place.package != "onrig" or place.case != "memory FIFO[Uniform]":
            continue
        bound = place.shape.raw_bytes + _BESIDE_BYTES
        where = f"FIFO, {place.shape}, {place.capacity}: bytes per transition"
        if weight.arrays is not None:
            checks.append(at_most(f"{where} of arrays at most raw + {_BESIDE_BYTES}", weight.arrays, bound))
        if weight.resident is not None:
            with_pages = bound + _PAGES_BYTES / place.capacity
            checks.append(
                at_most(f"{where} by the process's growth at most raw + {_BESIDE_BYTES}", weight.resident, with_pages)
            )
    return checks
