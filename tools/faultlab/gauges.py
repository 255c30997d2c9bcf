"""Memory and descriptors of every process over time; a process that is started anew is a new series."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from onrig.tools.faultlab.processes import use_of
from onrig.tools.faultlab.trend import Trend, trend

WARM_UP_S: Final = 20.0
JUDGED_S: Final = 90.0
"""A slope is judged where a process lived for so long after its warm-up; over less, a page more is a slope."""
GROWN_S: Final = 20.0
"""What a process has grown by is judged over so much, after its warm-up."""


class Series(NamedTuple):
    """One process."""

    role: str
    pid: int
    times_s: list[float]
    private_mb: list[float]
    descriptors: list[float]


class Gauges:
    """Samples whatever runs."""

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
        """By how much the last tenth of each role's life was above the first, MB, the worst of its processes."""
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
    """How much more the last tenth of a series holds than the first, medians; None for one too short to tell."""
    kept = [v for t, v in zip(times_s, values_mb, strict=True) if t - times_s[0] >= warm_up_s]
    if not kept or times_s[-1] - times_s[0] < warm_up_s + GROWN_S:
        return None
    tenth = max(1, len(kept) // 10)
    return median(kept[-tenth:]) - median(kept[:tenth])


def _of_the_long(series: list[tuple[list[float], list[float]]]) -> Trend | None:
    """Trend of those that lived long enough to be judged; where there is none, of all that tell anything."""
    return trend(series, WARM_UP_S, JUDGED_S) or trend(series, WARM_UP_S)
