"""Batched one-step model: the twin's dynamics and the task's reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.task import Task, batched_reward, batched_termination
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import SUBSTEPS, step

Values = NDArray[np.float64]
Stored = NDArray[np.float32]


class Outcome(NamedTuple):
    """Outcome of n states and actions."""

    next_observation: Stored
    """(n, n_obs), normalised."""
    reward: Stored
    """(n,), in the task's raw units."""
    terminated: NDArray[np.bool_]
    """(n,)."""


class PlantModel:
    """One period of a plant with a rig's signals: from normalised (s, a) to (s', r, terminated).

    The model is exact (de Bruin et al. 2018, §6.2.1, use "the real system model"): it has no noise and no rounding to
    counts.  Rows are independent, so a batch may be split arbitrarily.  Requires a rig without :func:`model_problems`.
    """

    def __init__(self, rig: Rig, task: Task, plant: Plant, period_s: float, substeps: int = SUBSTEPS) -> None:
        index = _observed_index(rig)
        self._plant, self._period_s, self._substeps = plant, period_s, substeps
        self._state_columns = tuple(index[name] for name in plant.state_names)
        self._previous_command = rig.previous_command
        self._names = tuple(o.sensor or o.name for o in rig.observations)
        self._observations, self._actions = (
            Normalisation.from_signals(rig.signals),
            Normalisation.from_signals(rig.actuators),
        )
        self._reward = batched_reward(task, rig)
        self._has_terminated = batched_termination(task, rig)

    def __call__(self, observation: Stored, action: Stored) -> Outcome:
        """Advance (n, n_obs) observations under (n, m) actions, both normalised; divergence gives NaN or inf."""
        observation_si, action_si = self._observations.to_si(observation), self._actions.to_si(action)
        with np.errstate(over="ignore", invalid="ignore"):
            state_columns: tuple[Values, ...] = tuple(
                np.ascontiguousarray(observation_si[:, at]) for at in self._state_columns
            )
            action_columns: tuple[Values, ...] = tuple(np.ascontiguousarray(column) for column in action_si.T)
            state = step(self._plant, state_columns, action_columns, self._period_s, self._substeps)
            next_state = dict(zip(self._plant.state_names, state, strict=True))
            columns = [next_state[name] for name in self._names]
            if self._previous_command:
                columns += action_columns
            next_observation_si = np.stack(columns, axis=1)
            return Outcome(
                next_observation=self._observations.normalise(next_observation_si).astype(np.float32),
                reward=self._reward(next_observation_si, action_si).astype(np.float32),
                terminated=self._has_terminated(next_observation_si),
            )


UNSEEN_STATE: Final = "no observation measures the plant's state"
"""Beginning of the message about an unobserved state."""


def model_problems(rig: Rig, plant: Plant) -> list[str]:
    """Return the reasons why the next state cannot be computed from the rig's observations; empty if it can."""
    problems = [
        f"observation '{o.name}' is an estimate from '{o.derivative_of}', undefined for a redrawn state"
        for o in rig.observations
        if o.derivative_of is not None
    ]
    if plant.delay_s:
        problems.append("the plant has a delay (delay_s), so its state alone does not determine the next one")
    if plant.backlash:
        problems.append("the plant has backlash, so its state alone does not determine the next one")
    observed_index = _observed_index(rig)
    problems.extend(
        f"{UNSEEN_STATE} '{name}', so its next state is unknown"
        for name in plant.state_names
        if name not in observed_index
    )
    return problems


def _observed_index(rig: Rig) -> Mapping[str, int]:
    """Return the index of the observation that equals each sensor's value, by sensor."""
    return {o.sensor or o.name: i for i, o in enumerate(rig.observations) if o.derivative_of is None}
