"""Rows, checks and tables of ``onrig bench loop``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.record import STAGES
from onrig.tools.benchmarks.loop_plan import CYCLICTEST
from onrig.tools.benchmarks.loop_sentinel import Seen
from onrig.tools.benchmarks.loop_stalls import Explained, Stalls
from onrig.tools.benchmarks.loop_tally import DEVICE_CLOCK, HOST_CLOCK, LATENESS, NEAR_TICKS, SENT_LATE, TICK, Tally
from onrig.tools.benchmarks.report import Check, Fact, Report, Row, at_most

LATENESS_RATIO: Final = 1.5
LATENESS_ALLOWANCE_US: Final = 60.0
TICK_US: Final = 200.0
TICK_RATE_HZ: Final = 500.0
"""At this rate the tick is held to TICK_US."""
FAULTLESS_RATE_HZ: Final = 200.0
"""At this rate and below, no miss is let pass that the machine has not caused by standing still."""
_T_975: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t at 97.5 % for 1, 2, ... degrees of freedom."""


class SliceFigures(NamedTuple):
    """p50 and p99 of one slice, in µs."""

    lateness_p50: float
    lateness_p99: float
    tick_p50: float
    tick_p99: float


class OfRig(NamedTuple):
    """What one variant of the rig came to at one rate."""

    name: str
    tally: Tally
    slices: Sequence[SliceFigures]
    realtime: bool
    ended: Sequence[str] = ()
    """Runs that ended by themselves while they were measured: which, and why."""


class AtRate(NamedTuple):
    """Everything measured at one rate."""

    rate_hz: float
    seconds: float
    rigs: Sequence[OfRig]
    """The first is the one that the others are variants of."""
    cyclictest: DurationHistogram | None
    sentinels: Sequence[Seen]
    sentinel_s: float
    """How long the sentinels watched."""


class Ratio(NamedTuple):
    """How much larger a figure is in one kind of slice than in the other, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def has_one(self) -> bool:
        """Whether no difference at all is in the interval."""
        return self.low <= 1.0 <= self.high


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


class LoopReport(Report, frozen=True):
    """The report of all benchmarks, with the misses one by one and the histograms behind the percentiles."""

    misses: list[LoopMiss]
    histograms: dict[str, dict[str, list[float]]]
    slices: dict[str, list[dict[str, float]]]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Ratio of geometric means, by Welch's t interval on the logarithms; an infinite one from single slices.

    Not a number where there is no slice to compare.
    """
    if not (numerators and denominators):
        return Ratio(math.nan, math.nan, math.nan)
    logs = [[math.log(max(v, 1e-9)) for v in values] for values in (numerators, denominators)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    if min(map(len, logs)) < 2:
        return Ratio(math.exp(difference), 0.0, math.inf)
    parts = [statistics.variance(values) / len(values) for values in logs]
    error = math.sqrt(sum(parts))
    freedom = 1.0
    if error > 0:
        freedom = error**4 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, logs, strict=True))
    # The interval is the wider one of whole degrees of freedom; beyond the table it is nearly the normal law's.
    t = _T_975[max(0, int(freedom) - 1)] if int(freedom) <= len(_T_975) else 2.12
    return Ratio(*(math.exp(difference + k * t * error) for k in (0, -1, 1)))


def row(case: str, subject: str, histogram: DurationHistogram) -> Row | None:
    """One row in µs; None where nothing was counted."""
    if not histogram.count:
        return None
    figures = histogram.summary_us()
    return Row(case, subject, "us", *(round(figures[name] or 0.0, 2) for name in ("p50", "p99", "p999", "max")))


def explained(found: AtRate) -> dict[str, list[Explained]]:
    """Every miss of every variant of the rig, with the stall that was seen at that time."""
    stalls = Stalls(found.sentinels, period_ns(found.rate_hz))
    return {rig.name: [stalls.explain(m) for m in rig.tally.missed] for rig in found.rigs}


def period_ns(rate_hz: float) -> int:
    """Of a loop at that rate."""
    return round(1e9 / rate_hz)


def rows_of(found: AtRate) -> list[Row]:
    """All rows of one rate."""
    rows: list[Row | None] = []
    at = f"{found.rate_hz:g} Hz: "
    for rig in found.rigs:
        rows.append(row(f"{at}lateness", rig.name, rig.tally.histograms["lateness"]))
    if found.cyclictest is not None:
        rows.append(row(f"{at}lateness", CYCLICTEST, found.cyclictest))
    rows += [row(f"{at}{s.name}", "machine", s.histogram()) for s in found.sentinels]
    for rig in found.rigs:
        of = rig.tally.histograms
        names = ["tick", *STAGES, SENT_LATE, HOST_CLOCK, DEVICE_CLOCK]
        if rig.tally.swaps:
            names += [*LATENESS[1:], *TICK[1:]]
        rows += [row(f"{at}{'stage ' * (name in STAGES)}{name}", rig.name, of[name]) for name in names]
    return [r for r in rows if r is not None]


