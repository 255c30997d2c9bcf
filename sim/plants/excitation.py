"""Excitations for identification: signals that make a plant's parameters observable, within the shield's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from onrig.hw.rig import Rig

CommandLaw = Callable[[float, Sequence[float]], tuple[float, ...]]
"""Command (m,) as a function of elapsed seconds and the observation (n,), both in SI units."""


class Excitation(NamedTuple):
    """One part of an experiment."""

    name: str
    duration_s: float
    command: CommandLaw
    lasting: Callable[[float], Excitation] | None = None
    """The same signal over another duration (s); None if it may be cut off."""


REST: Final = "rest"
_BRIEF_S: Final = 4.0
_BRIEF_REST_S: Final = 0.5


def brief(parts: Sequence[Excitation]) -> list[Excitation]:
    """Short form of an experiment: each different part once, for at most four seconds."""
    different = {part.name: part for part in parts}
    return [_shortened(part, _BRIEF_REST_S if part.name == REST else _BRIEF_S) for part in different.values()]


def _shortened(part: Excitation, most_s: float) -> Excitation:
    duration_s = min(part.duration_s, most_s)
    return part._replace(duration_s=duration_s) if part.lasting is None else part.lasting(duration_s)


def rest(rig: Rig, duration_s: float) -> Excitation:
    """Hold the safe output."""
    safe = tuple(a.safe for a in rig.actuators)
    return Excitation(REST, duration_s, lambda t, observation: safe)


def chirp(
    rig: Rig,
    ranges: Mapping[str, tuple[float, float]],
    actuator: int,
    share: float,
    band_hz: tuple[float, float],
    duration_s: float,
) -> Excitation:
    """Sine of rising frequency on one actuator around its safe output."""
    safe = [a.safe for a in rig.actuators]
    name = rig.actuators[actuator].name
    low, high = (share * (limit - safe[actuator]) for limit in ranges[name])
    slow, fast = band_hz

    def command(t: float, observation: Sequence[float]) -> tuple[float, ...]:
        wave = math.sin(2.0 * math.pi * t * (slow + 0.5 * (fast - slow) * t / duration_s))
        offset = wave * (high if wave > 0 else -low)
        return (*safe[:actuator], safe[actuator] + offset, *safe[actuator + 1 :])

    def lasting(duration_s: float) -> Excitation:
        return chirp(rig, ranges, actuator, share, band_hz, duration_s)

    return Excitation(f"chirp of {name}, {share:.0%}", duration_s, command, lasting)


def square(
    rig: Rig,
    ranges: Mapping[str, tuple[float, float]],
    actuator: int,
    share: float,
    period_s: float,
    duration_s: float,
) -> Excitation:
    """Square wave between the ends of an actuator's range; its edges show the delay."""
    safe = [a.safe for a in rig.actuators]
    name = rig.actuators[actuator].name
    ends = [safe[actuator] + share * (limit - safe[actuator]) for limit in ranges[name]]

    def command(t: float, observation: Sequence[float]) -> tuple[float, ...]:
        high = t % period_s < 0.5 * period_s
        return (*safe[:actuator], ends[high], *safe[actuator + 1 :])

    return Excitation(f"steps of {name}, {share:.0%}", duration_s, command)
