"""How a figure moves over time, whatever outliers say: the median of the slopes between all pairs of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

MOST: Final = 400
"""Samples of one series that are paired; more are thinned out evenly."""
SHORTEST_S: Final = 10.0
"""Of a series after its warm-up, below which no slope is told."""


class Trend(msgspec.Struct, frozen=True):
    """Theil-Sen estimate (Sen 1968)."""

    per_minute: float
    """Median slope, units of the figure per minute."""
    spans_s: float
    """Length of the longest series in it."""
    series: int
    """Series that were long enough."""


def slopes_per_minute(times_s: Sequence[float], values: Sequence[float]) -> NDArray[np.float64]:
    """Slopes between all pairs of samples at different times, units per minute; at most MOST samples are used."""
    t, v = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    if len(t) > MOST:
        at = np.linspace(0, len(t) - 1, MOST).astype(np.int64)
        t, v = t[at], v[at]
    i, j = np.triu_indices(len(t), 1)
    apart = t[j] > t[i]
    slopes: NDArray[np.float64] = 60.0 * (v[j] - v[i])[apart] / (t[j] - t[i])[apart]
    return slopes


def trend(
    series: Sequence[tuple[Sequence[float], Sequence[float]]], warm_up_s: float, shortest_s: float = SHORTEST_S
) -> Trend | None:
    """Trend of one or more (times in s, values), pairs within a series only; None where none is long enough.

    Of each series the first ``warm_up_s`` are left out; each remaining one counts by the square of its samples.
    """
    found, spans = [], []
    for times, values in series:
        if not times:
            continue
        kept = [(t, v) for t, v in zip(times, values, strict=True) if t - times[0] >= warm_up_s]
        if len(kept) < 3 or kept[-1][0] - kept[0][0] < shortest_s:
            continue
        found.append(slopes_per_minute([t for t, _ in kept], [v for _, v in kept]))
        spans.append(kept[-1][0] - kept[0][0])
    if not found:
        return None
    return Trend(float(np.median(np.concatenate(found))), max(spans), len(found))
