"""Figures and histograms of a run as plain values for the page."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import numpy as np

from onrig.runtime.replay.accounts.timing import FILE, Counts, Timing
from onrig.runtime.view.reader import Figures, Histogram


def plain_figures(figures: Figures) -> dict[str, object]:
    """Give the figures with their histograms (``tick_us``, ``lateness_us``) trimmed; None for what is no number."""
    plain = {k: v for k, v in figures._asdict().items() if not isinstance(v, Histogram)}
    if not np.isfinite(figures.updates_per_s):
        plain["updates_per_s"] = None
    return {**plain, "tick_us": _histogram(figures.tick), "lateness_us": _histogram(figures.lateness)}


def kept_histograms(folder: Path) -> dict[str, Counts]:
    """Read what a finished run has left of them (``tick``, and ``lateness`` where time was real)."""
    found: dict[str, Counts] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=Timing).histograms
    return {name: found[name] for name in ("tick", "lateness") if name in found}


def _histogram(histogram: Histogram) -> dict[str, object]:
    """Counts from the first bin that holds any, and the percentiles."""
    filled = np.flatnonzero(histogram.counts)
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, -1)
    return {
        "first": first,
        "counts": histogram.counts[first : last + 1].tolist(),
        "p50": histogram.percentile_us(50),
        "p99": histogram.percentile_us(99),
        "p999": histogram.percentile_us(99.9),
        "max": histogram.max_ns / 1000 if len(filled) else None,
    }
