"""Actions of trials that run whole episodes in step: with exploration noise, epsilon-greedy, or by noise of their own;
in evaluation without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, DiscreteActions, Gaussian, Stochastic
from onrig.learner.trials.drawing import GaussianDraws
from onrig.learner.trials.rollout import TRAINING, Values
from onrig.runtime.explore.noise import episode_noise, ornstein_uhlenbeck, random_levels
from onrig.runtime.explore.schedule import amplitudes, interpolate, is_quiet, schedules
from onrig.runtime.explore.settings import EpsilonGreedy as RandomLevels
from onrig.runtime.explore.settings import Exploration, OrnsteinUhlenbeck, OwnNoise
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig


class Acting(Protocol):
    """Policies of S trials and how they explore."""

    @property
    def signal(self) -> Values:
        """Noise added to the policy's actions in this training episode, (S, T, m), before clipping."""
        ...

    def begin_episode(self, episode: int) -> None:
        """Draw the exploration of training episode ``episode``."""
        ...

    def __call__(self, t: int, observation: NDArray[np.floating]) -> tuple[Values, Values]:
        """Act at step t (see ``rollout.Act``)."""
        ...

    def elsewhere(self, observation: NDArray[np.floating]) -> Values:
        """Actions before ``signal`` at other states (S, T, n) of the same steps: (S, T, m)."""
        ...

    def on_levels(self, uniform: Values) -> Values:
        """Map uniforms to available actions, as numbers over [0, 1]."""
        ...


class Noisy:
    """A policy plus the exploration process of the configuration, one signal per (seed, episode) as on the rig."""

    def __init__(
        self, policy: Algorithm, exploration: Exploration, seeds: Sequence[int], steps: int, actuators: Sequence[str]
    ) -> None:
        self._policy, self._exploration, self._seeds = policy, exploration, seeds
        self._actuators = tuple(actuators)
        self.signal: Values = np.zeros((len(seeds), steps, len(actuators)))

    def begin_episode(self, episode: int) -> None:
        """Draw the signals: those of ``runtime``'s ``episode_noise``, for all trials in one pass over the steps."""
        process = self._exploration
        if not isinstance(process, OrnsteinUhlenbeck):
            return
        if is_quiet(process.quiet, episode):
            self.signal = np.zeros_like(self.signal)
            return
        steps, n_actions = self.signal.shape[1:]
        streams = [stream(seed, Role.EXPLORATION, episode) for seed in self._seeds]
        white = np.stack([s.standard_normal((steps, n_actions)) for s in streams], axis=1)
        u = ornstein_uhlenbeck(white, process.gain, process.friction)
        # The amplitude multiplies the clipped noise.
        scaled = np.array(amplitudes(process, self._actuators, episode)) * np.clip(u, -1.0, 1.0)
        self.signal = np.ascontiguousarray(scaled.transpose(1, 0, 2))

    def __call__(self, t: int, observation: NDArray[np.floating]) -> tuple[Values, Values]:
        """Act at step t."""
        wish = self._policy.policy(observation).astype(np.float64)
        chosen = wish.copy()
        chosen[:, TRAINING] = np.clip(wish[:, TRAINING] + self.signal[:, t], -1.0, 1.0)
        return chosen, wish

    def elsewhere(self, observation: NDArray[np.floating]) -> Values:
        """Return the policy's actions."""
        return self._policy.policy(observation).astype(np.float64)

    def on_levels(self, uniform: Values) -> Values:
        """Identity: every action is available."""
        return uniform


