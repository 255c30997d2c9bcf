"""One-step residuals of a rig against its plants: whether any plant explains the next measurement."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from math import pi
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.maths import BATCHED
from onrig.runtime.record import Flag
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import PlantBox, dead_band_of, error_bound, separate_parameters
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.plants import nominal_plant, observation_indices
from onrig.sim.plants.integrate import Array, advance
from onrig.sim.plants.plant import Plant
from onrig.sim.plants.registry import plant_type_for

_MAX_CORNERS: Final = 64
"""Maximum number of corners of the uncertainty; if it has more, this many are drawn at random."""
_MAX_NOMINAL_RESIDUAL: Final = 1.5
"""Residual, in units of the sensor errors, up to which the nominal plant explains a measurement: this sample's error
plus half the error of the previous one."""
_SUBSTEPS: Final = 4
_INTERVAL_WIDENING: Final = 0.05
"""Widening of the interval over the corner plants, as a share of its width: predictions may not be monotone between
corners."""
State = tuple[Array, ...]


class Steps(NamedTuple):
    """l measured steps of a rig, in SI units."""

    observation: Array
    """Observations of the plant's states, (n, l)."""
    previous_command: Array
    """Command in force at the sample, (m, l)."""
    command: Array
    """Command in force at the end of the period, (m, l)."""
    switch_s: Array
    """Time from the sample to the switch between the two commands, (l,)."""
    next_observation: Array
    """Observations of the next sample, (n, l)."""


class OneStepCheck:
    """Comparison of measured steps with all plants that a promise covers, sensor errors included.

    A sampled promise bounds the next measurement on both sides.  A proven box only bounds the speed from above, so that
    it covers any friction.
    """

    def __init__(self, config: RunConfig, box: PlantBox) -> None:
        """Prepare the plants.  Raises ValueError if the box has none, or if the rig does not observe all states."""
        rig, self._period_s = config.rig, config.period_us * 1e-6
        self._rig = rig
        self._is_one_sided = not isinstance(box, SampledBox)
        self._nominal = (
            nominal_plant(config, box) if isinstance(box, SampledBox) else plant_type_for(box).of_box(box, rig)
        )
        observed_names = [o.sensor or o.name for o in rig.observations]
        if any(name not in observed_names for name in self._nominal.state_names):
            raise ValueError("not every state of the plant is observed")
        self.order = observation_indices(rig, self._nominal)
        """Index of the observation of each of the plant's states."""
        names = [rig.observations[at].name for at in self.order]
        self._velocity = names.index(box.velocity)
        self._is_angle = np.array([rig.wraps(name) for name in names])
        self.errors = np.array([error_bound(box, rig, name) for name in names])
        """Bound on the error of each observation in ``order``."""
        self._late_s = min(box.late_us * 1e-6, self._period_s)
        self._plants = [*_corner_plants(box, self._nominal)]

    def count(self, records: NDArray[np.void]) -> tuple[int, int]:
        """Return the number of unexplained steps and of all steps between consecutive records of an episode."""
        steps = consecutive_steps(records, self._rig, self.order)
        return (0, 0) if steps is None else (int(np.count_nonzero(self.unexplained_steps(steps))), len(steps.switch_s))

    def unexplained_steps(self, steps: Steps) -> NDArray[np.bool_]:
        """Return the mask (l,) of steps that no covered plant explains; steps at a wall count as explained."""
        with np.errstate(over="ignore", invalid="ignore"):
            nominal = self._predict(self._nominal, tuple(steps.observation), steps, 0.0)
            residual = np.abs(self._difference(nominal, steps.next_observation))
            candidate_index = np.flatnonzero(
                ~(residual <= _MAX_NOMINAL_RESIDUAL * self.errors[:, None]).all(axis=0)
            )  # steps that the nominal plant does not explain
            is_unexplained = np.zeros(len(steps.switch_s), bool)
            if len(candidate_index):
                candidate_steps = Steps(*(values[..., candidate_index] for values in steps))
                is_unexplained[candidate_index] = self._confirm_unexplained(
                    candidate_steps, nominal[:, candidate_index]
                )
        return is_unexplained

    def _confirm_unexplained(self, steps: Steps, nominal: Array) -> NDArray[np.bool_]:
        state: State = tuple(steps.observation)
        tolerance = self.errors[:, None] + self._sensor_effect(state, steps, nominal)
        tolerance += np.abs(self._difference(self._predict(self._nominal, state, steps, self._late_s), nominal))
        predictions = np.stack([self._predict(plant, state, steps, 0.0) for plant in self._plants])
        moves_freely_throughout: Any = np.ones(len(steps.switch_s), bool)
        for at_sample in (state, tuple(nominal), tuple(steps.next_observation)):
            moves_freely_throughout = moves_freely_throughout & self._nominal.moves_freely(at_sample)
        if self._is_one_sided:
            at = self._velocity
            speeds = np.abs(predictions[:, at])
            max_speed = speeds.max(axis=0) + tolerance[at] + _INTERVAL_WIDENING * np.ptp(speeds, axis=0)
            return np.asarray(
                moves_freely_throughout & ~(np.abs(steps.next_observation[at]) <= max_speed * (1.0 + 1e-9))
            )
        residual = self._difference(predictions, steps.next_observation[None])
        low, high = residual.min(axis=0), residual.max(axis=0)
        tolerance += _INTERVAL_WIDENING * (high - low) + 1e-9
        return np.asarray(moves_freely_throughout & ~((low <= tolerance) & (high >= -tolerance)).all(axis=0))

    def _sensor_effect(self, state: State, steps: Steps, nominal: Array) -> Array:
        """Return an upper bound (n, l) on how much errors in this sample change the prediction of the next one."""
        total: Any = 0.0
        for i, error in enumerate(self.errors):
            perturbed_state = tuple(x + error if j == i else x for j, x in enumerate(state))
            total = total + np.abs(self._difference(self._predict(self._nominal, perturbed_state, steps, 0.0), nominal))
        return np.asarray(total)

    def _predict(self, plant: Plant, state: State, steps: Steps, later_s: float) -> Array:
        first_s = np.minimum(steps.switch_s + later_s, self._period_s)
        if first_s.any():
            state = advance(plant, state, tuple(steps.previous_command), first_s, _SUBSTEPS)
        state = advance(plant, state, tuple(steps.command), self._period_s - first_s, _SUBSTEPS)
        return np.stack(plant.constrain(BATCHED, state))

    def _difference(self, a: Array, b: Array) -> Array:
        """Return the difference of two states (..., n, l), with angles wrapped to within half a turn."""
        difference = a - b
        wrapped_difference = (difference + pi) % (2.0 * pi) - pi
        return np.where(self._is_angle[:, None], wrapped_difference, difference)


