"""Statistics of the rounds of ``onrig bench replay``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from onrig.tools.bench.replay.cases import Shape
from onrig.tools.bench.replay.subject import BOUND_SIGMAS, Verdict
from onrig.tools.bench.report import Check, check_at_least, check_at_most
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
    """Wall-clock tails, each from its quietest round to discount other load; None without spans."""
    busy: Tail | None
    """Processor-time tails, over all rounds."""


class MemorySize(NamedTuple):
    """Bytes per transition."""

    resident: float | None
    """Bytes by which the process grew."""
    arrays: float | None
    """Bytes of the memory's arrays."""


Figures = dict[FigureKey, Figure]
Weights = dict[FigureKey, MemorySize]


def figure(rounds: Sequence[Timings], beside_stalls: Sequence[Timings]) -> Figure:
    """Statistics over rounds; raises ValueError if none has a call."""
    everything = quantiles_us(_join(t.calls for t in rounds))
    if not beside_stalls:
        return Figure(everything, None, None)
    wall = Tail(_quietest(t.calls for t in beside_stalls), _quietest(t.spans for t in beside_stalls))
    busy_calls, busy_spans = (
        quantiles_us(_join(durations))
        for durations in ((t.busy_calls for t in beside_stalls), (t.busy_spans for t in beside_stalls))
    )
    return Figure(everything, wall, Tail(busy_calls.p9999, busy_spans.p9999))


def _quietest(rounds: Iterable[Sequence[int]]) -> float:
    return min(quantiles_us(of_round).p9999 for of_round in rounds if of_round)


def _join(rounds: Iterable[Sequence[int]]) -> list[int]:
    return [ns for of_round in rounds for ns in of_round]


_SMALL: Final = 10_000
_LARGE: Final = 1_000_000
_MAX_MEDIAN_US: Final = {
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
"""Onrig's cases, each with the peers' equivalent."""
_OVERHEAD_BYTES: Final = 512 * 1024
"""Allowed growth of the process beyond the arrays, for allocator overhead."""


def verdict_checks(verdicts: Iterable[tuple[str, Verdict]]) -> list[Check]:
    """Return one check per library and kind of draw: distance of the chi-square statistic in sigmas."""
    checks = []
    for package, v in verdicts:
        name = f"test of draws: {package} {v.kind}, deviation of chi-square in sigmas at most"
        checks.append(Check(name, round(abs(v.sigmas), 2), BOUND_SIGMAS, v.passed))
    return checks


def speed_checks(figures: Figures, shape: Shape) -> list[Check]:
    """Return the bounds on time for one shape."""

    def median_us(case: str, capacity: int, package: str = "onrig") -> float | None:
        figure_ = figures.get(FigureKey(case, shape, capacity, package))
        return None if figure_ is None else figure_.all.p50

    checks = []
    for (case, capacity), bound in _MAX_MEDIAN_US.items():
        ours = median_us(case, capacity)
        if ours is not None:
            checks.append(check_at_most(f"{case}, {shape}, {capacity}: p50 us at most", ours, bound))
    for case, theirs, ratio in _FASTER_THAN_CPPRB:
        ours, cpprb = median_us(case, _SMALL), median_us(theirs, _SMALL, "cpprb")
        if ours and cpprb:
            checks.append(
                check_at_least(f"{case}, {shape}, {_SMALL}: times faster than cpprb at least", cpprb / ours, ratio)
            )
    for case, theirs in _CYCLES:
        ours = median_us(case, _SMALL)
        peers = [
            f.all.p50 for key, f in figures.items() if key[:3] == (theirs, shape, _SMALL) and key.package != "onrig"
        ]
        if ours and peers:
            name = f"{case}, {shape}, {_SMALL}: times faster than the fastest peer at least"
            checks.append(check_at_least(name, min(peers) / ours, 1.0))
    return checks + _tail_checks(figures, shape)


def _tail_checks(figures: Figures, shape: Shape) -> list[Check]:
    checks = []
    for key, f in figures.items():
        if key.package != "onrig" or key.shape != shape or key.case not in _INSERTS:
            continue
        for clock, tail in (("", f.wall), (" of processor time", f.busy)):
            if tail is not None:
                name = f"{key.case}, {shape}, {key.capacity}: p99.99 us{clock} at most the stall floor's plus 50"
                checks.append(check_at_most(name, tail.calls, tail.spans + _STALL_MARGIN_US))
    return checks


_META_BYTES = 16
"""Exploration, episode, step and meta word of a transition."""


def memory_checks(weights: Weights) -> list[Check]:
    """Return the bounds on bytes per transition."""
    checks = []
    for key, weight in weights.items():
        if key.package != "onrig" or key.case != "memory FIFO[Uniform]":
            continue
        bound = key.shape.raw_bytes + _META_BYTES
        subject = f"FIFO, {key.shape}, {key.capacity}: bytes per transition"
        if weight.arrays is not None:
            checks.append(check_at_most(f"{subject} of arrays at most raw + {_META_BYTES}", weight.arrays, bound))
        if weight.resident is not None:
            with_pages = bound + _OVERHEAD_BYTES / key.capacity
            checks.append(
                check_at_most(
                    f"{subject} by the process's growth at most raw + {_META_BYTES}", weight.resident, with_pages
                )
            )
    return checks
