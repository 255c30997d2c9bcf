"""Devices whose sensors or actuators are not what the rig says: twins that falsify their readings or outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from onrig.hw.device.output import Counts, count_range
from onrig.hw.rig import Rig
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants.excitation import Excitation
from onrig.sim.twin.channels import Sensing
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions
from onrig.tools.evaluate import lockstep_session
from onrig.tools.identification.driving import drive
from onrig.tools.identification.recorded import nominal_plant

PLACE, VELOCITY = 0, 1
DEGREES = 180.0 / math.pi
Readings = list[tuple[float, ...]]
"""What an honest device has read so far (SI, angles unwrapped), the latest last."""


class Lie(NamedTuple):
    """A kind of dishonest device; ``half`` is the number of frames in half of an experiment."""

    read: Callable[[Readings, int], Sequence[float]] = lambda seen, half: seen[-1]
    """What the sensors say instead of the latest readings."""
    motor: Callable[[int, int], float] = lambda frame, half: 1.0
    """Factor between the output and its effect."""


def one(channel: int, said: Callable[[list[float], int], float]) -> Lie:
    """A lie of one sensor, by its own readings so far."""

    def read(seen: Readings, half: int) -> Sequence[float]:
        told = said([readings[channel] for readings in seen[-2 * half :]], half)
        return [told if i == channel else x for i, x in enumerate(seen[-1])]

    return Lie(read)


def scaled(channel: int, factor: float) -> Lie:
    return one(channel, lambda seen, half: factor * seen[-1])


def late(channel: int, periods: float) -> Lie:
    whole, share = int(periods), periods % 1.0

    def said(seen: list[float], half: int) -> float:
        now, before = (seen[max(len(seen) - 1 - k, 0)] for k in (whole, whole + 1))
        return (1.0 - share) * now + share * before

    return one(channel, said)


def all_late(periods: int) -> Lie:
    return Lie(lambda seen, half: seen[max(len(seen) - 1 - periods, 0)])


def stuck(channel: int, *, from_half: bool = False) -> Lie:
    return one(channel, lambda seen, half: seen[min(len(seen) - 1, half)] if from_half else seen[0])


def quantised(channel: int, step: float) -> Lie:
    return one(channel, lambda seen, half: round(seen[-1] / step) * step)


def drifting(channel: int, most: float) -> Lie:
    return one(channel, lambda seen, half: seen[-1] + most * len(seen) / (2 * half))


def flipped(*channels: int) -> Lie:
    def read(seen: Readings, half: int) -> Sequence[float]:
        return [-x if i in channels and len(seen) > half else x for i, x in enumerate(seen[-1])]

    return Lie(read)


HONEST = Lie()
SWAPPED = Lie(lambda seen, half: seen[-1][::-1])
TURNED_MOTOR = Lie(motor=lambda frame, half: -1.0)
WEAKER_MOTOR = Lie(motor=lambda frame, half: 1.0 if frame < half else 0.5)
OTHER_WAY_ROUND = Lie(lambda seen, half: [-x for x in seen[-1]], lambda frame, half: -1.0)
"""All signs at once: a mere convention of a symmetric plant."""


class LyingSensing:
    """Stands in for the twin's sensing."""

    def __init__(self, honest: Sensing, rig: Rig, lie: Lie, half: int) -> None:
        self._honest, self._rig, self._lie, self._half = honest, rig, lie, half
        self.seen: Readings = []

    def reseed(self, seed: int) -> None:
        self._honest.reseed(seed)

    def actuator_offsets(self) -> tuple[float, ...]:
        return self._honest.actuator_offsets()

    def read(self, state: Sequence[float]) -> Counts | None:
        counts = self._honest.read(state)
        if counts is None:
            return None
        before = self.seen[-1] if self.seen else (0.0,) * len(counts)
        readings = [c * s.resolution for c, s in zip(counts, self._rig.sensors, strict=True)]
        self.seen.append(
            tuple(
                b + math.remainder(x - b, 2.0 * math.pi) if s.wrap else x
                for x, b, s in zip(readings, before, self._rig.sensors, strict=True)
            )
        )
        told = []
        for x, s in zip(self._lie.read(self.seen, self._half), self._rig.sensors, strict=True):
            low, high = count_range(s.resolution, s.wrap)
            count = round(x / s.resolution)
            told.append((count - low) % (high - low + 1) + low if s.wrap else min(max(count, low), high))
        return tuple(told)


def lying_twin(lie: Lie, half: int) -> type[TwinDevice]:
    """Class of twins that tell this lie; ``fastest`` of the class is the largest true speed of any of them."""

    class LyingTwin(TwinDevice):
        fastest = 0.0

        def __init__(self, rig: Rig, options: TwinOptions, start: Mapping[str, float], **more: Any) -> None:
            super().__init__(rig, options, start, **more)
            self._true_resolutions = self._resolutions
            self._sensing = LyingSensing(self._sensing, rig, lie, half)  # type: ignore[assignment]

        def _move_plant(self, until_us: int) -> None:
            factor = lie.motor(self.frame, half)
            self._resolutions = tuple(factor * r for r in self._true_resolutions)
            super()._move_plant(until_us)
            LyingTwin.fastest = max(LyingTwin.fastest, abs(self.plant_state[VELOCITY]))

    return LyingTwin


def pushed_speed(config: RunConfig, twin: type[TwinDevice], duration_s: float) -> float:
    """Largest true speed under a policy that always adds energy; ``twin`` must be the one that sessions use."""
    twin.fastest = 0.0  # type: ignore[attr-defined]
    box = config.limits.predicted
    assert box is not None
    ranges = config.limits.context(config.rig, config.period_us * 1e-6).ranges
    push = type(nominal_plant(config)).adversaries(box, config.rig, ranges).push
    drive(config, lockstep_session(config), [Excitation("push", duration_s, lambda t, o: push(o))], seed=1)
    return float(twin.fastest)  # type: ignore[attr-defined]
