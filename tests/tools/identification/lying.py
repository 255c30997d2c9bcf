"""Devices whose sensors or actuators differ from the rig's description: twins that falsify readings or outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from onrig.hw.device.output import Counts, count_range
from onrig.hw.rig import Rig
from onrig.runtime.run_config import RunConfig
from onrig.sim.evaluation import lockstep_session
from onrig.sim.plants.excitation import Excitation
from onrig.sim.twin.channels import Sensing
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions
from onrig.tools.identification.driving import drive
from onrig.tools.identification.recorded import nominal_plant

POSITION, VELOCITY = 0, 1
DEGREES = 180.0 / math.pi
Readings = list[tuple[float, ...]]
"""Readings of an honest device so far (SI, angles unwrapped), the latest last."""


class Falsification(NamedTuple):
    """A kind of dishonest device; ``half_frames`` is the number of frames in half of an experiment."""

    read: Callable[[Readings, int], Sequence[float]] = lambda observed, half_frames: observed[-1]
    """Reported readings in place of the latest ones."""
    motor: Callable[[int, int], float] = lambda frame, half_frames: 1.0
    """Factor between the output and its effect."""


def falsify_one(channel: int, false_value: Callable[[list[float], int], float]) -> Falsification:
    """A lie by one sensor, based on its own readings so far."""

    def read(observed: Readings, half_frames: int) -> Sequence[float]:
        value = false_value([readings[channel] for readings in observed[-2 * half_frames :]], half_frames)
        return [value if i == channel else x for i, x in enumerate(observed[-1])]

    return Falsification(read)


def scaled_by(channel: int, factor: float) -> Falsification:
    return falsify_one(channel, lambda observed, half_frames: factor * observed[-1])


def delayed(channel: int, n_periods: float) -> Falsification:
    whole_periods, fraction = int(n_periods), n_periods % 1.0

    def false_value(observed: list[float], half_frames: int) -> float:
        later, earlier = (observed[max(len(observed) - 1 - k, 0)] for k in (whole_periods, whole_periods + 1))
        return (1.0 - fraction) * later + fraction * earlier

    return falsify_one(channel, false_value)


def all_delayed(n_periods: int) -> Falsification:
    return Falsification(lambda observed, half_frames: observed[max(len(observed) - 1 - n_periods, 0)])


def stuck_at(channel: int, *, from_half: bool = False) -> Falsification:
    return falsify_one(
        channel,
        lambda observed, half_frames: observed[min(len(observed) - 1, half_frames)] if from_half else observed[0],
    )


def quantised(channel: int, step: float) -> Falsification:
    return falsify_one(channel, lambda observed, half_frames: round(observed[-1] / step) * step)


def drifting_sensor(channel: int, max_drift: float) -> Falsification:
    return falsify_one(
        channel, lambda observed, half_frames: observed[-1] + max_drift * len(observed) / (2 * half_frames)
    )


def negated(*channels: int) -> Falsification:
    def read(observed: Readings, half_frames: int) -> Sequence[float]:
        return [-x if i in channels and len(observed) > half_frames else x for i, x in enumerate(observed[-1])]

    return Falsification(read)


NO_FALSIFICATION = Falsification()
SWAPPED_SENSORS = Falsification(lambda observed, half_frames: observed[-1][::-1])
REVERSED_MOTOR = Falsification(motor=lambda frame, half_frames: -1.0)
WEAKER_MOTOR = Falsification(motor=lambda frame, half_frames: 1.0 if frame < half_frames else 0.5)
ALL_REVERSED = Falsification(lambda observed, half_frames: [-x for x in observed[-1]], lambda frame, half_frames: -1.0)
"""All signs reversed: merely a convention for a symmetric plant."""


class FalsifiedSensing:
    """Replaces the twin's sensing."""

    def __init__(self, true_sensing: Sensing, rig: Rig, falsification: Falsification, half_frames: int) -> None:
        self._true_sensing, self._rig, self._falsification, self._half_frames = (
            true_sensing,
            rig,
            falsification,
            half_frames,
        )
        self.true_readings: Readings = []

    def reseed(self, seed: int) -> None:
        self._true_sensing.reseed(seed)

    def actuator_offsets(self) -> tuple[float, ...]:
        return self._true_sensing.actuator_offsets()

    def read(self, state: Sequence[float]) -> Counts | None:
        counts = self._true_sensing.read(state)
        if counts is None:
            return None
        earlier = self.true_readings[-1] if self.true_readings else (0.0,) * len(counts)
        readings = [c * s.resolution for c, s in zip(counts, self._rig.sensors, strict=True)]
        self.true_readings.append(
            tuple(
                b + math.remainder(x - b, 2.0 * math.pi) if s.wrap else x
                for x, b, s in zip(readings, earlier, self._rig.sensors, strict=True)
            )
        )
        value = []
        for x, s in zip(
            self._falsification.read(self.true_readings, self._half_frames), self._rig.sensors, strict=True
        ):
            low, high = count_range(s.resolution, s.wrap)
            count = round(x / s.resolution)
            value.append((count - low) % (high - low + 1) + low if s.wrap else min(max(count, low), high))
        return tuple(value)


def falsified_twin(falsification: Falsification, half_frames: int) -> type[TwinDevice]:
    """Class of twins with this lie; its ``max_velocity`` is the largest true speed of any of them."""

    class FalsifiedTwin(TwinDevice):
        max_velocity = 0.0

        def __init__(self, rig: Rig, options: TwinOptions, start: Mapping[str, float], **kwargs: Any) -> None:
            super().__init__(rig, options, start, **kwargs)
            self._true_resolutions = self._resolutions
            self._sensing = FalsifiedSensing(self._sensing, rig, falsification, half_frames)  # type: ignore[assignment]

        def _move_plant(self, until_us: int) -> None:
            factor = falsification.motor(self.frame, half_frames)
            self._resolutions = tuple(factor * r for r in self._true_resolutions)
            super()._move_plant(until_us)
            FalsifiedTwin.max_velocity = max(FalsifiedTwin.max_velocity, abs(self.plant_state[VELOCITY]))

    return FalsifiedTwin


def max_speed_when_pushed(config: RunConfig, twin: type[TwinDevice], duration_s: float) -> float:
    """Largest true speed under a policy that always adds energy; ``twin`` must be the one used by sessions."""
    twin.max_velocity = 0.0  # type: ignore[attr-defined]
    box = config.limits.predicted
    assert box is not None
    ranges = config.limits.context(config.rig, config.period_us * 1e-6).ranges
    push = type(nominal_plant(config)).adversaries(box, config.rig, ranges).push
    drive(config, lockstep_session(config), [Excitation("push", duration_s, lambda t, o: push(o))], seed=1)
    return float(twin.max_velocity)  # type: ignore[attr-defined]
