"""Memory and descriptors of processes over time, and their trends; a restarted process is a new series."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.tools.faultlab.processes import use_of

WARM_UP_S: Final = 20.0
JUDGED_S: Final = 90.0
"""A slope is judged where a process lived for so long after its warm-up; over less, one more page is a slope."""
GROWN_S: Final = 20.0
"""Growth is judged over at least so much after the warm-up."""
MOST: Final = 400
"""Samples of one series that are paired; a longer one is thinned out evenly."""
SHORTEST_S: Final = 10.0
"""Shortest series after its warm-up that has a slope."""


class Series(NamedTuple):
    """One process."""

    role: str
    pid: int
    times_s: list[float]
    private_mb: list[float]
    descriptors: list[float]


class Gauges:
    """Series of samples, one for each process."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, int], Series] = {}

    def sample(self, now_s: float, processes: dict[str, int]) -> None:
        """Take one sample of each process (role to pid)."""
        for role, pid in processes.items():
            use = use_of(pid)
            if use is None:
                continue
            one = self.series.setdefault((role, pid), Series(role, pid, [], [], []))
            one.times_s.append(round(now_s, 3))
            one.private_mb.append(round(use.private_mb, 3))
            one.descriptors.append(float(use.descriptors))

    @property
    def roles(self) -> list[str]:
        """Roles, in the order in which they came."""
        return list(dict.fromkeys(role for role, _ in self.series))

    def of(self, role: str) -> list[Series]:
        """Every process that had a role."""
        return [s for s in self.series.values() if s.role == role]

    def grown_mb(self, warm_up_s: float = WARM_UP_S) -> dict[str, float]:
        """Growth from the first tenth of a process's life to the last, MB; of each role, the worst."""
        grown: dict[str, float] = {}
        for one in self.series.values():
            more = grown_mb(one.times_s, one.private_mb, warm_up_s)
            if more is not None:
                grown[one.role] = max(round(more, 2), grown.get(one.role, -1e9))
        return grown

    def memory(self, role: str) -> Trend | None:
        """Trend of the memory of a role, MB per minute, over all its processes."""
        return _of_the_long([(s.times_s, s.private_mb) for s in self.of(role)])

    def open_descriptors(self, role: str) -> Trend | None:
        """Trend of the open descriptors of a role."""
        return _of_the_long([(s.times_s, s.descriptors) for s in self.of(role)])


def grown_mb(times_s: Sequence[float], values_mb: Sequence[float], warm_up_s: float = WARM_UP_S) -> float | None:
    """Median of the last tenth of a series above that of the first; None where the series is too short."""
    kept = [v for t, v in zip(times_s, values_mb, strict=True) if t - times_s[0] >= warm_up_s]
    if not kept or times_s[-1] - times_s[0] < warm_up_s + GROWN_S:
        return None
    tenth = max(1, len(kept) // 10)
    return median(kept[-tenth:]) - median(kept[:tenth])


def _of_the_long(series: list[tuple[list[float], list[float]]]) -> Trend | None:
    """Trend of the series long enough to be judged; where there are none, of all that have a slope."""
    return trend(series, WARM_UP_S, JUDGED_S) or trend(series, WARM_UP_S)


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
