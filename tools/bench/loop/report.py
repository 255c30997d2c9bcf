"""Rows, checks, JSON, tables and plot of ``onrig bench loop``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.record import STAGES, Miss
from onrig.tools.bench.loop.plan import CYCLICTEST
from onrig.tools.bench.loop.sentinel import SentinelRecords
from onrig.tools.bench.loop.tally import (
    DEVICE_CLOCK_ERROR,
    HOST_CLOCK_ERROR,
    LATENESS_NAMES,
    NEAR_TICKS,
    SENT_LATE,
    TICK_NAMES,
    ExplainedMiss,
    LoopMiss,
    Stalls,
    Tally,
    loop_miss,
)
from onrig.tools.bench.report import Check, Fact, Report, Row, check_at_most, format_number
from onrig.tools.bench.timing import Ratio, ratio_of_means
from onrig.tools.quantity import format_duration
from onrig.tools.reports.style import BLACK, PALETTE, RED, new_figure, save_figure, set_title
from onrig.tools.terminal import align

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LATENESS_RATIO: Final = 1.5
LATENESS_ALLOWANCE_US: Final = 60.0
MAX_TICK_US: Final = 200.0
TICK_RATE_HZ: Final = 500.0
"""Rate at which the tick's p99 is checked against ``MAX_TICK_US``."""
FAULTLESS_RATE_HZ: Final = 200.0
"""Maximum rate at which a stall of the machine, or a delay of the line, must explain every miss."""


class SliceFigures(NamedTuple):
    """p50 and p99 of one slice (µs)."""

    lateness_p50: float
    lateness_p99: float
    tick_p50: float
    tick_p99: float


class RigResults(NamedTuple):
    """Results of one variant of the rig at one rate."""

    name: str
    tally: Tally
    slices: Sequence[SliceFigures]
    is_realtime: bool
    end_reasons: Sequence[str] = ()
    """Reasons why runs ended during the measurement."""


class RateResults(NamedTuple):
    """All results at one rate."""

    rate_hz: float
    seconds: float
    rigs: Sequence[RigResults]
    """Results of the base rig, followed by those of its variants."""
    cyclictest: DurationHistogram | None
    sentinels: Sequence[SentinelRecords]
    sentinel_s: float
    """Time during which the sentinels observed the machine."""


class LoopReport(Report, frozen=True):
    """Report that also contains all misses and the histograms behind the percentiles."""

    misses: list[LoopMiss]
    histograms: dict[str, dict[str, list[float]]]
    slices: dict[str, list[dict[str, float]]]


def percentile_row(case: str, subject: str, histogram: DurationHistogram) -> Row | None:
    """Return a row of percentiles in µs, or None if there are no counts."""
    if not histogram.count:
        return None
    percentiles = histogram.summary_us()
    return Row(case, subject, "us", *(round(percentiles[name] or 0.0, 2) for name in ("p50", "p99", "p999", "max")))


def explain_misses(results: RateResults) -> dict[str, list[ExplainedMiss]]:
    """Attribute every miss of every variant to the stall observed at that time, if any."""
    stalls = Stalls(results.sentinels, period_ns(results.rate_hz))
    return {rig.name: [stalls.explain(m) for m in rig.tally.misses] for rig in results.rigs}


def period_ns(rate_hz: float) -> int:
    """Return the period of a loop."""
    return round(1e9 / rate_hz)


def build_rows(results: RateResults) -> list[Row]:
    """Return the rows of percentiles at one rate."""
    rows: list[Row | None] = []
    prefix = f"{results.rate_hz:g} Hz: "
    for rig in results.rigs:
        rows.append(percentile_row(f"{prefix}lateness", rig.name, rig.tally.histograms["lateness"]))
    if results.cyclictest is not None:
        rows.append(percentile_row(f"{prefix}lateness", CYCLICTEST, results.cyclictest))
    rows += [percentile_row(f"{prefix}{s.name}", "machine", s.histogram()) for s in results.sentinels]
    for rig in results.rigs:
        histograms = rig.tally.histograms
        names = ["tick", *STAGES, SENT_LATE, HOST_CLOCK_ERROR, DEVICE_CLOCK_ERROR]
        if rig.tally.swaps:
            names += [*LATENESS_NAMES[1:], *TICK_NAMES[1:]]
        rows += [
            percentile_row(f"{prefix}{'stage ' * (name in STAGES)}{name}", rig.name, histograms[name]) for name in names
        ]
    return [r for r in rows if r is not None]


