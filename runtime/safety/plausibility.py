"""Plausibility of the limits: units, roles and magnitudes.

The checks require valid names and bounds, and are the same for a twin and for a device on a port.  A configuration that
fails them is not protected: its limit exceeds the sensor's range, its brake opposes an angle, or its prediction is for
different plants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from onrig.hw.roles import (
    derivative_problem,
    magnet_problems,
    measured_range,
    observation_of,
    speed_problem,
    velocity_lag_s,
    velocity_unit_problem,
)
from onrig.hw.units import same_unit
from onrig.runtime.config.problem import Finding
from onrig.runtime.safety.fallback import Damp, Hold
from onrig.runtime.safety.plant_box import (
    PlantBox,
    PredictionContext,
    actuators_of,
    error_bound,
    evaluated_observations,
    max_acceleration_of,
    units_of,
)

_MAX_FILTER_LAG_S: Final = 1.0
"""Maximum delay that a low-pass filter may cause, on any rig."""


def plausibility_findings(context: PredictionContext, box: PlantBox | None) -> Iterator[Finding]:
    """List (path, message) for limits that are ineffective or refer to the wrong quantity."""
    yield from _envelope_findings(context)
    yield from _fallback_findings(context)
    if box is not None:
        yield from _prediction_findings(context, box)
    yield from _estimate_findings(context, box)


def guarded_observations(context: PredictionContext, box: PlantBox | None) -> list[str]:
    """Return the names of the observations that the shield and the fallback use."""
    names = [*context.envelope]
    match context.fallback:
        case Damp(observation=observation):
            names.append(observation)
        case Hold(position=position, velocity=velocity):
            names += [position, velocity]
    return list(dict.fromkeys([*names, *(() if box is None else evaluated_observations(box, context.rig))]))


def _envelope_findings(context: PredictionContext) -> Iterator[Finding]:
    for name, e in context.envelope.items():
        o = observation_of(context.rig, name)
        low, high = (e.low, e.high) if o is None else measured_range(context.rig, o)
        if e.low < low or e.high > high:
            yield (
                ("limits", "envelope", name),
                f"[{e.low:g}, {e.high:g}] is wider than the readings of '{name}', [{low:g}, {high:g}], so "
                "it never acts: narrow it, or state the sensor's range (rig.sensors: low, high)",
            )


def _fallback_findings(context: PredictionContext) -> Iterator[Finding]:
    rig, path = context.rig, ("limits", "fallback")
    problems: list[tuple[str, str | None]] = []
    match context.fallback:
        case Damp(observation=velocity, full_at=full_at):
            problems = [
                ("observation", velocity_unit_problem(rig, velocity)),
                ("full_at", speed_problem(rig, velocity, full_at)),
            ]
        case Hold(position=place, velocity=velocity, magnets=magnets, brake_below=brake_below):
            problems = [
                ("velocity", derivative_problem(rig, place, velocity)),
                ("brake_below", speed_problem(rig, velocity, brake_below)),
            ]
            yield from (((*path, "magnets", name), message) for name, message in magnet_problems(rig, place, magnets))
    yield from (((*path, field), message) for field, message in problems if message is not None)


def _prediction_findings(context: PredictionContext, box: PlantBox) -> Iterator[Finding]:
    rig, path = context.rig, ("limits", "predicted")
    units, covered_actuators, place = units_of(box), actuators_of(box), observation_of(rig, box.place)
    if units is not None and place is not None and not same_unit(place.unit, units.place):
        yield path, f"these plants move in {units.place!r}, but '{box.place}' is in {place.unit!r}"
    elif problem := derivative_problem(rig, box.place, box.velocity):
        yield (*path, "velocity"), problem
    driving_actuators = [a for a in rig.actuators if a.name in covered_actuators]
    for a in driving_actuators:
        if units is not None and not same_unit(a.unit, units.actuator):
            yield path, f"these plants are driven in {units.actuator!r}, but '{a.name}' is in {a.unit!r}"
    for a in rig.actuators:
        if a not in driving_actuators and any(same_unit(a.unit, d.unit) for d in driving_actuators):
            message = f"'{a.name}' drives the plant as '{driving_actuators[0].name}' does, but the prediction omits it"
            yield path, f"{message}: add it to the prediction, or set limits.predicted: null"
    for name, message in magnet_problems(rig, box.place, getattr(box, "magnets", {})):
        yield (*path, "magnets", name), message


def _estimate_findings(context: PredictionContext, box: PlantBox | None) -> Iterator[Finding]:
    """Check the error and delay of velocities that are estimated from differences."""
    rig, period_s = context.rig, context.period_s
    is_bounded = box is not None and box.velocity in context.envelope and set(actuators_of(box)) <= set(context.ranges)
    max_acceleration = max_acceleration_of(box, context) if box is not None and is_bounded else None
    for name in guarded_observations(context, box):
        o = observation_of(rig, name)
        if o is None or o.derivative_of is None:
            continue
        lag = velocity_lag_s(rig, name, period_s)
        index = next(i for i, candidate in enumerate(rig.observations) if candidate is o)
        if lag - 0.5 * period_s > _MAX_FILTER_LAG_S:
            message = f"the shield uses '{name}', which a low-pass filter of {o.cutoff_hz:g} Hz delays by {lag:.3g} s"
            yield ("rig", "observations", index, "cutoff_hz"), f"{message}: at most {_MAX_FILTER_LAG_S:g} s is allowed"
            continue
        if box is None:
            continue
        sensor = next(s for s in rig.sensors if s.name == o.derivative_of)
        envelope, gap_s = context.envelope.get(name), rig.lease_periods * period_s
        if sensor.wrap and envelope is not None and max(-envelope.low, envelope.high) * gap_s >= math.pi:
            message = f"the angle from which '{name}' is estimated may turn by half a turn in a lease of {gap_s:g} s"
            yield (
                ("rig", "lease_periods"),
                f"{message}, whose frames may be lost, so that the estimate has the wrong sign: measure it, or "
                "shorten the lease",
            )
        elif max_acceleration is not None and name == box.velocity and name in box.sensor_error:
            lag = velocity_lag_s(rig, name, period_s, rig.lease_periods)
            required, configured = max_acceleration * lag + sensor.resolution / period_s, error_bound(box, rig, name)
            if configured < required:
                message = (
                    f"'{name}' lags {lag:.3g} s while frames are lost: these plants change it by up to {required:.3g} "
                    f"{o.unit} in that time"
                )
                yield (
                    ("limits", "predicted", "sensor_error", name),
                    f"{message}, more than {configured:g}: set at least that, or filter less (cutoff_hz)",
                )
