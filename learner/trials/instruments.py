"""Instruments of a rig for many plants: normalised observations with noise, actions in SI, rewards.

The plants are the twin's, and are quantised where asked for; sensor and actuator noise are those of de Bruin et al.
2018, §6.5.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig, targets_of
from onrig.runtime.inputs import composition_of
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.random_streams import Role, device_seed, stream
from onrig.runtime.run_config import RunConfig
from onrig.runtime.starts import are_drawn, drawn_start, middle_of
from onrig.runtime.task import batched_reward, batched_terminated, episode_steps
from onrig.runtime.tracking import EpisodeTargets
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import step
from onrig.sim.twin.options import TwinOptions

Values = NDArray[np.float64]


class _Resolutions(NamedTuple):
    sensors: Values
    """(n,) SI, of what each observation is read from."""
    actuators: Values
    """(m,) SI"""


def _resolutions(rig: Rig) -> _Resolutions:
    of = {s.name: s.resolution for s in rig.sensors}
    estimated = [o.name for o in rig.observations if o.derivative_of is not None]
    if estimated:
        raise ValueError(f"observation '{estimated[0]}' is estimated, not read in counts")
    sensors = [of[o.sensor or o.name] for o in rig.observations]
    return _Resolutions(np.array(sensors), np.array([a.resolution for a in rig.actuators]))


def _in_steps(values: Values, step: Values) -> Values:
    return np.asarray(np.rint(values / step) * step)


class Instruments:
    """Instruments of one configuration, for any number of plants; computed element by element."""

    def __init__(self, config: RunConfig, plant: Plant | None = None, *, counts: bool = False) -> None:
        """``plant`` takes the place of the twin's; its parameters may be arrays over the plants.

        With ``counts`` sensors and actuators have the rig's resolution; ValueError for estimated observations.
        """
        rig, options = config.rig, msgspec.convert(config.device.twin, TwinOptions)
        self.plant: Final[Plant] = plant or options.plant
        self.n: Final = len(rig.observations)
        self.m: Final = len(rig.actuators)
        self.safe: Final = np.array([a.safe for a in rig.actuators])
        """Safe output (m,), SI."""
        self.substeps: Final = options.substeps
        self._sigma = np.array(options.noise(rig))
        self.is_noisy: Final = bool(self._sigma.any())
        """Whether sensors or actuators add noise."""
        self.period_s: Final = 1.0 / config.rate_hz
        self.steps: Final = episode_steps(config.task, config.rate_hz)
        """Transitions of a complete episode."""
        names = self.plant.state_names
        self._seen_at = [names.index(o.sensor or o.name) for o in rig.observations]
        self._composition = composition_of(config.task.inputs, rig)
        signals = config.signals
        self.k: Final = len(signals)
        """Numbers that policies see."""
        self._inputs = Normalisation.of(signals)
        self.reach: Final = 0 if self._composition is None else self._composition.history
        """Observations before the present one that ``shown`` needs."""
        self._observations, self._actions = Normalisation.of(rig.observations), Normalisation.of(rig.actuators)
        self._signals: Final = Normalisation.of(rig.signals)
        wrapped = {s.name for s in rig.sensors if s.wrap}
        turns = 2.0 * np.pi / self._observations.half_range
        low = (-np.pi - self._observations.centre) / self._observations.half_range
        self._wraps = [(i, turns[i], low[i]) for i, o in enumerate(rig.observations) if (o.sensor or o.name) in wrapped]
        """Index, turn and lower end of angles that wrap, normalised."""
        self._counts = _resolutions(rig) if counts else None
        zeros = options.sensor_zero or {}
        self._zeros = np.array([zeros.get(o.sensor or o.name, 0.0) for o in rig.observations]) if zeros else None
        self._turning = [i for i, o in enumerate(rig.observations) if (o.sensor or o.name) in wrapped]
        self._starts: Final = config.task.all_starts
        self.are_starts_drawn: Final = are_drawn(self._starts)
        """Whether episodes start differently."""
        self.targets: Final = len(targets_of(rig))
        """Number q of targets, which follow the rig's observations."""
        self.draws_episodes: Final = bool(self.is_noisy or self.are_starts_drawn or self.targets)
        """Whether episodes differ by more than actions."""
        self._targets: Final = config.task, rig, config.period_us
        self.reward: Final = batched_reward(config.task, rig)
        """Reward of SI signals (..., n + q) of s', applied actions and those before them (..., m): (...)."""
        self.terminated: Final = batched_terminated(config.task, rig)
        """Termination by SI signals (..., n + q): (...)."""

    def noise(self, seed: int, role: Role, episode: int, steps: int) -> Values:
        """Draw the noise (steps + 1, n + m) of one episode, in normalised units."""
        drawn: Values = stream(seed, role, episode).standard_normal((steps + 1, len(self._sigma))) * self._sigma
        return drawn

    def start(self, plants: int) -> tuple[Values, ...]:
        """State at the start of an episode, (plants,) each: amid the intervals of one that is drawn."""
        middle = middle_of(self._starts)
        return tuple(np.full(plants, middle[name]) for name in self.plant.state_names)

    def drawn_start(self, seed: int, role: Role, episode: int) -> Values:
        """State (d,) at the start of an episode, that of a run of this seed."""
        start = drawn_start(self._starts, device_seed(seed, role, episode))
        return np.array([start[name] for name in self.plant.state_names])

    def course(self, seed: int, role: Role, episode: int, steps: int) -> Values:
        """Targets (steps + 1, q), SI, of an episode, those of a run of this seed."""
        return EpisodeTargets(*self._targets, steps).of_role(seed, role, episode)

    def measured(self, state: tuple[Values, ...]) -> Values:
        """Return what sensors have to see of states, SI: (plants, n)."""
        measured = np.empty((len(state[0]), self.n))
        for i, at in enumerate(self._seen_at):
            measured[:, i] = state[at]
        if self._zeros is not None:
            measured += self._zeros
            measured[:, self._turning] = (measured[:, self._turning] + np.pi) % (2.0 * np.pi) - np.pi
        return measured if self._counts is None else _in_steps(measured, self._counts.sensors)

    def settable(self, action: Values) -> Values:
        """Actions (..., m) as actuators can set them, normalised."""
        if self._counts is None:
            return action
        return self.to_action(_in_steps(self.to_command(action), self._counts.actuators))

    def normalised(self, signals: Values, noise: Values | None) -> Values:
        """Return what is seen of SI signals (..., n + q), the measured ones of them under noise (..., n)."""
        if not self.targets:
            return self._observed(signals, noise)
        seen = self._signals.normalised(signals)
        seen[..., : self.n] = self._observed(signals[..., : self.n], noise)
        return seen

    def _observed(self, measured: Values, noise: Values | None) -> Values:
        seen = self._observations.normalised(measured)
        if noise is not None:
            seen += noise
            for i, turn, low in self._wraps:
                seen[..., i] = (seen[..., i] - low) % turn + low
            if self._counts is not None:
                seen = self._observations.normalised(_in_steps(self.in_si(seen), self._counts.sensors))
        return seen

    def shown(self, seen: Values) -> Values:
        """Return what policies see (..., k) of normalised signals (r, ..., n + q), the present ones first."""
        if self._composition is None:
            return np.asarray(seen[0])
        composed = self._composition.batch(self._signals.si(seen))
        return self._inputs.normalised(composed)

    def in_si(self, observation: Values) -> Values:
        """Observations (..., n) in SI."""
        return self._observations.si(observation)

    def to_command(self, action: Values) -> Values:
        """Actions (..., m) in SI."""
        return self._actions.si(action)

    def to_action(self, command: Values) -> Values:
        """Commands (..., m) as normalised actions."""
        return self._actions.normalised(command)

    def moved(self, state: tuple[Values, ...], command: Values) -> tuple[Values, ...]:
        """State a period later, under commands (plants, m) held for it."""
        held: tuple[Values, ...] = tuple([np.ascontiguousarray(command[:, i]) for i in range(self.m)])
        return step(self.plant, state, held, self.period_s, self.substeps)
