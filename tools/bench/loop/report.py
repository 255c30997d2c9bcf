"""Rows and checks of ``onrig bench loop``, and what its JSON has beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.record import STAGES
from onrig.tools.bench.loop.misses import Explained, LoopMiss, Stalls, as_row
from onrig.tools.bench.loop.plan import CYCLICTEST
from onrig.tools.bench.loop.sentinel import Seen
from onrig.tools.bench.loop.tally import DEVICE_CLOCK, HOST_CLOCK, LATENESS, NEAR_TICKS, SENT_LATE, TICK, Tally
from onrig.tools.bench.report import Check, Fact, Report, Row, at_most
from onrig.tools.bench.timing import Ratio, ratio

LATENESS_RATIO: Final = 1.5
LATENESS_ALLOWANCE_US: Final = 60.0
TICK_US: Final = 200.0
TICK_RATE_HZ: Final = 500.0
"""At this rate the tick is held to TICK_US."""
FAULTLESS_RATE_HZ: Final = 200.0
"""At this rate and below, no miss is let pass that the machine has not caused by standing still."""


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


class LoopReport(Report, frozen=True):
    """The report of all benchmarks, with the misses one by one and the histograms behind the percentiles."""

    misses: list[LoopMiss]
    histograms: dict[str, dict[str, list[float]]]
    slices: dict[str, list[dict[str, float]]]


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
            misses += [as_row(found.rate_hz, name, e) for e in listed]
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
