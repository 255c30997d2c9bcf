"""The picture of ``onrig bench loop``: lateness beside cyclictest's, and what ticks take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.record import STAGES
from onrig.tools.benchmarks.loop_plan import CYCLICTEST
from onrig.tools.benchmarks.loop_report import AtRate

_PER_DECADE: Final = 20
_LEAST_US: Final = 1.0


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