def _corner_plants(box: PlantBox, nominal: Plant) -> Iterator[Plant]:
    """Yield the nominal plant, then the plants at the corners of a box's uncertainty."""
    yield nominal
    if isinstance(box, SampledBox):
        yield from (nominal.varied(values) for values in _corner_values(box.uncertainty))
        return
    lumped_intervals = {name: _interval_around(value, box.spread) for name, value in box.nominal.items()}
    separate_intervals = {
        name: _interval_around(value, spread) for name, (value, spread) in separate_parameters(box).items() if spread
    }
    if band := dead_band_of(box):
        separate_intervals["dead_band"] = (0.0, band)
    for values in _corner_values({**lumped_intervals, **separate_intervals}):
        plant = nominal.varied({name: values[name] for name in separate_intervals})
        yield plant.with_lumped({name: values[name] for name in lumped_intervals})


def _interval_around(value: float, spread: float) -> tuple[float, float]:
    return value * (1.0 - spread), value * (1.0 + spread)


def _corner_values(intervals: Mapping[str, tuple[float, float]]) -> Iterator[dict[str, float]]:
    names, ends = [*intervals], [*intervals.values()]
    if 2 ** len(ends) <= _MAX_CORNERS:
        yield from (dict(zip(names, corner, strict=True)) for corner in itertools.product(*ends))
        return
    end_indices = np.random.default_rng(0).integers(2, size=(_MAX_CORNERS, len(ends)))
    yield from ({name: ends[i][indices[i]] for i, name in enumerate(names)} for indices in end_indices.tolist())


def consecutive_steps(records: NDArray[np.void], rig: Rig, order: tuple[int, ...]) -> Steps | None:
    """Return the steps between consecutive records of an episode; None if no two follow each other without a gap."""
    records, next_records = records[:-1], records[1:]
    is_consecutive = (
        (records["flags"] & (Flag.INVALID | Flag.NO_ACTION) == 0)
        & (next_records["tick"] == records["tick"] + 1)
        & (next_records["frame"] == records["frame"] + 1)
    )
    records, next_records = records[is_consecutive], next_records[is_consecutive]
    if not len(records):
        return None
    counts = np.array([a.resolution for a in rig.actuators])[:, None]
    state_indices = list(order)
    return Steps(
        records["observation"].astype(np.float64).T[state_indices],
        counts * records["u_start"].astype(np.float64).T,
        counts * records["u_end"].astype(np.float64).T,
        records["tau_us"].astype(np.float64) * 1e-6,
        next_records["observation"].astype(np.float64).T[state_indices],
    )
