"""Checks of the roles that a configuration gives to observations: velocity, position on a track, largest speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from onrig.hw.rig import Observation, Rig
from onrig.hw.units import is_rate, per_second, same_unit

_MAGNET_MARGIN: Final = 0.5
"""Maximum distance of a magnet from either end of the track, as a fraction of the track's length."""


def observation_of(rig: Rig, name: str) -> Observation | None:
    """Return the observation of this name; None if the rig has none."""
    return next((o for o in rig.observations if o.name == name), None)


def measured_range(rig: Rig, observation: Observation) -> tuple[float, float]:
    """Return the measured range of an observation: its sensor's limits if configured, otherwise its own [low, high]."""
    if observation.derivative_of is None:
        for s in rig.sensors:
            if s.name == (observation.sensor or observation.name) and not (
                s.low is msgspec.UNSET or s.high is msgspec.UNSET
            ):
                return s.low, s.high
    return observation.low, observation.high


def velocity_unit_problem(rig: Rig, name: str) -> str | None:
    """Return a message if an observation used as a velocity is not in a unit of velocity; None otherwise, or for an
    unknown name."""
    o = observation_of(rig, name)
    return None if o is None or is_rate(o.unit) else f"expected a velocity, but '{name}' is in {o.unit!r}"


def derivative_problem(rig: Rig, position: str, velocity: str) -> str | None:
    """Return a message if a velocity's unit does not match its position's; None otherwise, or for an unknown name."""
    p, v = observation_of(rig, position), observation_of(rig, velocity)
    if p is None or v is None or same_unit(v.unit, per_second(p.unit)):
        return None
    expectation = f"expected the velocity of '{position}', in {per_second(p.unit)!r}"
    return f"{expectation}, but '{velocity}' is in {v.unit!r}"


def speed_problem(rig: Rig, name: str, speed: float) -> str | None:
    """Return a message if a speed exceeds an observation's measured range; None otherwise, or for an unknown name."""
    o = observation_of(rig, name)
    if o is None or speed <= (max_speed := max(map(abs, measured_range(rig, o)))):
        return None
    return f"{speed:g} {o.unit} is never reached: '{name}' reads at most {max_speed:g} {o.unit}"


def magnet_problems(rig: Rig, position: str, magnets: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield (actuator, message) for magnets far from the track, which is the measured range of ``position``."""
    o = observation_of(rig, position)
    if o is None:
        return
    low, high = measured_range(rig, o)
    margin = _MAGNET_MARGIN * (high - low)
    for name, magnet in magnets.items():
        if not low - margin <= magnet <= high + margin:
            yield (
                name,
                f"{magnet:g} lies far from the track of '{position}', {low:g} to {high:g} {o.unit}: "
                f"give it in {o.unit}",
            )


def velocity_lag_s(rig: Rig, name: str, period_s: float, gap_periods: int = 1) -> float:
    """Return the delay (s) of an estimated velocity during constant acceleration; 0 for a measured observation.

    The difference quotient delays by half the time between two samples, to which the discretised low-pass adds its
    delay.  ``gap_periods``: number of periods between two samples, more than 1 if frames are lost.
    """
    o = observation_of(rig, name)
    if o is None or o.derivative_of is None:
        return 0.0
    gap_s = gap_periods * period_s
    pole = 0.0 if o.cutoff_hz <= 0 else math.exp(-2.0 * math.pi * o.cutoff_hz * gap_s)
    return gap_s * (0.5 + (pole / (1.0 - pole) if pole < 1.0 else math.inf))