class EpsilonGreedy:
    """The greedy action, replaced by a uniformly random one with probability epsilon (de Bruin et al. 2018, App. B).

    Epsilon is the algorithm's, or the amplitude of process ``epsilon_greedy``, as on the rig; the settings of another
    process do not apply.
    """

    def __init__(
        self,
        policy: Algorithm,
        actions: DiscreteActions,
        exploration: Exploration,
        seeds: Sequence[int],
        steps: int,
        actuators: Sequence[str],
    ) -> None:
        self._policy, self._actions, self._seeds, self._steps = policy, actions, seeds, steps
        self._epsilon, self._quiet = actions.epsilon, None
        if isinstance(exploration, RandomLevels):
            (self._epsilon,), self._quiet = schedules(exploration.amplitude, actuators), exploration.quiet
        self.signal: Values = np.zeros((len(seeds), steps, 1))
        self._explores: NDArray[np.bool_] = np.zeros((len(seeds), steps, 1), np.bool_)
        self._random: Values = np.zeros((len(seeds), steps, 1))

    def begin_episode(self, episode: int) -> None:
        """Draw the exploring steps of the episode and their random actions."""
        streams = [stream(seed, Role.EXPLORATION, episode) for seed in self._seeds]
        drawn = np.stack([random_levels(s, self._steps, self._actions.levels) for s in streams])
        quiet = is_quiet(self._quiet, episode)
        self._explores = drawn[:, :, :1] < (0.0 if quiet else interpolate(self._epsilon, episode))
        self._random = drawn[:, :, 1:]

    def __call__(self, t: int, observation: NDArray[np.floating]) -> tuple[Values, Values]:
        """Act at step t."""
        wish = self._policy.policy(observation).astype(np.float64)
        chosen = wish.copy()
        chosen[:, TRAINING] = np.where(self._explores[:, t], self._random[:, t], wish[:, TRAINING])
        return chosen, wish

    def elsewhere(self, observation: NDArray[np.floating]) -> Values:
        """Return the policy's actions, random ones at steps where the episode took one."""
        return np.where(self._explores, self._random, self._policy.policy(observation).astype(np.float64))

    def on_levels(self, uniform: Values) -> Values:
        """Return the levels, uniform on [0, 1], each for an equal share of the numbers."""
        levels = self._actions.levels
        return np.minimum(np.floor(uniform * levels), levels - 1) / (levels - 1)


class Drawing:
    """A stochastic policy: it explores by its own noise, N(0, 1) from the exploration stream, and is evaluated without.

    Process ``own`` cuts and schedules the noise as on the rig; noise in weights has no schedule.
    """

    def __init__(
        self, policy: Stochastic, exploration: Exploration, seeds: Sequence[int], steps: int, actuators: Sequence[str]
    ) -> None:
        self._policy, self._exploration, self._seeds = policy, exploration, seeds
        self._actuators = tuple(actuators)
        self.signal: Values = np.zeros((len(seeds), steps, len(actuators)))
        self._noise: Values = np.zeros((len(seeds), steps, policy.noises))

    def begin_episode(self, episode: int) -> None:
        """Draw the noise of every step."""
        streams = [stream(seed, Role.EXPLORATION, episode) for seed in self._seeds]
        steps = self._noise.shape[1]
        if isinstance(self._exploration, OwnNoise):
            self._noise = np.array(
                [episode_noise(self._exploration, s, episode, steps, self._actuators) for s in streams]
            )
        else:
            self._noise = np.stack([s.standard_normal(self._noise.shape[1:]) for s in streams])

    def __call__(self, t: int, observation: NDArray[np.floating]) -> tuple[Values, Values]:
        """Act at step t."""
        wish = self._policy.policy(observation).astype(np.float64)
        chosen = wish.copy()
        chosen[:, [TRAINING]] = self._policy.sample(observation[:, [TRAINING]], self._noise[:, [t]])
        return chosen, wish

    def elsewhere(self, observation: NDArray[np.floating]) -> Values:
        """Return the policy's samples, by the noise of the same steps."""
        return self._policy.sample(observation, self._noise).astype(np.float64)

    def on_levels(self, uniform: Values) -> Values:
        """Identity: every action is available."""
        return uniform


def acting_for(algorithm: Algorithm, config: RunConfig, seeds: Sequence[int], steps: int) -> Acting:
    """Act with ``algorithm`` for trials of ``seeds``, ``steps`` per episode, exploring as its actions allow."""
    actuators = [a.name for a in config.rig.actuators]
    if isinstance(algorithm, Gaussian) and isinstance(config.exploration, OwnNoise):
        return GaussianDraws(algorithm, config.exploration, seeds, steps, actuators)
    if isinstance(algorithm, Stochastic):
        return Drawing(algorithm, config.exploration, seeds, steps, actuators)
    if algorithm.discrete is not None:
        return EpsilonGreedy(algorithm, algorithm.discrete, config.exploration, seeds, steps, actuators)
    return Noisy(algorithm, config.exploration, seeds, steps, actuators)
