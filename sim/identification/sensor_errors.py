"""Bounds on the sensors' errors, from a fit: noise, zero, drift, scale and lag."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from onrig.hw.rig import Observation, Rig
from onrig.runtime.safety.plant_box import PlantBox, evaluated_observations
from onrig.runtime.safety.rules import Envelope
from onrig.sim.identification.model import LAG_PREFIX, SCALE_PREFIX
from onrig.sim.identification.outcome import Identification
from onrig.sim.identification.plausibility import drift_of
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array
from onrig.sim.twin.options import ZERO_PREFIX

_COVERED_SIGMAS: Final = 4.0
"""Number of standard deviations of a sensor's noise covered by the shield."""
_N_SAMPLES: Final = 20_000
"""Number of samples of states, parameters and actions among which the largest acceleration is found."""


def sensor_errors(
    identification: Identification,
    shield_widths: Array,
    plant: Plant,
    rig: Rig,
    box: PlantBox,
    envelopes: Mapping[str, Envelope],
) -> dict[str, float]:
    """Return ``sensor_error`` for the observations that the shield uses and whose sensors are inaccurate.

    A zero, its drift, and the noise of an estimated velocity are added to the current bound.  The noise, scale and lag
    of a measured observation are added only as far as that bound does not cover them.
    ``shield_widths`` (p,): half-widths to cover.
    """
    errors = {}
    for i, sensor in enumerate(rig.sensors):
        for o in rig.observations:
            if o.name not in evaluated_observations(box, rig):
                continue
            if o.derivative_of == sensor.name and identification.noise.alone[i]:
                noise = (
                    _COVERED_SIGMAS
                    * float(identification.noise.alone[i])
                    * _noise_gain(o, identification.windows.period_s)
                )
                errors[o.name] = box.sensor_error.get(o.name, 0.0) + noise
            if o.derivative_of is not None or (o.sensor or o.name) != sensor.name:
                continue
            limits = envelopes.get(o.name, o)
            max_speed = max(abs(limits.low), abs(limits.high))
            fitted_index = {u.name: k for k, u in enumerate(identification.unknowns) if identification.is_free[k]}
            zero = _zero_error(identification, shield_widths, fitted_index.get(ZERO_PREFIX + sensor.name))
            noise_bound = _COVERED_SIGMAS * float(identification.noise.alone[i])
            if (k := fitted_index.get(SCALE_PREFIX + sensor.name)) is not None:
                noise_bound += max_speed * math.expm1(_significant_magnitude(identification, shield_widths, k))
            if (k := fitted_index.get(LAG_PREFIX + sensor.name)) is not None:
                lag_s = _significant_magnitude(identification, shield_widths, k)
                noise_bound += (
                    lag_s * _max_acceleration(identification, shield_widths, plant, rig, max_speed) if lag_s else 0.0
                )
            if zero or noise_bound:
                half_count = 0.5 * sensor.resolution
                errors[o.name] = zero + max(box.sensor_error.get(o.name, half_count), half_count + noise_bound)
    return errors


def _noise_gain(observation: Observation, period_s: float) -> float:
    """Return the standard deviation of an estimated velocity per standard deviation (white) of its sensor, 1/s."""
    pole = math.exp(-2.0 * math.pi * observation.cutoff_hz * period_s) if observation.cutoff_hz > 0 else 0.0
    return (1.0 - pole) / period_s * math.sqrt(2.0 / (1.0 + pole))


def _significant_magnitude(identification: Identification, shield_widths: Array, unknown: int) -> float:
    """Return an upper bound on a coordinate's magnitude if it differs significantly from 0, otherwise 0."""
    size, width = abs(float(identification.fit.coordinates[unknown])), float(shield_widths[unknown])
    return size + width if size > width else 0.0


def _zero_error(identification: Identification, shield_widths: Array, unknown: int | None) -> float:
    """Return an upper bound on a sensor's zero, if significant, plus its drift, if significant."""
    if unknown is None:
        return 0.0
    is_offset = abs(float(identification.fit.coordinates[unknown])) > identification.half_widths[unknown]
    drift = drift_of(identification, unknown)
    zero_bound = (
        abs(float(identification.fit.coordinates[unknown])) + float(shield_widths[unknown]) if is_offset else 0.0
    )
    return zero_bound + (drift.max_deviation if drift.min_change > 0.0 else 0.0)


def _max_acceleration(
    identification: Identification, shield_widths: Array, plant: Plant, rig: Rig, max_speed: float
) -> float:
    """Return the largest acceleration of the identified plant at ``max_speed`` in either direction, with every
    parameter at its worst end."""
    ranges = {o.sensor or o.name: (o.low, o.high) for o in rig.observations if o.derivative_of is None}
    rng = np.random.default_rng(0)
    states = [rng.uniform(*ranges.get(name, (0.0, 0.0)), _N_SAMPLES) for name in plant.state_names[:-1]]
    states.append(max_speed * rng.choice([-1.0, 1.0], _N_SAMPLES))
    actions = tuple(np.where(rng.random(_N_SAMPLES) < 0.5, a.low, a.high) for a in rig.actuators)
    values = {}
    for u, c, w in zip(identification.unknowns, identification.fit.coordinates, shield_widths, strict=True):
        if u.name in plant.identifiable:
            values[u.name] = np.clip(u.value(c + rng.choice([-1.0, 1.0], _N_SAMPLES) * w), u.low, u.high)
    rates = plant.with_identifiable(values).derivative(BATCHED, tuple(states), actions)
    return float(np.max(np.abs(rates[-1])))
