"""The actuators' output over one period, the device's clamp, and the lease that lets it fall safe."""

from __future__ import annotations

from typing import NamedTuple

from onrig.hw.rig import Rig

Counts = tuple[int, ...]
Pieces = list[tuple[int, Counts]]
"""Stretches of constant output: how long (us), and what."""


class Held(NamedTuple):
    """A setpoint in force."""

    counts: Counts
    answers: int
    """Number of the frame it answers; 0 for the safe output."""
    clamped: bool


class Output:
    """What was in force at the start of the period, and each switch in it."""

    def __init__(self, rig: Rig) -> None:
        self.own_limits = tuple((round(a.low / a.resolution), round(a.high / a.resolution)) for a in rig.actuators)
        self.limits = list(self.own_limits)
        self.safe = Held(tuple(round(a.safe / a.resolution) for a in rig.actuators), 0, False)
        self.restart()

    def restart(self) -> None:
        """Begin a period with the safe output in force."""
        self.start = self.end = self.safe
        self._switches: list[tuple[int, Held]] = []
        self._deferred: Held | None = None

    def command(self, counts: Counts, answers: int, at_us: int, period_us: int) -> None:
        """Clamp a command and let it act from ``at_us`` into the period, or from the next sample if that is later."""
        clamped = tuple([min(max(c, low), high) for c, (low, high) in zip(counts, self.limits, strict=True)])
        held = Held(clamped, answers, clamped != counts)
        if at_us < period_us:
            self._switches.append((at_us, held))
            self.end = held
        else:
            self._deferred = held

    def fall_safe(self, at_us: int) -> None:
        """Put out the safe value at once; a command still on its way is forgotten."""
        self._deferred = None
        while self._switches and self._switches[-1][0] > at_us:
            self._switches.pop()
        in_force = self._switches[-1][1] if self._switches else self.start
        if in_force is not self.safe:
            self._switches.append((at_us, self.safe))
        self.end = self.safe

    def tau_us(self, period_us: int) -> int:
        """Offset of the (last) switch; the period's length if there was none."""
        return self._switches[-1][0] if self._switches else period_us

    def pieces(self, until_us: int) -> Pieces:
        """(duration in us, counts) of each stretch of constant output from the period's start."""
        pieces = []
        since, counts = 0, self.start.counts
        for at_us, held in [*self._switches, (until_us, self.end)]:
            at_us = min(at_us, until_us)
            if at_us > since:
                pieces.append((at_us - since, counts))
                since = at_us
            counts = held.counts
        return pieces

    def begin_period(self) -> None:
        """Carry what is in force into the next period."""
        if self._deferred is not None:
            self.end, self._deferred = self._deferred, None
        self.start = self.end
        self._switches.clear()


class Lease:
    """Counts the periods that end without an accepted command."""

    def __init__(self) -> None:
        self.periods = 0
        self.renew()

    def renew(self) -> None:
        """Start a fresh lease; the period under way, being a part of one only, does not count."""
        self._missed = 0
        self._fresh = True

    def end_period(self, answered: bool) -> bool:
        """Account for a whole period; True when the lease has run out."""
        self._missed = 0 if answered or self._fresh else self._missed + 1
        self._fresh = False
        return self._missed >= self.periods

    @property
    def left(self) -> int:
        """Periods that may still end without a command, the one under way included."""
        return max(0, self.periods - self._missed)
