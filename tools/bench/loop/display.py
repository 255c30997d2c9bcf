"""Tables and the picture of ``onrig bench loop``: misses, ratios, lateness beside cyclictest's, what ticks take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.record import STAGES, Miss
from onrig.tools.bench.loop.misses import LoopMiss, Stalls
from onrig.tools.bench.loop.plan import CYCLICTEST
from onrig.tools.bench.loop.report import AtRate, period_ns, variant_ratio
from onrig.tools.bench.report import aligned, number

_LISTED: Final = 20
_PER_DECADE: Final = 20
_LEAST_US: Final = 1.0


def misses_table(measured: Sequence[AtRate]) -> str:
    """Missed ticks by cause, and how many of each fall into stalls that a sentinel saw."""
    head = [
        "missed ticks",
        "ticks",
        "swaps",
        "link",
        "program",
        "host",
        "in a stall",
        "line slow",
        "by chance",
        "twin paused",
    ]
    cells = []
    for found in measured:
        stalls = Stalls(found.sentinels, period_ns(found.rate_hz))
        for rig in found.rigs:
            t = rig.tally
            counts = [t.missed_ticks[cause] for cause in (Miss.LINK, Miss.PROGRAM, Miss.HOST)]
            misses = [stalls.explain(m) for m in t.missed]
            in_stall = sum(e.missed.frames for e in misses if e.is_machine)
            on_line = sum(e.missed.frames for e in misses if e.is_line)
            seen = [in_stall, on_line] if found.sentinels else ["?", "?"]
            chance = f"{100 * stalls.share_of(found.sentinel_s):.2g} %"
            figures = [t.ticks, t.swaps, *counts, *seen, chance, t.pauses]
            cells.append([f"{found.rate_hz:g} Hz, {rig.name}", *map(str, figures)])
    return aligned([head, *cells])


def misses_list(misses: Sequence[LoopMiss]) -> str:
    """The first of the misses, one line each."""
    head = ["miss", "frames", "cause", "delay us", "stall ms", "line ms", "tick before us", "mostly", "near a swap"]
    cells = [
        [
            f"{m.rate_hz:g} Hz, {m.subject}",
            str(m.frames),
            m.cause,
            number(m.delay_us),
            number(m.stall_ms) if m.stall_ms else "none seen",
            number(m.line_ms) if m.line_ms else "none seen",
            number(m.tick_before_us),
            m.longest_stage,
            "yes" if m.near_swap else "",
        ]
        for m in misses[:_LISTED]
    ]
    more = [f"... and {len(misses) - _LISTED} more (--json has them all)"] if len(misses) > _LISTED else []
    return "\n".join([aligned([head, *cells]), *more])


def ratios_table(measured: Sequence[AtRate]) -> str:
    """Ratios of the first subject's figures to each variant's, with their spread over slices."""
    head = ["ratio of slices", "slices", "p50", "95 % interval", "p99", "95 % interval"]
    cells = []
    for found in measured:
        base = found.rigs[0]
        for rig in found.rigs[1:]:
            for what in ("tick", "lateness"):
                figures: list[str] = []
                for q in ("p50", "p99"):
                    r = variant_ratio(base, rig, f"{what}_{q}")
                    figures += [f"{r.value:.3f}", f"{r.low:.3f} to {r.high:.3f}"]
                case = f"{found.rate_hz:g} Hz, {what}: {base.name} / {rig.name}"
                cells.append([case, f"{len(base.slices)}+{len(rig.slices)}", *figures])
    return aligned([head, *cells])


def share_in_bins(histogram: DurationHistogram, edges_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of all durations that falls between each two of the edges; what lies outside joins the outermost bins."""
    bins = histogram.bins()
    centres = np.sqrt(np.maximum(bins.edges_us[:-1], 1e-3) * np.maximum(bins.edges_us[1:], 1e-3))
    inside = np.clip(centres, edges_us[0], np.nextafter(edges_us[-1], 0))
    counts, _ = np.histogram(inside, edges_us, weights=bins.counts)
    return np.asarray(counts / max(histogram.count, 1), np.float64)


def share_beyond(histogram: DurationHistogram) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(x in µs, share of durations above x), for a step line."""
    bins = histogram.bins()
    above = 1 - np.cumsum(bins.counts) / max(histogram.count, 1)
    return bins.edges_us, np.maximum(np.concatenate([[1.0], above]), 0.0)


def plot(measured: Sequence[AtRate], path: Path) -> None:
    """Draw one row of panels for each rate; raises ImportError without matplotlib, ValueError for an unknown format."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(measured), 2, figsize=(12, 3.6 * len(measured)), squeeze=False, layout="constrained"
    )
    for (left, right), found in zip(axes, measured, strict=True):
        lines = [(rig.name, rig.tally.histograms["lateness"], f"C{k}") for k, rig in enumerate(found.rigs)]
        if found.cyclictest is not None:
            lines.append((CYCLICTEST, found.cyclictest, "black"))
        latest = max(float(h.bins().edges_us[-1]) for _, h, _ in lines)
        decades = np.log10(max(latest, 10 * _LEAST_US))
        edges = np.logspace(0, decades, int(_PER_DECADE * decades) + 1)
        for name, histogram, colour in lines:
            share = share_in_bins(histogram, edges)
            p99 = histogram.percentile_us(99) or 0.0
            left.stairs(share, edges, color=colour, lw=1.3, label=f"{name}: p99 {p99:.0f} µs, {histogram.count}")
            left.axvline(p99, color=colour, lw=1, ls=":")
        left.set(xscale="log", yscale="log", xlabel="lateness in µs (dotted: p99)", ylabel="share of wake-ups per bin")
        left.set_title(f"{found.rate_hz:g} Hz: lateness", fontsize=10)
        left.legend(frameon=False, fontsize=8)
        base = found.rigs[0].tally
        for k, name in enumerate(("tick", *STAGES)):
            x, above = share_beyond(base.histograms[name])
            tick = name == "tick"
            right.step(x, above, where="post", color="black" if tick else f"C{k}", lw=1.8 if tick else 1.0, label=name)
        right.axvline(1e6 / found.rate_hz, color="tab:red", lw=1, ls="--")
        right.text(1e6 / found.rate_hz, 0.5, " period", color="tab:red", fontsize=8)
        right.set(xscale="log", yscale="log", xlabel="µs", ylabel="share of ticks that take longer")
        right.set_xlim(left=0.5)
        right.set_ylim(0.5 / max(base.ticks, 2), 1.1)
        right.set_title(f"{found.rate_hz:g} Hz: the tick and its stages", fontsize=10)
        right.legend(frameon=False, fontsize=8, ncols=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)
