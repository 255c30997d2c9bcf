"""Plausibility of the limits: units, roles and magnitudes.

Names and bounds are already valid; the checks are the same for a twin and a device on a port. A configuration that
fails is not protected: its limit exceeds the sensor's range, its brake opposes an angle, its prediction is for
different plants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from onrig.hw.roles import (
    derivative_problem,
    lag_s,
    measured_range,
    observation_of,
    place_problems,
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
    evaluated_observations,
    max_acceleration_of,
    units_of,
)

_MAX_FILTER_LAG_S: Final = 1.0
"""Maximum delay of a low-pass filter on any rig."""


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
    return list(dict.fromkeys([*names, *(() if box is None else evaluated_observations(box, setting.rig))]))


def _envelopes(setting: Setting) -> Iterator[Finding]:
    for name, e in setting.envelope.items():
        o = observation_of(setting.rig, name)
        low, high = (e.low, e.high) if o is None else measured_range(setting.rig, o)
        if e.low < low or e.high > high:
            yield (
                ("limits", "envelope", name),
                f"[{e.low:g}, {e.high:g}] is wider than the readings of '{name}', [{low:g}, {high:g}], so "
                "it never acts: narrow it, or state the sensor's range (rig.sensors: low, high)",
            )


def _fallback_roles(setting: Setting) -> Iterator[Finding]:
    rig, path = setting.rig, ("limits", "fallback")
    problems: list[tuple[str, str | None]] = []
    match setting.fallback:
        case Damp(observation=velocity, full_at=full_at):
            problems = [
                ("observation", rate_problem(rig, velocity)),
                ("full_at", speed_problem(rig, velocity, full_at)),
            ]
        case Hold(position=place, velocity=velocity, magnets=magnets, brake_below=brake_below):
            problems = [
                ("velocity", derivative_problem(rig, place, velocity)),
                ("brake_below", speed_problem(rig, velocity, brake_below)),
            ]
            yield from (((*path, "magnets", name), message) for name, message in place_problems(rig, place, magnets))
    yield from (((*path, field), message) for field, message in problems if message is not None)


def _prediction_roles(setting: Setting, box: PlantBox) -> Iterator[Finding]:
    rig, path = setting.rig, ("limits", "predicted")
    units, covered, place = units_of(box), actuators_of(box), observation_of(rig, box.place)
    if units is not None and place is not None and not same_unit(place.unit, units.place):
        yield path, f"these plants move in {units.place!r}, but '{box.place}' is in {place.unit!r}"
    elif problem := derivative_problem(rig, box.place, box.velocity):
        yield (*path, "velocity"), problem
    driving = [a for a in rig.actuators if a.name in covered]
    for a in driving:
        if units is not None and not same_unit(a.unit, units.actuator):
            yield path, f"these plants are driven in {units.actuator!r}, but '{a.name}' is in {a.unit!r}"
    for a in rig.actuators:
        if a not in driving and any(same_unit(a.unit, d.unit) for d in driving):
            message = f"'{a.name}' drives the plant as '{driving[0].name}' does, but the prediction omits it"
            yield path, f"{message}: add it to the prediction, or set limits.predicted: null"
    for name, message in place_problems(rig, box.place, getattr(box, "magnets", {})):
        yield (*path, "magnets", name), message


def _estimates(setting: Setting, box: PlantBox | None) -> Iterator[Finding]:
    """Check the error and delay of velocities that are estimated from differences."""
    rig, period_s = setting.rig, setting.period_s
    bounded = box is not None and box.velocity in setting.envelope and set(actuators_of(box)) <= set(setting.ranges)
    max_acceleration = max_acceleration_of(box, setting) if box is not None and bounded else None
    for name in guarded_observations(setting, box):
        o = observation_of(rig, name)
        if o is None or o.derivative_of is None:
            continue
        lag, index = lag_s(rig, name, period_s), next(i for i, other in enumerate(rig.observations) if other is o)
        if lag - 0.5 * period_s > _MAX_FILTER_LAG_S:
            message = f"the shield uses '{name}', which a low-pass filter of {o.cutoff_hz:g} Hz delays by {lag:.3g} s"
            yield ("rig", "observations", index, "cutoff_hz"), f"{message}: at most {_MAX_FILTER_LAG_S:g} s is allowed"
            continue
        if box is None:
            continue
        sensor = next(s for s in rig.sensors if s.name == o.derivative_of)
        envelope, gap_s = setting.envelope.get(name), rig.lease_periods * period_s
        if sensor.wrap and envelope is not None and max(-envelope.low, envelope.high) * gap_s >= math.pi:
            message = f"the angle from which '{name}' is estimated may turn by half a turn in a lease of {gap_s:g} s"
            yield (
                ("rig", "lease_periods"),
                f"{message}, whose frames may be lost: the estimate then has the wrong sign; measure it, or shorten "
                "the lease",
            )
        elif max_acceleration is not None and name == box.velocity and name in box.sensor_error:
            lag = lag_s(rig, name, period_s, rig.lease_periods)
            required, configured = max_acceleration * lag + sensor.resolution / period_s, error_bound(box, rig, name)
            if configured < required:
                message = (
                    f"'{name}' lags {lag:.3g} s while frames are lost: these plants change it by up to {required:.3g} "
                    f"{o.unit} meanwhile"
                )
                yield (
                    ("limits", "predicted", "sensor_error", name),
                    f"{message}, more than {configured:g}: set at least that, or filter less (cutoff_hz)",
                )