def build_checks(results: RateResults) -> list[Check]:
    """Return the checks on the rig at one rate."""
    prefix = f"{results.rate_hz:g} Hz: "
    base_rig = results.rigs[0]
    misses = explain_misses(results)
    checks = []
    p99 = base_rig.tally.histograms["lateness"].percentile_us(99) or 0.0
    if results.cyclictest is not None:
        cyclictest_p99 = results.cyclictest.percentile_us(99) or 0.0
        bound = max(MAX_LATENESS_RATIO * cyclictest_p99, cyclictest_p99 + LATENESS_ALLOWANCE_US)
        checks.append(
            check_at_most(f"{prefix}lateness p99, us (at most 1.5 x that of cyclictest, or 60 us more)", p99, bound)
        )
    for rig in results.rigs:
        variant = "" if rig is base_rig else f"{rig.name}: "
        n_program_misses = sum(e.miss.frames for e in misses[rig.name] if e.caused_by_program)
        checks.append(check_at_most(f"{prefix}{variant}ticks missed by the program", n_program_misses, 0))
        if results.rate_hz <= FAULTLESS_RATE_HZ:
            n_unexplained = sum(
                e.miss.frames for e in misses[rig.name] if not (e.caused_by_machine or e.caused_by_line)
            )
            checks.append(check_at_most(f"{prefix}{variant}ticks missed outside machine stalls", n_unexplained, 0))
        if rig.end_reasons:
            checks.append(check_at_most(f"{prefix}{variant}runs that ended prematurely", len(rig.end_reasons), 0))
        if rig.tally.n_lost:
            checks.append(check_at_most(f"{prefix}{variant}records lost by the benchmark", rig.tally.n_lost, 0))
        if rig.tally.n_unknown:
            checks.append(
                check_at_most(f"{prefix}{variant}frames without a send time from the twin", rig.tally.n_unknown, 0)
            )
    if results.rate_hz == TICK_RATE_HZ:
        checks.append(
            check_at_most(
                f"{prefix}tick p99, us", base_rig.tally.histograms["tick"].percentile_us(99) or 0.0, MAX_TICK_US
            )
        )
    if base_rig.tally.swaps:
        near_swap_us, elsewhere_us = (
            base_rig.tally.histograms[name].percentile_us(99) or 0.0 for name in LATENESS_NAMES[1:]
        )
        bound = max(MAX_LATENESS_RATIO * elsewhere_us, elsewhere_us + LATENESS_ALLOWANCE_US)
        checks.append(
            check_at_most(f"{prefix}lateness p99 within {NEAR_TICKS} ticks of a swap, us", near_swap_us, bound)
        )
        n_at_swaps = sum(
            e.miss.frames
            for e in misses[base_rig.name]
            if e.miss.near_swap and not (e.caused_by_machine or e.caused_by_line)
        )
        checks.append(
            check_at_most(f"{prefix}ticks missed within {NEAR_TICKS} ticks of a swap, without a stall", n_at_swaps, 0)
        )
    for rig in results.rigs[1:]:
        for quantity in ("tick", "lateness"):
            r = variant_ratio(base_rig, rig, f"{quantity}_p99")
            name = f"{prefix}ratio of {quantity} p99, '{base_rig.name}' to '{rig.name}': interval includes 1"
            checks.append(Check(name, round(r.value, 4), 1.0, r.includes_one))
    return checks


def variant_ratio(base_rig: RigResults, variant: RigResults, figure: str) -> Ratio:
    """Return the ratio of the base rig's figure to a variant's, over their slices."""
    return ratio_of_means([getattr(s, figure) for s in base_rig.slices], [getattr(s, figure) for s in variant.slices])


