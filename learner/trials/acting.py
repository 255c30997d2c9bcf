"""Actions of trials: the policy with exploration noise, epsilon-greedy, or by noise of its own; evaluation without.

First for whole episodes in step, then (``exploration_for``) for trials that advance step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, DiscreteActions, Gaussian, Recurrent, Stochastic
from onrig.learner.trials.drawing import GaussianDraws
from onrig.learner.trials.rollout import TRAINING, Values
from onrig.runtime.explore.noise import episode_noise, random_levels
from onrig.runtime.explore.schedule import amplitudes, interpolate, is_quiet, schedules
from onrig.runtime.explore.settings import EpsilonGreedy as RandomLevels
from onrig.runtime.explore.settings import Exploration, OrnsteinUhlenbeck, OwnNoise
from onrig.runtime.policy.contract import NOISE_CUT
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
        drawn = process.gain * np.stack([s.standard_normal((steps, n_actions)) for s in streams], axis=1)
        u = np.zeros_like(drawn)
        for k in range(1, steps):
            u[k] = (1.0 - process.friction) * u[k - 1] + drawn[k - 1]
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


class Explored(NamedTuple):
    """Training actions of S trials at one environment step."""

    action: Values
    """(S, 1, m)"""
    wish: Values
    """(S, 1, m): without exploration."""
    behaviour: Values | None = None
    """(S, 1, 3 m): mean, standard deviation and draw of a policy that is a Gaussian."""


class Explore(Protocol):
    """Acts in training at one environment step."""

    def __call__(self, observation: NDArray[np.floating], episode: NDArray[np.int64], *, starting: bool) -> Explored:
        """Explore around the policy's actions at observations (S, 1, n), in these episodes (S,).

        While ``starting``, actions are uniformly random, but for those of a Gaussian.
        """
        ...


AHEAD: Final = 256
"""Steps whose random numbers are drawn at once."""
Draw = Callable[[np.random.Generator, tuple[int, ...]], Values]


class DrawnAhead:
    """Random numbers of S trials, (S, E, k) for each step, from streams of their own."""

    def __init__(self, seeds: Sequence[int], number: int, draw: Draw, k: int, actors: int = 1) -> None:
        """``number`` tells the streams of one trial apart."""
        self._streams = [stream(seed, Role.EXPLORATION, number) for seed in seeds]
        self._draw, self._shape = draw, (AHEAD, actors, k)
        self._rows: Values = np.zeros((0, len(seeds), actors, k))
        self._used = 0

    def __call__(self) -> Values:
        """Those of the next step."""
        if self._used == len(self._rows):
            self._rows = np.stack([self._draw(s, self._shape) for s in self._streams], axis=1)
            self._used = 0
        self._used += 1
        row: Values = self._rows[self._used - 1]
        return row


class Correlated:
    """Noise of S trials that persists over steps: u <- (1 - friction) u + N(0, 1), anew in each episode.

    It is Ornstein-Uhlenbeck noise from 0 on, or, with ``unit``, of variance 1 in every step: process ``own`` of a rig.
    """

    def __init__(self, friction: float, trials: int, *, unit: bool) -> None:
        """White noise with a ``friction`` of 1."""
        self._kept = 1.0 - friction
        self._gain = (1.0 - self._kept**2) ** 0.5 if unit else 1.0
        self._u: Values = np.zeros((trials, 1, 1))
        self._episode: NDArray[np.int64] = np.zeros(trials, np.int64)

    def __call__(self, normal: Values, episode: NDArray[np.int64]) -> Values:
        """Noise (S, 1, m) of the next step, in these episodes (S,), from N(0, 1)."""
        goes_on = (episode == self._episode)[:, None, None]
        self._u, self._episode = np.where(goes_on, self._kept * self._u + self._gain * normal, normal), episode.copy()
        return self._u


Distribution = Callable[[NDArray[np.floating]], tuple[NDArray[np.floating], NDArray[np.floating]]]
"""Of Gaussian policies at normalised observations (S, E, n), step after step: mean and standard deviation (S, E, m)."""


class Remembering:
    """Distribution of recurrent policies of S trials, with a hidden state for each of E actors."""

    def __init__(self, algorithm: Recurrent, actors: tuple[int, int]) -> None:
        self._algorithm = algorithm
        self._hidden: NDArray[np.float32] = np.zeros((*actors, algorithm.hidden_width), np.float32)

    def begin(self, which: NDArray[np.bool_]) -> None:
        """Begin another episode of these actors (S, E)."""
        self._hidden[which] = 0.0

    def __call__(self, observation: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """The distribution at the next step of every episode."""
        mean, std, self._hidden = self._algorithm.remembering(observation, self._hidden)
        return mean, std


def exploration_for(
    algorithm: Algorithm,
    sigma: float,
    correlated: Correlated,
    seeds: Sequence[int],
    m: int,
    distribution: Distribution | None = None,
) -> Explore:
    """Explore step by step: epsilon-greedily, by the policy's own noise, or with Gaussian noise of ``sigma``.

    ``correlated`` gives Gaussians their noise, from N(0, 1).

    ``distribution`` takes the place of that of an algorithm whose policies are Gaussians.
    """
    if distribution is None and isinstance(algorithm, Gaussian):
        distribution = algorithm.distribution
    uniform = DrawnAhead(seeds, 0, lambda s, shape: s.random(shape), m)
    noises = algorithm.noises if isinstance(algorithm, Stochastic) else m
    normal = DrawnAhead(seeds, 1, lambda s, shape: s.standard_normal(shape), noises)
    coin = DrawnAhead(seeds, 2, lambda s, shape: s.random(shape), 1)
    discrete = algorithm.discrete

    def explore_by_draws(observation: NDArray[np.floating], episode: NDArray[np.int64], *, starting: bool) -> Explored:
        assert distribution is not None
        mean, std = distribution(observation)
        drawn = mean + std * correlated(np.clip(normal(), -NOISE_CUT, NOISE_CUT), episode)
        wish = np.clip(mean, -1.0, 1.0).astype(np.float64)
        return Explored(np.clip(drawn, -1.0, 1.0), wish, np.concatenate((mean, std, drawn), axis=2))

    def explore(observation: NDArray[np.floating], episode: NDArray[np.int64], *, starting: bool) -> Explored:
        wish = algorithm.policy(observation).astype(np.float64)
        return Explored(action(wish, observation, episode, starting=starting), wish)

    def action(
        wish: Values, observation: NDArray[np.floating], episode: NDArray[np.int64], *, starting: bool
    ) -> Values:
        if discrete is not None and (starting or not isinstance(algorithm, Stochastic)):
            levels = discrete.levels
            drawn = 2.0 * np.minimum(np.floor(uniform() * levels), levels - 1) / (levels - 1) - 1.0
            epsilon = np.array([interpolate(discrete.epsilon, e) for e in episode.tolist()])
            return drawn if starting else np.where(coin() < epsilon[:, None, None], drawn, wish)
        if starting:
            return 2.0 * uniform() - 1.0
        if isinstance(algorithm, Stochastic):
            return algorithm.sample(observation, normal()).astype(np.float64)
        return np.clip(wish + sigma * correlated(normal(), episode), -1.0, 1.0)

    return explore if distribution is None else explore_by_draws
