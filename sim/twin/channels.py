"""The device's pins: actuator output with clamp, lease and delay; sensor counts with noise."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from onrig.hw.rig import Rig
from onrig.sim.twin.options import TwinOptions, sensor_half_range

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1

Counts = tuple[int, ...]
Pieces = list[tuple[int, Counts | None]]
"""Intervals of constant output: duration (us) and counts, None while the actuators are released."""


class Held(NamedTuple):
    """A setpoint in force."""

    counts: Counts
    answers: int
    """Number of the frame it answers; 0 for the safe output."""
    clamped: bool
    released: bool = False


class Output:
    """The output at the start of the period, and each switch in it."""

    def __init__(self, rig: Rig) -> None:
        self.own_limits = tuple((round(a.low / a.resolution), round(a.high / a.resolution)) for a in rig.actuators)
        self.limits = list(self.own_limits)
        driven = Held(tuple(round(a.safe / a.resolution) for a in rig.actuators), 0, False)
        self._driven, self._fallen = driven, driven._replace(released=rig.releases)
        self.restart()

    @property
    def safe(self) -> Counts:
        return self._driven.counts

    def restart(self) -> None:
        """Begin a period with the safe output in force."""
        self.start = self.end = self._fallen
        self._switches: list[tuple[int, Held]] = []

    def command(self, counts: Counts, answers: int, at_us: int, period_us: int) -> None:
        """Clamp a command and let it act from ``at_us`` into the period, at the latest from its end on.

        There the frame that ends the period reports it already: its host must know what is in force from then on.
        """
        clamped = tuple([min(max(c, low), high) for c, (low, high) in zip(counts, self.limits, strict=True)])
        held = Held(clamped, answers, clamped != counts)
        self._switches.append((min(at_us, period_us), held))
        self.end = held

    def fall_safe(self, at_us: int) -> None:
        """Output the safe value at once; a pending command is discarded."""
        while self._switches and self._switches[-1][0] > at_us:
            self._switches.pop()
        in_force = self._switches[-1][1] if self._switches else self.start
        if in_force is not self._fallen:
            self._switches.append((at_us, self._fallen))
        self.end = self._fallen

    def tau_us(self, period_us: int) -> int:
        """Offset of the (last) switch of the value; the period's length if there was none."""
        before = [self.start, *[held for _, held in self._switches]]
        switches = [
            at_us for (at_us, held), last in zip(self._switches, before, strict=False) if held.answers or last.answers
        ]
        return switches[-1] if switches else period_us

    def pieces(self, until_us: int) -> Pieces:
        """(duration in us, counts) of each stretch of constant output from the period's start."""
        pieces: Pieces = []
        since, counts = 0, _effective(self.start)
        for at_us, held in [*self._switches, (until_us, self.end)]:
            at_us = min(at_us, until_us)
            if at_us > since:
                pieces.append((at_us - since, counts))
                since = at_us
            counts = _effective(held)
        return pieces

    def begin_period(self, *, armed: bool) -> None:
        """Carry what is in force into the next period; a device that is armed by then drives its actuators."""
        if self.end.released and armed:
            self.end = self._driven
        self.start = self.end
        self._switches.clear()


def _effective(held: Held) -> Counts | None:
    return None if held.released else held.counts


class Lease:
    """Counts the periods that end without an accepted command."""

    def __init__(self) -> None:
        self.periods = 0
        self.renew()

    def renew(self) -> None:
        """Start a fresh lease; the current, partial period does not count."""
        self._missed = 0
        self._fresh = True

    def end_period(self, answered: bool) -> bool:
        """Count a complete period; True if the lease has expired."""
        self._missed = 0 if answered or self._fresh else self._missed + 1
        self._fresh = False
        return self._missed >= self.periods

    @property
    def left(self) -> int:
        """Periods that may still end without a command, including the current one."""
        return max(0, self.periods - self._missed)


class DelayLine:
    """Delay line between output and plant."""

    def __init__(self, delay_us: int, safe: Counts) -> None:
        self._in_flight: deque[tuple[int, Counts | None]] = deque([(delay_us, safe)])

    def shift(self, pieces: Pieces) -> Pieces:
        """Output that reaches the plant during these pieces."""
        self._in_flight += pieces
        arrived, left_us = [], sum(duration_us for duration_us, _ in pieces)
        while left_us > 0:
            duration_us, counts = self._in_flight.popleft()
            if duration_us > left_us:
                self._in_flight.appendleft((duration_us - left_us, counts))
            arrived.append((min(duration_us, left_us), counts))
            left_us -= duration_us
        return arrived


def count_range(resolution: float, wrap: bool) -> tuple[int, int]:
    """Lowest and highest count of a sensor: one turn around 0 for an angle, else what the wire holds."""
    if not wrap:
        return INT32_MIN, INT32_MAX
    turn = round(2.0 * math.pi / resolution)
    return -(turn // 2), turn - turn // 2 - 1


class Sensing:
    """Noise streams (one per role, spawned from the reset's seed) and the sensors' counts."""

    def __init__(self, rig: Rig, options: TwinOptions) -> None:
        names, zeros = options.plant.state_names, options.sensor_zero or {}
        self._sensors = tuple(
            (
                names.index(s.name),
                zeros.get(s.name, 0.0),
                s.resolution,
                s.wrap,
                *count_range(s.resolution, s.wrap),
            )
            for s in rig.sensors
        )
        self._sensor_sigma = np.array(
            [options.noise_of(s.name) * (sensor_half_range(rig, s.name) or 0.0) for s in rig.sensors]
        )
        self._actuator_sigma = np.array([options.actuator_noise * a.half_range for a in rig.actuators])
        self._sensor_noise = bool(self._sensor_sigma.any())
        self._actuator_noise = options.actuator_noise > 0
        self._zero_offsets = (0.0,) * len(rig.actuators)
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Restart the noise streams."""
        sensors, actuators = np.random.SeedSequence(seed).spawn(2)
        self._sensor_rng = np.random.default_rng(sensors)
        self._actuator_rng = np.random.default_rng(actuators)

    def actuator_offsets(self) -> tuple[float, ...]:
        """Actuator noise for one period (SI, not clipped; de Bruin et al. 2018, eq. 2)."""
        if not self._actuator_noise:
            return self._zero_offsets
        return tuple(self._actuator_rng.normal(0.0, self._actuator_sigma).tolist())

    def read(self, state: Sequence[float]) -> tuple[int, ...] | None:
        """Sensor counts of a plant state (SI; de Bruin et al. 2018, eq. 1, then rounding); None if it is not finite."""
        noise = self._sensor_rng.normal(0.0, self._sensor_sigma).tolist() if self._sensor_noise else None
        counts = []
        for i, (component, zero, resolution, wrap, low, high) in enumerate(self._sensors):
            value = state[component] + zero
            if noise is not None:
                value += noise[i]
            counted = value / resolution
            if not math.isfinite(counted):
                return None
            count = round(counted)
            if wrap:
                count = (count - low) % (high - low + 1) + low
            counts.append(min(max(count, low), high))
        return tuple(counts)
