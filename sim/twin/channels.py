"""Pins of the twin: the delay between output and plant, and sensor counts with noise."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from onrig.hw.device.output import Counts, Intervals, count_range
from onrig.hw.rig import Rig
from onrig.sim.twin.options import TwinOptions, sensor_half_range


class DelayLine:
    """Delay line between output and plant."""

    def __init__(self, delay_us: int, safe: Counts) -> None:
        self._in_flight: deque[tuple[int, Counts | None]] = deque([(delay_us, safe)])

    def shift(self, pieces: Intervals) -> Intervals:
        """Take in the output of these intervals, and return the output that reaches the plant during them."""
        self._in_flight += pieces
        effective_pieces, remaining_us = [], sum(duration_us for duration_us, _ in pieces)
        while remaining_us > 0:
            duration_us, counts = self._in_flight.popleft()
            if duration_us > remaining_us:
                self._in_flight.appendleft((duration_us - remaining_us, counts))
            effective_pieces.append((min(duration_us, remaining_us), counts))
            remaining_us -= duration_us
        return effective_pieces


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
        self._has_sensor_noise = bool(self._sensor_sigma.any())
        self._has_actuator_noise = options.actuator_noise > 0
        self._zero_offsets = (0.0,) * len(rig.actuators)
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Restart the noise streams."""
        sensors, actuators = np.random.SeedSequence(seed).spawn(2)
        self._sensor_rng = np.random.default_rng(sensors)
        self._actuator_rng = np.random.default_rng(actuators)

    def actuator_offsets(self) -> tuple[float, ...]:
        """Draw the actuator noise for one period (SI units, not clipped; de Bruin et al. 2018, eq. 2)."""
        if not self._has_actuator_noise:
            return self._zero_offsets
        return tuple(self._actuator_rng.normal(0.0, self._actuator_sigma).tolist())

    def read(self, state: Sequence[float]) -> tuple[int, ...] | None:
        """Return the sensor counts of a plant state (SI units; de Bruin et al. 2018, eq. 1, then rounding).

        Return None if a value is non-finite.
        """
        noise = self._sensor_rng.normal(0.0, self._sensor_sigma).tolist() if self._has_sensor_noise else None
        counts = []
        for i, (component, zero, resolution, wrap, low, high) in enumerate(self._sensors):
            value = state[component] + zero
            if noise is not None:
                value += noise[i]
            exact_count = value / resolution
            if not math.isfinite(exact_count):
                return None
            count = round(exact_count)
            if wrap:
                count = (count - low) % (high - low + 1) + low
            counts.append(min(max(count, low), high))
        return tuple(counts)
