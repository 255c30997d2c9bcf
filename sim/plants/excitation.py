"""Excitations for identification: signals that make a plant's parameters observable, within the shield's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from onrig.hw.rig import Rig

CommandLaw = Callable[[float, Sequence[float]], tuple[float, ...]]
"""Command (m,) as a function of elapsed seconds and the observation (n,), both in SI units."""


class Excitation(NamedTuple):
    """One part of an experiment."""

    name: str
    duration_s: float
    command: CommandLaw


def hold_safe(rig: Rig, duration_s: float) -> Excitation:
    """Return an excitation that holds the safe output."""
    safe_command = tuple(a.safe for a in rig.actuators)
    return Excitation("rest", duration_s, lambda t, observation: safe_command)


def chirp(
    rig: Rig,
    ranges: Mapping[str, tuple[float, float]],
    actuator: int,
    fraction: float,
    band_hz: tuple[float, float],
    duration_s: float,
) -> Excitation:
    """Return a sine of rising frequency on one actuator, around its safe output."""
    safe_command = [a.safe for a in rig.actuators]
    name = rig.actuators[actuator].name
    low, high = (fraction * (limit - safe_command[actuator]) for limit in ranges[name])
    low_hz, high_hz = band_hz

    def command(t: float, observation: Sequence[float]) -> tuple[float, ...]:
        wave = math.sin(2.0 * math.pi * t * (low_hz + 0.5 * (high_hz - low_hz) * t / duration_s))
        offset = wave * (high if wave > 0 else -low)
        return (*safe_command[:actuator], safe_command[actuator] + offset, *safe_command[actuator + 1 :])

    return Excitation(f"chirp of {name}, {fraction:.0%}", duration_s, command)


def square_wave(
    rig: Rig,
    ranges: Mapping[str, tuple[float, float]],
    actuator: int,
    fraction: float,
    period_s: float,
    duration_s: float,
) -> Excitation:
    """Return a square wave between the ends of an actuator's range; its edges show the delay."""
    safe_command = [a.safe for a in rig.actuators]
    name = rig.actuators[actuator].name
    ends = [safe_command[actuator] + fraction * (limit - safe_command[actuator]) for limit in ranges[name]]

    def command(t: float, observation: Sequence[float]) -> tuple[float, ...]:
        is_high = t % period_s < 0.5 * period_s
        return (*safe_command[:actuator], ends[is_high], *safe_command[actuator + 1 :])

    return Excitation(f"steps of {name}, {fraction:.0%}", duration_s, command)


def chirps(rig: Rig, ranges: Mapping[str, tuple[float, float]], chirp_s: float, rest_s: float) -> list[Excitation]:
    """Return chirps of each actuator in turn from 0.1 to 4 Hz, gentle ones first, with rests in between."""
    experiment = [hold_safe(rig, 0.5 * rest_s)]
    for fraction in (0.15, 0.5, 1.0):
        for i in range(len(rig.actuators)):
            experiment += [chirp(rig, ranges, i, fraction, (0.1, 4.0), chirp_s), hold_safe(rig, rest_s)]
    return experiment
