"""Host clock, and the estimate of device time on that clock, from state frames alone.

Code that depends on time takes a clock as an argument, so that tests and lockstep can run in virtual time.  The
standard module ``time`` satisfies the ``Clock`` protocol.

A frame can be received late but never early, so receipt times lie on or above the line ``host = offset + rate *
device`` of undelayed frames.  The estimate is the line below all samples with the smallest sum of distances to them
(Moon, Skelly & Towsley, "Estimation and removal of clock skew from network delay measurements", INFOCOM 1999, §IV):
the edge of the lower convex hull that spans the mean device time.  By construction, late samples have no influence;
no threshold is needed.

Deviation: the paper fits one recorded trace.  Here two hulls overlap: the younger one starts when the older has reached
half its maximum age; the older one provides the estimate until it is dropped.  The estimate thus follows crystal drift
in bounded memory.  Adding a point takes O(1) amortised time, and all sums are exact integers.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Protocol


class Clock(Protocol):
    """Source of monotonic time."""

    def monotonic_ns(self) -> int:
        """Return the nanoseconds since an arbitrary origin; the value never decreases."""


class VirtualClock:
    """Clock that advances only when `advance` is called."""

    def __init__(self, start_ns: int = 0) -> None:
        self.now_ns = start_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        """Advance the clock.  Raises ValueError if the duration is negative."""
        if duration_ns < 0:
            raise ValueError(f"time cannot run backwards by {-duration_ns} ns")
        self.now_ns += duration_ns


_NS_PER_US: Final = 1000
_MIN_SPAN_NS: Final = 2_000_000_000
"""Shortest span for a slope estimate; below it jitter dominates, and the nominal rate is used."""
_MAX_REFIT_INTERVAL: Final = 16


class _LowerHull:
    """Lower convex hull of points that are added in order of increasing x."""

    __slots__ = ("count", "sum_x", "xs", "ys")

    def __init__(self) -> None:
        self.xs: list[int] = []
        self.ys: list[int] = []
        self.sum_x = 0
        self.count = 0

    def add(self, x: int, y: int) -> None:
        xs, ys = self.xs, self.ys
        self.sum_x += x
        self.count += 1
        while len(xs) >= 2:
            x1, y1 = xs[-1], ys[-1]
            if (x1 - xs[-2]) * (y - y1) > (x - x1) * (y1 - ys[-2]):
                break
            xs.pop()
            ys.pop()
        xs.append(x)
        ys.append(y)


class ClockSync:
    """Running estimate of the host time that corresponds to a device time.

    ``time_scale`` (device seconds per wall second) is taken from the hello.  Raises ValueError for 0 (lockstep), where
    device and host time are unrelated.  The estimate is based on the last ``window`` to ``2 * window`` samples.
    """

    def __init__(self, time_scale: float = 1.0, window: int = 4096) -> None:
        if not time_scale > 0:
            raise ValueError(f"time scale {time_scale}: device and host time are not related")
        if window < 2:
            raise ValueError(f"a window of {window} samples is too short")
        self._nominal_rate = _NS_PER_US / time_scale
        self._window = window
        self.reset()

    def reset(self) -> None:
        """Discard all samples (after a reboot of the device)."""
        self._older_hull = _LowerHull()
        self._younger_hull = _LowerHull()
        self._origin_us = 0
        self._origin_ns = 0
        self._last_us = -1
        self._rate = self._nominal_rate
        self._anchor_us = 0
        self._anchor_ns = 0
        self._next_fit_count = 1

    @property
    def is_ready(self) -> bool:
        """Whether any sample has been added."""
        return self._last_us >= 0

    @property
    def drift_ppm(self) -> float:
        """Lag of the device clock behind the host's, in parts per million of its nominal rate."""
        return (self._rate / self._nominal_rate - 1.0) * 1e6

    def add(self, t_device_us: int, t_recv_ns: int) -> None:
        """Add the device time of a frame (us) and the host time of its receipt (ns).

        Samples whose device time does not advance (duplicates, a frozen link) are ignored.
        """
        if t_device_us <= self._last_us:
            return
        if self._last_us < 0:
            self._origin_us, self._origin_ns = t_device_us, t_recv_ns
        self._last_us = t_device_us
        older = self._older_hull
        x, y = t_device_us - self._origin_us, t_recv_ns - self._origin_ns
        older.add(x, y)
        if older.count > self._window:
            self._younger_hull.add(x, y)
            if older.count >= 2 * self._window:
                self._older_hull, self._younger_hull = self._younger_hull, _LowerHull()
                self._next_fit_count = 0
        if older.count >= self._next_fit_count or y - self._anchor_ns < self._rate * (x - self._anchor_us):
            self._fit_line()

    def host_time_ns(self, t_device_us: int) -> int:
        """Return the earliest host time (ns) at which a frame with this device time can be received.

        ``t_recv_ns - host_time_ns(t)`` is the lateness of a frame: zero or more, up to rounding.  Raises ValueError
        before the first sample.
        """
        if self._last_us < 0:
            raise ValueError("no sample yet")
        x = t_device_us - self._origin_us
        return self._origin_ns + self._anchor_ns + round(self._rate * (x - self._anchor_us))

    def _fit_line(self) -> None:
        hull = self._older_hull
        xs, ys = hull.xs, hull.ys
        self._next_fit_count = hull.count + min(hull.count, _MAX_REFIT_INTERVAL)
        if (xs[-1] - xs[0]) * self._nominal_rate < _MIN_SPAN_NS:
            self._rate = self._nominal_rate
            lowest_index = min(range(len(xs)), key=lambda i: ys[i] - self._nominal_rate * xs[i])
            self._anchor_us, self._anchor_ns = xs[lowest_index], ys[lowest_index]
            return
        index = min(bisect_right(xs, hull.sum_x // hull.count), len(xs) - 1) - 1
        self._anchor_us, self._anchor_ns = xs[index], ys[index]
        self._rate = (ys[index + 1] - ys[index]) / (xs[index + 1] - xs[index])
