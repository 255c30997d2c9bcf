"""Fitted model: a plant with unknown parameters, and sensors and actuators of unknown sign and zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.sim.identification.recording import HISTORY, Windows
from onrig.sim.identification.trajectories import simulate
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array
from onrig.sim.twin.options import ZERO_PREFIX, sensor_half_range

SCALE_PREFIX: Final = "scale_"
"""Name prefix of a velocity sensor's scale: its reading per unit of the state."""
LAG_PREFIX: Final = "lag_"
"""Name prefix of a velocity sensor's delay (s) with respect to the other sensors."""
_MAX_FACTOR: Final = 1e3
"""Maximum factor between a positive parameter and its initial guess."""
_MAX_BEYOND_WALL: Final = 0.05
"""Maximum reading beyond a wall attributable to zero error or noise, as a fraction of the half-range."""
_KINK_STEP: Final = 1e-6
_KINKED_STEP: Final = 2e-4
"""Difference step, as a share of the range, for parameters whose trajectories have kinks (stops, small commands)."""


class Unknown(NamedTuple):
    """An unknown parameter and its coordinate in the fit."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    is_logarithmic: bool
    """Whether the coordinate is the logarithm of the magnitude; the sign is that of ``start``."""
    step: float
    """Difference step of the coordinate."""

    def coordinate(self, value: float) -> float:
        return float(np.log(abs(value))) if self.is_logarithmic else value

    def value(self, coordinate: Any) -> Any:
        """Return the value at a coordinate, or the values at an array of coordinates."""
        if not self.is_logarithmic:
            return coordinate
        return np.exp(coordinate) if self.start > 0.0 else -np.exp(coordinate)


class Signs(NamedTuple):
    """Signs of the channels: +1, or -1 if reversed."""

    sensors: tuple[int, ...]
    actuators: tuple[int, ...]


def unknowns_of(
    plant: Plant, rig: Rig, period_s: float, errors: Mapping[str, float] = MappingProxyType({})
) -> tuple[Unknown, ...]:
    """Return the unknowns of a plant: lumped parameters, imperfections, and the zero of each position sensor.

    ``errors``: initial guesses of additional sensor errors, keyed by a prefix plus the sensor's name.
    """
    declared_parameters = {p.name: p for p in plant.parameters()}
    velocities = velocities_of(plant)
    unknowns = []
    for name, nominal in plant.identifiable.items():
        if nominal == 0.0 and name not in plant.lumped:
            continue  # no initial magnitude
        low, high = sorted((nominal / _MAX_FACTOR, nominal * _MAX_FACTOR))
        parameter = declared_parameters.get(name)
        if parameter is not None:
            low, high = max(low, parameter.low), min(high, parameter.high)
        unknowns.append(Unknown(name, parameter.unit if parameter else "", nominal, low, high, True, _KINK_STEP))
    reach = min(max(a.safe - a.low, a.high - a.safe) for a in rig.actuators)
    half_range = {o.sensor or o.name: 0.5 * (o.high - o.low) for o in rig.observations}
    max_velocity = half_range.get(plant.velocities[-1], 1.0)
    unknowns += [
        Unknown("dry_friction", "", 0.01 * max_velocity, 0.0, 100.0 * max_velocity, False, _KINKED_STEP * max_velocity),
        Unknown("dead_band", rig.actuators[0].unit, 0.005 * reach, 0.0, 0.5 * reach, False, _KINKED_STEP * reach),
        Unknown("delay_s", "s", 0.5 * period_s, 0.0, (HISTORY - 1) * period_s, False, 1e-6 * period_s),
    ]
    for sensor in rig.sensors:
        if sensor.name not in velocities:
            reach = np.pi if sensor.wrap else half_range.get(sensor.name, 1.0)
            unknowns.append(
                Unknown(ZERO_PREFIX + sensor.name, sensor.unit, 0.0, -2 * reach, 2 * reach, False, 1e-6 * reach)
            )
        for name, initial_value in errors.items():
            reach = half_range.get(sensor.name, 1.0)
            if name == SCALE_PREFIX + sensor.name:
                unknowns.append(Unknown(name, "", initial_value, 0.5, 2.0, True, _KINK_STEP))
            elif name == LAG_PREFIX + sensor.name:
                unknowns.append(Unknown(name, "s", initial_value, -2 * period_s, 2 * period_s, False, 1e-6 * period_s))
            elif name == ZERO_PREFIX + sensor.name and name not in [u.name for u in unknowns]:
                unknowns.append(Unknown(name, sensor.unit, initial_value, -reach, reach, False, 1e-6 * reach))
    return tuple(unknowns)


def kinematic_pairs(plant: Plant) -> Iterator[tuple[str, str]]:
    """Yield the pairs of states (position, velocity) in which the second is the rate of the first under any action."""
    rng = np.random.default_rng(0)
    states = tuple(rng.uniform(0.1, 1.0, (len(plant.state_names), 8)))
    rates = plant.derivative(BATCHED, states, tuple(rng.uniform(0.1, 1.0, (plant.n_actions, 8))))
    for position, rate in zip(plant.state_names, rates, strict=True):
        for velocity, state in zip(plant.state_names, states, strict=True):
            if np.array_equal(np.broadcast_to(rate, 8), state):
                yield position, velocity


def velocities_of(plant: Plant) -> set[str]:
    """Return the states that are velocities, which have no zero to identify."""
    return {*plant.velocities, *(velocity for _, velocity in kinematic_pairs(plant))}


class Model:
    """Readings in the windows as a function of coordinates (V, p) and starts (V, W, n)."""

    def __init__(
        self, plant: Plant, rig: Rig, unknowns: Sequence[Unknown], windows: Windows, signs: Signs, substeps: int
    ) -> None:
        self.plant, self.rig, self.unknowns, self.substeps = plant, rig, tuple(unknowns), substeps
        self.signs = signs
        actuator_signs = np.array(signs.actuators, np.float64)
        self.windows = windows._replace(u_start=windows.u_start * actuator_signs, u_end=windows.u_end * actuator_signs)
        self.states = [plant.state_names.index(s.name) for s in rig.sensors]
        self._sensor_signs = np.array(signs.sensors, np.float64)
        names = [u.name for u in unknowns]
        self._zeros, self._scales, self._lags = (
            [names.index(kind + s.name) if kind + s.name in names else None for s in rig.sensors]
            for kind in (ZERO_PREFIX, SCALE_PREFIX, LAG_PREFIX)
        )

    def values(self, coordinates: Array) -> dict[str, Any]:
        """Return the values at coordinates (V, p), by name, each (V, 1)."""
        return {u.name: u.value(coordinates[:, i : i + 1]) for i, u in enumerate(self.unknowns)}

    def predict(self, coordinates: Array, starts: Array) -> Array:
        """Return the readings (V, W, L + 1, s), non-finite if the plant diverges."""
        values = self.values(coordinates)
        delay_s = values["delay_s"][:, 0]
        plant_values = {n: values[n] for n in (*self.plant.identifiable, "dry_friction", "dead_band") if n in values}
        states = simulate(self.plant.with_identifiable(plant_values), starts, self.windows, delay_s, self.substeps)
        readings = states[..., self.states]
        for i, index in enumerate(self._lags):
            if index is not None:
                steps = np.diff(readings[..., i], axis=2)
                period_fraction = coordinates[:, index, None, None] / self.windows.period_s
                readings[..., i] -= period_fraction * np.concatenate([steps[..., :1], steps], axis=2)
        for i, index in enumerate(self._scales):
            if index is not None:
                readings[..., i] *= self.unknowns[index].value(coordinates[:, index, None, None])
        for i, index in enumerate(self._zeros):
            if index is not None:
                readings[..., i] += coordinates[:, index, None, None]
        return np.asarray(readings * self._sensor_signs)

    def windows_free_of_walls(self, coordinates: Array) -> NDArray[np.bool_]:
        """Return the mask (W,) of windows without wall contact, according to the measurements."""
        measured_states = self._measured_states(coordinates)
        is_free = np.broadcast_to(self.plant.moves_freely(measured_states), measured_states[0].shape)
        return np.asarray(np.all(is_free, axis=1))

    def windows_beyond_walls(self, coordinates: Array) -> NDArray[np.bool_]:
        """Return the mask (W,) of windows with a reading farther beyond a wall than zero error or noise can explain."""
        measured_states = self._measured_states(coordinates)
        possible_states = self.plant.constrain(BATCHED, measured_states)
        is_beyond, velocities = np.zeros(self.windows.size, bool), velocities_of(self.plant)
        for sensor, state in zip(self.rig.sensors, self.states, strict=True):
            half_range = sensor_half_range(self.rig, sensor.name)
            if half_range and not sensor.wrap and sensor.name not in velocities:
                is_beyond |= np.any(
                    np.abs(measured_states[state] - possible_states[state]) > _MAX_BEYOND_WALL * half_range, axis=1
                )
        return is_beyond

    def _measured_states(self, coordinates: Array) -> tuple[Array, ...]:
        """Return the measured states, n arrays (W, L + 1); 0 for states that are not measured."""
        measured_states = np.zeros((len(self.plant.state_names), *self.windows.readings.shape[:2]))
        for i, (state, zero_index) in enumerate(zip(self.states, self._zeros, strict=True)):
            zero = coordinates[zero_index] if zero_index is not None else 0.0
            measured_states[state] = self.windows.readings[..., i] * self._sensor_signs[i] - zero
        return tuple(measured_states)

    def initial_starts(self, coordinates: Array) -> Array:
        """Return initial starts (W, n): measured values, unmeasured velocities from their positions, otherwise 0."""
        readings = self.windows.readings * self._sensor_signs
        starts = np.zeros((self.windows.size, len(self.plant.state_names)))
        for i, (state, zero_index) in enumerate(zip(self.states, self._zeros, strict=True)):
            starts[:, state] = readings[:, 0, i] - (coordinates[zero_index] if zero_index is not None else 0.0)
        names, span = self.plant.state_names, min(4, self.windows.periods)
        for position, velocity in kinematic_pairs(self.plant):
            state, zero_index = names.index(velocity), names.index(position)
            if state not in self.states and zero_index in self.states:
                i = self.states.index(zero_index)
                starts[:, state] = (readings[:, span, i] - readings[:, 0, i]) / (span * self.windows.period_s)
        return starts