def build_report(machine: dict[str, Fact], all_results: Sequence[RateResults]) -> LoopReport:
    """Build the report of all rates."""
    rows, checks, misses = [], [], []
    histograms: dict[str, dict[str, list[float]]] = {}
    slices: dict[str, list[dict[str, float]]] = {}
    floor_us = 0.0
    for results in all_results:
        rows += build_rows(results)
        checks += build_checks(results)
        rate = f"{results.rate_hz:g} Hz"
        for name, explained_misses in explain_misses(results).items():
            misses += [loop_miss(results.rate_hz, name, e) for e in explained_misses]
        for rig in results.rigs:
            for quantity in ("lateness", "tick"):
                histograms[f"{rate}: {quantity}, {rig.name}"] = _filled_bins(rig.tally.histograms[quantity])
            slices[f"{rate}: {rig.name}"] = [{k: round(v, 2) for k, v in s._asdict().items()} for s in rig.slices]
        if results.cyclictest is not None:
            histograms[f"{rate}: lateness, {CYCLICTEST}"] = _filled_bins(results.cyclictest)
        for records in results.sentinels:
            if records.kind == "timer":
                floor_us = max(floor_us, records.histogram().percentile_us(99.99) or 0.0)
    return LoopReport(machine, floor_us, rows, checks, misses, histograms, slices)


def _filled_bins(histogram: DurationHistogram) -> dict[str, list[float]]:
    edges, counts = histogram.bins()
    is_filled = counts > 0
    return {
        "from_us": edges[:-1][is_filled].round(3).tolist(),
        "to_us": edges[1:][is_filled].round(3).tolist(),
        "count": counts[is_filled].tolist(),
    }


_MAX_LISTED_MISSES: Final = 20
_BINS_PER_DECADE: Final = 20
_MIN_LATENESS_US: Final = 1.0


def misses_table(all_results: Sequence[RateResults]) -> str:
    """Return a table of missed ticks by cause, with the numbers of those that coincide with observed stalls."""
    header = [
        "missed ticks",
        "ticks",
        "swaps",
        "link",
        "program",
        "host",
        "in a stall",
        "line delayed",
        "by chance",
        "twin paused",
    ]
    cells = []
    for results in all_results:
        stalls = Stalls(results.sentinels, period_ns(results.rate_hz))
        for rig in results.rigs:
            t = rig.tally
            counts = [t.missed_ticks[cause] for cause in (Miss.LINK, Miss.PROGRAM, Miss.HOST)]
            misses = [stalls.explain(m) for m in t.misses]
            n_in_stall = sum(e.miss.frames for e in misses if e.caused_by_machine)
            n_line_delayed = sum(e.miss.frames for e in misses if e.caused_by_line)
            explained_counts = [n_in_stall, n_line_delayed] if results.sentinels else ["?", "?"]
            chance = f"{100 * stalls.chance_fraction(results.sentinel_s):.2g} %"
            figures = [t.ticks, t.swaps, *counts, *explained_counts, chance, t.pauses]
            cells.append([f"{results.rate_hz:g} Hz, {rig.name}", *map(str, figures)])
    return align([header, *cells])


def misses_list(misses: Sequence[LoopMiss]) -> str:
    """List the first misses, one line each."""
    header = [
        "miss",
        "frames",
        "cause",
        "delay µs",
        "stall ms",
        "line ms",
        "previous tick µs",
        "longest stage",
        "near a swap",
    ]
    cells = [
        [
            f"{m.rate_hz:g} Hz, {m.subject}",
            str(m.frames),
            m.cause,
            format_number(m.delay_us),
            format_number(m.stall_ms) if m.stall_ms else "none",
            format_number(m.line_ms) if m.line_ms else "none",
            format_number(m.tick_before_us),
            m.longest_stage,
            "yes" if m.near_swap else "",
        ]
        for m in misses[:_MAX_LISTED_MISSES]
    ]
    omitted_lines = (
        [f"... and {len(misses) - _MAX_LISTED_MISSES} more (use --json to list all)"]
        if len(misses) > _MAX_LISTED_MISSES
        else []
    )
    return "\n".join([align([header, *cells]), *omitted_lines])


