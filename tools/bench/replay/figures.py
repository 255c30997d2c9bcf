"""Statistics and checks of ``onrig bench replay``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from onrig.tools.bench.replay.cases import Shape
from onrig.tools.bench.replay.subject import BOUND_SIGMAS, Verdict
from onrig.tools.bench.report import Check, check_at_least, check_at_most
from onrig.tools.bench.timing import Quantiles, Timings, quantiles_us


class FigureKey(NamedTuple):
    """Case, shape, capacity and library of a figure."""

    case: str
    shape: Shape
    capacity: int
    package: str


class Tail(NamedTuple):
    """p99.99 of the calls and of the spans of clock reads between them (µs)."""

    calls: float
    spans: float


class Figure(NamedTuple):
    """Statistics of one case and library, over all rounds (µs)."""

    calls: Quantiles
    """Percentiles of the calls of all rounds."""
    wall_tail: Tail | None
    """Lowest wall-clock tails of any round, to exclude other load; None if no spans were timed."""
    cpu_tail: Tail | None
    """Processor-time tails over all rounds; None if no spans were timed."""


class MemorySize(NamedTuple):
    """Bytes per transition."""

    resident: float | None
    """Bytes by which the process grew."""
    arrays: float | None
    """Bytes of the memory's arrays."""


Figures = dict[FigureKey, Figure]
MemorySizes = dict[FigureKey, MemorySize]


def summarize_rounds(rounds: Sequence[Timings], stall_rounds: Sequence[Timings]) -> Figure:
    """Summarise the rounds of a case. Raises ValueError if no round contains a call."""
    calls = quantiles_us(_concatenate(t.calls for t in rounds))
    if not stall_rounds:
        return Figure(calls, None, None)
    wall_tail = Tail(_lowest_p9999(t.calls for t in stall_rounds), _lowest_p9999(t.spans for t in stall_rounds))
    busy_calls, busy_spans = (
        quantiles_us(_concatenate(durations))
        for durations in ((t.busy_calls for t in stall_rounds), (t.busy_spans for t in stall_rounds))
    )
    return Figure(calls, wall_tail, Tail(busy_calls.p9999, busy_spans.p9999))


def _lowest_p9999(rounds: Iterable[Sequence[int]]) -> float:
    return min(quantiles_us(durations).p9999 for durations in rounds if durations)


def _concatenate(rounds: Iterable[Sequence[int]]) -> list[int]:
    return [ns for durations in rounds for ns in durations]


_SMALL_CAPACITY: Final = 10_000
_LARGE_CAPACITY: Final = 1_000_000
_MAX_MEDIAN_US: Final = {
    ("insert FIFO", _SMALL_CAPACITY): 2.0,
    **{(f"insert {keeper}", _SMALL_CAPACITY): 4.0 for keeper in ("Resv", "TDE(1.0)", "Expl(1.0)", "MinError")},
    **{(f"insert {keeper}", _LARGE_CAPACITY): 8.0 for keeper in ("Resv", "TDE(1.0)", "Expl(1.0)", "MinError")},
    ("update 16 TDE(1.0)", _SMALL_CAPACITY): 30.0,
    ("update 16 PER", _SMALL_CAPACITY): 30.0,
    ("sample 16 Uniform", _SMALL_CAPACITY): 6.0,
    ("sample 16 PER", _SMALL_CAPACITY): 8.0,
}
"""Upper bounds on the median, in microseconds."""
_INSERT_CASES: Final = tuple(
    f"insert {keeper}" for keeper in ("FIFO", "FULL", "Resv", "TDE(1.0)", "Expl(1.0)", "MinError")
)
_STALL_MARGIN_US: Final = 50.0
_FASTER_THAN_CPPRB: Final = (("insert FIFO", "insert FIFO", 5.0), ("sample 16 PER", "sample 16 PropPER", 1.0))
_CYCLE_CASES: Final = (
    ("cycle FIFO[Uniform]", "cycle FIFO[Uniform]"),
    ("cycle FIFO[PER]", "cycle FIFO[PropPER+IS]"),
    ("cycle TDE(1.0)[PER]", "cycle FIFO[PropPER+IS]"),
    ("cycle Expl(1.0)[PER]", "cycle FIFO[PropPER+IS]"),
)
"""Onrig's cases, each with the peers' equivalent case."""
_OVERHEAD_BYTES: Final = 512 * 1024
"""Allowed growth of the process beyond the arrays, to cover the allocator's overhead."""


