"""From the plant's state to what goes on the wire: sensor noise and quantisation, and noise on what the plant gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from onrig.hw.rig import Rig
from onrig.sim.twin.options import TwinOptions, sensor_half_range

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1


def count_range(resolution: float, wrap: bool) -> tuple[int, int]:
    """Lowest and highest count of a sensor: one turn around 0 for an angle, else what the wire holds."""
    if not wrap:
        return INT32_MIN, INT32_MAX
    turn = round(2.0 * math.pi / resolution)
    return -(turn // 2), turn - turn // 2 - 1


class Sensing:
    """Noise streams (one per role, spawned from the reset's seed) and the sensors' counts."""

    def __init__(self, rig: Rig, options: TwinOptions) -> None:
        names = options.plant.state_names
        self._sensors = tuple(
            (names.index(s.name), s.resolution, s.wrap, *count_range(s.resolution, s.wrap)) for s in rig.sensors
        )
        self._sensor_sigma = np.array(
            [options.sensor_noise * (sensor_half_range(rig, s.name) or 0.0) for s in rig.sensors]
        )
        self._actuator_sigma = np.array([options.actuator_noise * a.half_range for a in rig.actuators])
        self._sensor_noise = options.sensor_noise > 0
        self._actuator_noise = options.actuator_noise > 0
        self._no_offsets = (0.0,) * len(rig.actuators)
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start the noise streams anew."""
        sensors, actuators = np.random.SeedSequence(seed).spawn(2)
        self._sensor_rng = np.random.default_rng(sensors)
        self._actuator_rng = np.random.default_rng(actuators)

    def actuator_offsets(self) -> tuple[float, ...]:
        """What the actuators add to their setpoints for one period (SI; 000 eq. 2, which does not clip)."""
        if not self._actuator_noise:
            return self._no_offsets
        return tuple(self._actuator_rng.normal(0.0, self._actuator_sigma).tolist())

    def read(self, state: Sequence[float]) -> tuple[int, ...] | None:
        """Sensor counts of a plant state (SI; 000 eq. 1, then rounding); None if it is not finite."""
        noise = self._sensor_rng.normal(0.0, self._sensor_sigma).tolist() if self._sensor_noise else None
        counts = []
        for i, (component, resolution, wrap, low, high) in enumerate(self._sensors):
            value = state[component] if noise is None else state[component] + noise[i]
            if not math.isfinite(value):
                return None
            count = round(value / resolution)
            if wrap:
                count = (count - low) % (high - low + 1) + low
            counts.append(min(max(count, low), high))
        return tuple(counts)