def checks_of(found: AtRate) -> list[Check]:
    """What is held against the rig at one rate."""
    at = f"{found.rate_hz:g} Hz: "
    base = found.rigs[0]
    misses = explained(found)
    checks = []
    p99 = base.tally.histograms["lateness"].percentile_us(99) or 0.0
    if found.cyclictest is not None:
        theirs = found.cyclictest.percentile_us(99) or 0.0
        bound = max(LATENESS_RATIO * theirs, theirs + LATENESS_ALLOWANCE_US)
        checks.append(at_most(f"{at}lateness p99, us (1.5 x cyclictest's or 60 us above)", p99, bound))
    for rig in found.rigs:
        whose = "" if rig is base else f"{rig.name}: "
        ours = sum(e.missed.frames for e in misses[rig.name] if e.is_program)
        checks.append(at_most(f"{at}{whose}ticks missed through the program", ours, 0))
        if found.rate_hz <= FAULTLESS_RATE_HZ:
            others = sum(e.missed.frames for e in misses[rig.name] if not (e.is_machine or e.is_line))
            checks.append(at_most(f"{at}{whose}ticks missed outside stalls of the machine", others, 0))
        if rig.ended:
            checks.append(at_most(f"{at}{whose}runs that ended by themselves", len(rig.ended), 0))
        if rig.tally.lost:
            checks.append(at_most(f"{at}{whose}records that the benchmark did not catch", rig.tally.lost, 0))
        if rig.tally.unknown:
            checks.append(at_most(f"{at}{whose}frames whose sending the twin did not tell", rig.tally.unknown, 0))
    if found.rate_hz == TICK_RATE_HZ:
        checks.append(at_most(f"{at}tick p99, us", base.tally.histograms["tick"].percentile_us(99) or 0.0, TICK_US))
    if base.tally.swaps:
        near, far = (base.tally.histograms[name].percentile_us(99) or 0.0 for name in LATENESS[1:])
        bound = max(LATENESS_RATIO * far, far + LATENESS_ALLOWANCE_US)
        checks.append(at_most(f"{at}lateness p99 within {NEAR_TICKS} ticks of a swap, us", near, bound))
        at_swaps = sum(
            e.missed.frames for e in misses[base.name] if e.missed.near_swap and not (e.is_machine or e.is_line)
        )
        checks.append(at_most(f"{at}ticks missed within {NEAR_TICKS} ticks of a swap, no stall", at_swaps, 0))
    for rig in found.rigs[1:]:
        for what in ("tick", "lateness"):
            r = variant_ratio(base, rig, f"{what}_p99")
            name = f"{at}{what} p99 of '{base.name}' over '{rig.name}': 1 is in its interval"
            checks.append(Check(name, round(r.value, 4), 1.0, r.has_one))
    return checks


def variant_ratio(base: OfRig, other: OfRig, figure: str) -> Ratio:
    """The base's figure over the variant's, slice by slice."""
    return ratio([getattr(s, figure) for s in base.slices], [getattr(s, figure) for s in other.slices])


def build(machine: dict[str, Fact], measured: Sequence[AtRate]) -> LoopReport:
    """Put everything into the report."""
    rows, checks, misses = [], [], []
    histograms: dict[str, dict[str, list[float]]] = {}
    slices: dict[str, list[dict[str, float]]] = {}
    floor = 0.0
    for found in measured:
        rows += rows_of(found)
        checks += checks_of(found)
        at = f"{found.rate_hz:g} Hz"
        for name, listed in explained(found).items():
            misses += [_miss(found.rate_hz, name, e) for e in listed]
        for rig in found.rigs:
            for what in ("lateness", "tick"):
                histograms[f"{at}: {what}, {rig.name}"] = _bins(rig.tally.histograms[what])
            slices[f"{at}: {rig.name}"] = [{k: round(v, 2) for k, v in s._asdict().items()} for s in rig.slices]
        if found.cyclictest is not None:
            histograms[f"{at}: lateness, {CYCLICTEST}"] = _bins(found.cyclictest)
        for seen in found.sentinels:
            if seen.kind == "timer":
                floor = max(floor, seen.histogram().percentile_us(99.99) or 0.0)
    return LoopReport(machine, floor, rows, checks, misses, histograms, slices)


def _bins(histogram: DurationHistogram) -> dict[str, list[float]]:
    edges, counts = histogram.bins()
    filled = counts > 0
    return {
        "from_us": edges[:-1][filled].round(3).tolist(),
        "to_us": edges[1:][filled].round(3).tolist(),
        "count": counts[filled].tolist(),
    }


def _miss(rate_hz: float, subject: str, e: Explained) -> LoopMiss:
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
