"""Plausibility of the limits: units, roles and magnitudes.

Names and bounds are already valid; the checks are the same for a twin and a device on a port. A configuration that
fails is not protected: a limit beyond the sensor's range, a brake that opposes an angle, a prediction for different
plants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onrig.hw.roles import (
    lag_s,
    measured_range,
    observation_of,
    place_problems,
    rate_of_problem,
    rate_problem,
    speed_problem,
)
from onrig.hw.units import same_unit
from onrig.runtime.config.problem import Finding
from onrig.runtime.safety.fallback import Damp, Hold
from onrig.runtime.safety.plant_box import (
    PlantBox,
    Setting,
    actuators_of,
    error_bound,
    judged_by,
    max_acceleration_of,
    units_of,
)

_LONGEST_FILTER_S: Final = 1.0
"""Maximum delay by a low-pass, on any rig."""


def plausibility_findings(setting: Setting, box: PlantBox | None) -> Iterator[Finding]:
    """List (path, message) for limits that are ineffective or refer to the wrong quantity."""
    yield from _envelopes(setting)
    yield from _fallback_roles(setting)
    if box is not None:
        yield from _prediction_roles(setting, box)
    yield from _estimates(setting, box)


def guarded_observations(setting: Setting, box: PlantBox | None) -> list[str]:
    """Return the observations used by shield and fallback."""
    names = [*setting.envelope]
    match setting.fallback:
        case Damp(observation=observation):
            names.append(observation)
        case Hold(position=position, velocity=velocity):
            names += [position, velocity]
    return list(dict.fromkeys([*names, *(() if box is None else judged_by(box, setting.rig))]))


def _envelopes(setting: Setting) -> Iterator[Finding]:
    for name, e in setting.envelope.items():
        o = observation_of(setting.rig, name)
        low, high = (e.low, e.high) if o is None else measured_range(setting.rig, o)
        if e.low < low or e.high > high:
            yield (
                ("limits", "envelope", name),
                f"[{e.low:g}, {e.high:g}] is wider than what '{name}' reads, [{low:g}, {high:g}], and guards nothing "
                "beyond: narrow it, or state what the sensor can read (rig.sensors: low, high)",
            )


def _fallback_roles(setting: Setting) -> Iterator[Finding]:
    rig, at = setting.rig, ("limits", "fallback")
    found: list[tuple[str, str | None]] = []
    match setting.fallback:
        case Damp(observation=velocity, full_at=full_at):
            found = [("observation", rate_problem(rig, velocity)), ("full_at", speed_problem(rig, velocity, full_at))]
        case Hold(position=place, velocity=velocity, magnets=magnets, brake_below=brake_below):
            found = [
                ("velocity", rate_of_problem(rig, place, velocity)),
                ("brake_below", speed_problem(rig, velocity, brake_below)),
            ]
            yield from (((*at, "magnets", name), message) for name, message in place_problems(rig, place, magnets))
    yield from (((*at, field), message) for field, message in found if message is not None)


def _prediction_roles(setting: Setting, box: PlantBox) -> Iterator[Finding]:
    rig, path = setting.rig, ("limits", "predicted")
    units, covered, place = units_of(box), actuators_of(box), observation_of(rig, box.place)
    if units is not None and place is not None and not same_unit(place.unit, units.place):
        message = f"expected a place in {units.place!r}, in which these plants move"
        yield path, f"{message}, and '{box.place}' is in {place.unit!r}"
    elif message_of_rate := rate_of_problem(rig, box.place, box.velocity):
        yield (*path, "velocity"), message_of_rate
    driving = [a for a in rig.actuators if a.name in covered]
    for a in driving:
        if units is not None and not same_unit(a.unit, units.actuator):
            yield path, f"these plants are driven in {units.actuator!r}, and '{a.name}' is in {a.unit!r}"
    for a in rig.actuators:
        if a not in driving and any(same_unit(a.unit, d.unit) for d in driving):
            message = f"'{a.name}' drives the plant as '{driving[0].name}' does, and the prediction leaves it out"
            yield path, f"{message}: name it there, or set null"
    for name, message in place_problems(rig, box.place, getattr(box, "magnets", {})):
        yield (*path, "magnets", name), message


def _estimates(setting: Setting, box: PlantBox | None) -> Iterator[Finding]:
    """Check velocities estimated from differences: their error and delay for these plants."""
    rig, period_s = setting.rig, setting.period_s
    known = box is not None and box.velocity in setting.envelope and set(actuators_of(box)) <= set(setting.ranges)
    largest = max_acceleration_of(box, setting) if box is not None and known else None
    for name in guarded_observations(setting, box):
        o = observation_of(rig, name)
        if o is None or o.derivative_of is None:
            continue
        lag, at = lag_s(rig, name, period_s), next(i for i, other in enumerate(rig.observations) if other is o)
        if lag - 0.5 * period_s > _LONGEST_FILTER_S:
            message = f"the shield judges by '{name}', which a low-pass of {o.cutoff_hz:g} Hz delays by {lag:.3g} s"
            yield ("rig", "observations", at, "cutoff_hz"), f"{message}: {_LONGEST_FILTER_S:g} s at most"
        elif box is not None and largest is not None and name == box.velocity and name in box.sensor_error:
            count = next(s.resolution for s in rig.sensors if s.name == o.derivative_of)
            needed, given = largest * lag + count / period_s, error_bound(box, rig, name)
            if given < needed:
                message = f"'{name}' lags {lag:.3g} s: these plants change it by up to {needed:.3g} {o.unit} meanwhile"
                yield (
                    ("limits", "predicted", "sensor_error", name),
                    f"{message}, {given:g} is given: give at least that, or filter less (cutoff_hz)",
                )