def verdict_checks(verdicts: Iterable[tuple[str, Verdict]]) -> list[Check]:
    """Return one check per library and kind, of the deviation of the chi-square statistic in sigmas."""
    checks = []
    for package, v in verdicts:
        name = f"test of draws: {package} {v.kind}, deviation of chi-square in sigmas, at most"
        checks.append(Check(name, round(abs(v.sigmas), 2), BOUND_SIGMAS, v.passed))
    return checks


def speed_checks(figures: Figures, shape: Shape) -> list[Check]:
    """Return the checks on times for one shape."""

    def median_us(case: str, capacity: int, package: str = "onrig") -> float | None:
        figure = figures.get(FigureKey(case, shape, capacity, package))
        return None if figure is None else figure.calls.p50

    checks = []
    for (case, capacity), bound in _MAX_MEDIAN_US.items():
        onrig_us = median_us(case, capacity)
        if onrig_us is not None:
            checks.append(check_at_most(f"{case}, {shape}, {capacity}: p50 us, at most", onrig_us, bound))
    for case, peer_case, ratio in _FASTER_THAN_CPPRB:
        onrig_us, cpprb_us = median_us(case, _SMALL_CAPACITY), median_us(peer_case, _SMALL_CAPACITY, "cpprb")
        if onrig_us and cpprb_us:
            checks.append(
                check_at_least(
                    f"{case}, {shape}, {_SMALL_CAPACITY}: speed-up over cpprb, at least", cpprb_us / onrig_us, ratio
                )
            )
    for case, peer_case in _CYCLE_CASES:
        onrig_us = median_us(case, _SMALL_CAPACITY)
        peers = [
            f.calls.p50
            for key, f in figures.items()
            if key[:3] == (peer_case, shape, _SMALL_CAPACITY) and key.package != "onrig"
        ]
        if onrig_us and peers:
            name = f"{case}, {shape}, {_SMALL_CAPACITY}: speed-up over the fastest peer, at least"
            checks.append(check_at_least(name, min(peers) / onrig_us, 1.0))
    return checks + _tail_checks(figures, shape)


def _tail_checks(figures: Figures, shape: Shape) -> list[Check]:
    checks = []
    for key, f in figures.items():
        if key.package != "onrig" or key.shape != shape or key.case not in _INSERT_CASES:
            continue
        for clock, tail in (("", f.wall_tail), (" of processor time", f.cpu_tail)):
            if tail is not None:
                name = f"{key.case}, {shape}, {key.capacity}: p99.99 us{clock}, at most 50 us above the stall floor"
                checks.append(check_at_most(name, tail.calls, tail.spans + _STALL_MARGIN_US))
    return checks


_META_BYTES = 16
"""Size of a transition's exploration, episode, step and meta word."""


def memory_checks(sizes: MemorySizes) -> list[Check]:
    """Return the checks on the number of bytes per transition."""
    checks = []
    for key, size in sizes.items():
        if key.package != "onrig" or key.case != "memory FIFO[Uniform]":
            continue
        bound = key.shape.raw_bytes + _META_BYTES
        subject = f"FIFO, {key.shape}, {key.capacity}: bytes per transition"
        if size.arrays is not None:
            checks.append(check_at_most(f"{subject} in arrays, at most raw + {_META_BYTES}", size.arrays, bound))
        if size.resident is not None:
            bound_with_overhead = bound + _OVERHEAD_BYTES / key.capacity
            checks.append(
                check_at_most(
                    f"{subject} by process growth, at most raw + {_META_BYTES}", size.resident, bound_with_overhead
                )
            )
    return checks
