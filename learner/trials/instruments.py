"""A rig's instruments for many plants: normalised observations with noise, actions in SI units, rewards.

The plants are the twin's, optionally with quantised signals; sensor and actuator noise are as in de Bruin et al. 2018,
§6.5.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig, targets_of
from onrig.runtime.inputs import build_composition
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import batched_reward, batched_termination, episode_steps
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import step
from onrig.sim.twin.options import TwinOptions

Values = NDArray[np.float64]


class _Resolutions(NamedTuple):
    sensors: Values
    """(n,), SI units: resolution of each observation's sensor."""
    actuators: Values
    """(m,), SI units: resolution of each actuator."""


def _resolutions(rig: Rig) -> _Resolutions:
    resolutions = {s.name: s.resolution for s in rig.sensors}
    estimated_names = [o.name for o in rig.observations if o.derivative_of is not None]
    if estimated_names:
        raise ValueError(f"observation '{estimated_names[0]}' is estimated, not read in counts")
    sensors = [resolutions[o.sensor or o.name] for o in rig.observations]
    return _Resolutions(np.array(sensors), np.array([a.resolution for a in rig.actuators]))


def _round_to(values: Values, step: Values) -> Values:
    return np.asarray(np.rint(values / step) * step)


class PolicyInputs:
    """Inputs of a policy, composed from current and earlier signals."""

    def __init__(self, config: RunConfig) -> None:
        self._composition = build_composition(config.task.inputs, config.rig)
        self.k: Final = len(config.signals)
        """Number of inputs."""
        self.history: Final = 0 if self._composition is None else self._composition.history
        """Number of earlier observations that the inputs require."""
        self._inputs, self._signals = (
            Normalisation.from_signals(config.signals),
            Normalisation.from_signals(config.rig.signals),
        )

    def compute(self, signals: Values) -> Values:
        """Return the inputs (..., k) for normalised signals (r, ..., n + q), the current ones first."""
        if self._composition is None:
            return np.asarray(signals[0])
        composed_signals = self._composition.batch(self._signals.to_si(signals))
        return self._inputs.normalise(composed_signals)


class Instruments:
    """Instruments of one configuration, for any number of plants; their values are computed element by element."""

    def __init__(self, config: RunConfig, plant: Plant | None = None, *, counts: bool = False) -> None:
        """``plant`` replaces the twin's plant; its parameters may be arrays over the plants.

        With ``counts``, sensors and actuators have the rig's resolution, and estimated observations raise ValueError.
        """
        rig, options = config.rig, msgspec.convert(config.device.twin, TwinOptions)
        self.plant: Final[Plant] = plant or options.plant
        self.n: Final = len(rig.observations)
        self.m: Final = len(rig.actuators)
        self.safe_command: Final = np.array([a.safe for a in rig.actuators])
        """Safe output (m,) in SI units."""
        self.substeps: Final = options.substeps
        self.period_s: Final = 1.0 / config.rate_hz
        self.steps: Final = episode_steps(config.task, config.rate_hz)
        """Number of transitions in a complete episode."""
        state_names = self.plant.state_names
        self._state_indices = [state_names.index(o.sensor or o.name) for o in rig.observations]
        self.inputs: Final = PolicyInputs(config)
        self._observations, self._actions = (
            Normalisation.from_signals(rig.observations),
            Normalisation.from_signals(rig.actuators),
        )
        self._signals: Final = Normalisation.from_signals(rig.signals)
        wrapped_sensors = {s.name for s in rig.sensors if s.wrap}
        full_turns = 2.0 * np.pi / self._observations.half_range
        low = (-np.pi - self._observations.centre) / self._observations.half_range
        self._wrapped_angles = [
            (i, full_turns[i], low[i])
            for i, o in enumerate(rig.observations)
            if (o.sensor or o.name) in wrapped_sensors
        ]
        """Index, full turn and lower end of each angle that wraps, normalised."""
        self._count_resolutions = _resolutions(rig) if counts else None
        zeros = options.sensor_zero or {}
        self._zeros = np.array([zeros.get(o.sensor or o.name, 0.0) for o in rig.observations]) if zeros else None
        self._wrapped_columns = [i for i, o in enumerate(rig.observations) if (o.sensor or o.name) in wrapped_sensors]
        self.targets: Final = len(targets_of(rig))
        """Number q of targets, which come after the rig's observations."""
        self.reward: Final = batched_reward(config.task, rig)
        """Function from the signals (..., n + q) of s' and the applied and previous actions (..., m), in SI units, to
        rewards (...)."""
        self.has_terminated: Final = batched_termination(config.task, rig)
        """Function from signals (..., n + q) in SI units to whether they terminate the task (...)."""

    def measure(self, state: tuple[Values, ...]) -> Values:
        """Return the exact measurements (plants, n) of states in SI units."""
        measured_signals = np.empty((len(state[0]), self.n))
        for i, index in enumerate(self._state_indices):
            measured_signals[:, i] = state[index]
        if self._zeros is not None:
            measured_signals += self._zeros
            measured_signals[:, self._wrapped_columns] = (measured_signals[:, self._wrapped_columns] + np.pi) % (
                2.0 * np.pi
            ) - np.pi
        return (
            measured_signals
            if self._count_resolutions is None
            else _round_to(measured_signals, self._count_resolutions.sensors)
        )

    def round_to_resolution(self, action: Values) -> Values:
        """Round normalised actions (..., m) to the actuators' resolution."""
        if self._count_resolutions is None:
            return action
        return self.to_action(_round_to(self.to_command(action), self._count_resolutions.actuators))

    def normalise_with_noise(self, signals: Values, noise: Values | None) -> Values:
        """Normalise signals (..., n + q) in SI units, with noise (..., n) on the measured ones."""
        if not self.targets:
            return self._observe(signals, noise)
        normalised_signals = self._signals.normalise(signals)
        normalised_signals[..., : self.n] = self._observe(signals[..., : self.n], noise)
        return normalised_signals

    def _observe(self, measured_signals: Values, noise: Values | None) -> Values:
        observation = self._observations.normalise(measured_signals)
        if noise is not None:
            observation += noise
            for i, full_turn, low in self._wrapped_angles:
                observation[..., i] = (observation[..., i] - low) % full_turn + low
            if self._count_resolutions is not None:
                observation = self._observations.normalise(
                    _round_to(self.to_si(observation), self._count_resolutions.sensors)
                )
        return observation

    def to_si(self, observation: Values) -> Values:
        """Convert normalised observations (..., n) to SI units."""
        return self._observations.to_si(observation)

    def to_command(self, action: Values) -> Values:
        """Convert normalised actions (..., m) to commands in SI units."""
        return self._actions.to_si(action)

    def to_action(self, command: Values) -> Values:
        """Convert commands (..., m) in SI units to normalised actions."""
        return self._actions.normalise(command)

    def advance(self, state: tuple[Values, ...], command: Values) -> tuple[Values, ...]:
        """Return the state after one period with commands (plants, m)."""
        constant_action: tuple[Values, ...] = tuple([np.ascontiguousarray(command[:, i]) for i in range(self.m)])
        return step(self.plant, state, constant_action, self.period_s, self.substeps)