def ratios_table(all_results: Sequence[RateResults]) -> str:
    """Return a table of the ratios of the base rig's figures to each variant's, with their intervals over slices."""
    header = ["ratio of slices", "slices", "p50", "95 % interval", "p99", "95 % interval"]
    cells = []
    for results in all_results:
        base_rig = results.rigs[0]
        for rig in results.rigs[1:]:
            for quantity in ("tick", "lateness"):
                figures: list[str] = []
                for q in ("p50", "p99"):
                    r = variant_ratio(base_rig, rig, f"{quantity}_{q}")
                    figures += [f"{r.value:.3f}", f"{r.low:.3f} to {r.high:.3f}"]
                case = f"{results.rate_hz:g} Hz, {quantity}: {base_rig.name} / {rig.name}"
                cells.append([case, f"{len(base_rig.slices)}+{len(rig.slices)}", *figures])
    return align([header, *cells])


def fraction_in_bins(histogram: DurationHistogram, edges_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of durations in each bin; durations outside the edges are added to the outermost bins."""
    bins = histogram.bins()
    centres_us = np.sqrt(np.maximum(bins.edges_us[:-1], 1e-3) * np.maximum(bins.edges_us[1:], 1e-3))
    clipped_us = np.clip(centres_us, edges_us[0], np.nextafter(edges_us[-1], 0))
    counts, _ = np.histogram(clipped_us, edges_us, weights=bins.counts)
    return np.asarray(counts / max(histogram.count, 1), np.float64)


def exceedance(histogram: DurationHistogram) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return durations (µs) and, for each, the fraction of durations above it, for a step plot."""
    bins = histogram.bins()
    fraction_above = 1 - np.cumsum(bins.counts) / max(histogram.count, 1)
    return bins.edges_us, np.maximum(np.concatenate([[1.0], fraction_above]), 0.0)


def plot(all_results: Sequence[RateResults], path: Path) -> None:
    """Draw one row of panels for each rate.

    Raises ImportError if matplotlib is missing, and ValueError for an unknown format.
    """
    figure, grid = new_figure(len(all_results), 2, 3.6 * len(all_results), width_in=12.0)
    for (left_axes, right_axes), results in zip(grid, all_results, strict=True):
        _plot_lateness(left_axes, results)
        _plot_stages(right_axes, results)
    save_figure(figure, path)


def _plot_lateness(axes: Axes, results: RateResults) -> None:
    lines = [(rig.name, rig.tally.histograms["lateness"], PALETTE[k]) for k, rig in enumerate(results.rigs)]
    if results.cyclictest is not None:
        lines.append((CYCLICTEST, results.cyclictest, BLACK))
    max_us = max(float(h.bins().edges_us[-1]) for _, h, _ in lines)
    decades = np.log10(max(max_us, 10 * _MIN_LATENESS_US))
    edges = np.logspace(0, decades, int(_BINS_PER_DECADE * decades) + 1)
    for name, histogram, colour in lines:
        p99 = histogram.percentile_us(99) or 0.0
        label = f"{name}: p99 {format_duration(p99 * 1e-6)}, {histogram.count}"
        axes.stairs(fraction_in_bins(histogram, edges), edges, color=colour, lw=1.3, label=label)
        axes.axvline(p99, color=colour, lw=1, ls=":")
    axes.set(xscale="log", yscale="log", xlabel="lateness in µs (dotted: p99)", ylabel="share of wake-ups per bin")
    set_title(axes, f"{results.rate_hz:g} Hz: lateness")
    axes.legend(frameon=False, fontsize=8)


def _plot_stages(axes: Axes, results: RateResults) -> None:
    base_rig, period_us = results.rigs[0].tally, 1e6 / results.rate_hz
    for k, name in enumerate(("tick", *STAGES)):
        x, fraction_above = exceedance(base_rig.histograms[name])
        colour, width = (BLACK, 1.8) if name == "tick" else (PALETTE[k % len(PALETTE)], 1.0)
        axes.step(x, fraction_above, where="post", color=colour, lw=width, label=name)
    axes.axvline(period_us, color=RED, lw=1, ls="--")
    axes.text(period_us, 0.5, " period", color=RED, fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="µs", ylabel="share of slower ticks")
    axes.set_xlim(left=0.5)
    axes.set_ylim(0.5 / max(base_rig.ticks, 2), 1.1)
    set_title(axes, f"{results.rate_hz:g} Hz: the tick and its stages")
    axes.legend(frameon=False, fontsize=8, ncols=2)
