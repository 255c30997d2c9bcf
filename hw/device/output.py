"""Output of a device (clamping, switches within a period), its lease, and the range of a sensor's counts."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from onrig.hw.rig import Rig

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1

Counts = tuple[int, ...]
Intervals = list[tuple[int, Counts | None]]
"""Intervals of constant output: duration (us), and counts or None while the actuators are released."""


class Setpoint(NamedTuple):
    """Setpoint of all actuators, after clamping."""

    counts: Counts
    answers: int
    """Number of the frame answered by the command; 0 for the safe output."""
    clamped: bool
    released: bool = False


class Output:
    """Output at the start of the period, and each switch during it."""

    def __init__(self, rig: Rig) -> None:
        self.device_limits = tuple((round(a.low / a.resolution), round(a.high / a.resolution)) for a in rig.actuators)
        self.limits = list(self.device_limits)
        driven = Setpoint(tuple(round(a.safe / a.resolution) for a in rig.actuators), 0, False)
        self._driven_setpoint, self._safe_setpoint = driven, driven._replace(released=rig.releases)
        self.restart()

    @property
    def safe(self) -> Counts:
        return self._driven_setpoint.counts

    def restart(self) -> None:
        """Begin a period with the safe output in force."""
        self.start = self.end = self._safe_setpoint
        self._switches: list[tuple[int, Setpoint]] = []

    def command(self, counts: Counts, answers: int, at_us: int, period_us: int) -> None:
        """Clamp a command and apply it from ``at_us`` into the period, or from the period's end at the latest.

        Even in the latter case, the frame that ends the period reports the command, so that the host knows the output
        of the next period.
        """
        clamped_counts = tuple([min(max(c, low), high) for c, (low, high) in zip(counts, self.limits, strict=True)])
        setpoint = Setpoint(clamped_counts, answers, clamped_counts != counts)
        self._switches.append((min(at_us, period_us), setpoint))
        self.end = setpoint

    def apply_safe(self, at_us: int) -> None:
        """Switch to the safe output at ``at_us`` and discard any pending command."""
        while self._switches and self._switches[-1][0] > at_us:
            self._switches.pop()
        in_force = self._switches[-1][1] if self._switches else self.start
        if in_force is not self._safe_setpoint:
            self._switches.append((at_us, self._safe_setpoint))
        self.end = self._safe_setpoint

    def tau_us(self, period_us: int) -> int:
        """Return the offset of the output's last switch in the period, or the period's length if it did not switch."""
        predecessors = [self.start, *[setpoint for _, setpoint in self._switches]]
        switches = [
            at_us
            for (at_us, setpoint), predecessor in zip(self._switches, predecessors, strict=False)
            if setpoint.answers or predecessor.answers
        ]
        return switches[-1] if switches else period_us

    def intervals(self, until_us: int) -> Intervals:
        """Return the intervals of constant output (duration in us, counts) from the period's start."""
        intervals: Intervals = []
        start_us, counts = 0, _effective(self.start)
        for at_us, setpoint in [*self._switches, (until_us, self.end)]:
            at_us = min(at_us, until_us)
            if at_us > start_us:
                intervals.append((at_us - start_us, counts))
                start_us = at_us
            counts = _effective(setpoint)
        return intervals

    def begin_period(self, *, armed: bool) -> None:
        """Carry the output in force into the next period; released actuators are driven if the device is armed."""
        if self.end.released and armed:
            self.end = self._driven_setpoint
        self.start = self.end
        self._switches.clear()


def _effective(setpoint: Setpoint) -> Counts | None:
    return None if setpoint.released else setpoint.counts


class Lease:
    """Lease: number of successive periods without an accepted command, and its limit."""

    def __init__(self) -> None:
        self.periods = 0
        self.renew()

    def renew(self) -> None:
        """Start a fresh lease; the current, partial period does not count."""
        self._n_missed = 0
        self._is_fresh = True

    def end_period(self, command_accepted: bool) -> bool:
        """Count a complete period; return True if the lease has expired."""
        self._n_missed = 0 if command_accepted or self._is_fresh else self._n_missed + 1
        self._is_fresh = False
        return self._n_missed >= self.periods

    @property
    def remaining_periods(self) -> int:
        """Number of periods, including the current one, that may pass without a command before the lease expires."""
        return max(0, self.periods - self._n_missed)


def count_range(resolution: float, wrap: bool) -> tuple[int, int]:
    """Return the lowest and highest count of a sensor: one turn around 0 for an angle, otherwise the range of int32."""
    if not wrap:
        return INT32_MIN, INT32_MAX
    counts_per_turn = round(2.0 * math.pi / resolution)
    return -(counts_per_turn // 2), counts_per_turn - counts_per_turn // 2 - 1
