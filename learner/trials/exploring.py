"""Actions of S trials: by their policies, and in training with exploration.

``Explorer`` makes actions of observations and random numbers.  The numbers of a step come from streams of their own,
either one per episode, as on a rig (``EpisodeNumbers``), or one per trial (``StepNumbers``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, Gaussian, Recurrent, Stochastic
from onrig.learner.algorithms.on_policy import OnPolicy
from onrig.learner.trials.worlds import Bools, Policy
from onrig.runtime.explore.noise import episode_noise, level_at, ornstein_uhlenbeck, random_levels
from onrig.runtime.explore.schedule import amplitudes, interpolate, is_quiet, schedules
from onrig.runtime.explore.settings import ActionNoise, EpsilonGreedy, Exploration, OrnsteinUhlenbeck, OwnNoise
from onrig.runtime.policy.contract import NOISE_CUT
from onrig.runtime.random_streams import Role, stream

Values = NDArray[np.float64]
Episodes = NDArray[np.int64]
AHEAD: Final = 256
"""Steps whose random numbers are drawn at once."""


class Acted(NamedTuple):
    """Actions of S trials with E actors each, of which the first K explore; normalised."""

    action: NDArray[np.floating]
    """(S, E, m)"""
    intended: NDArray[np.floating]
    """(S, E, m): without exploration."""
    behaviour: NDArray[np.floating] | None = None
    """(S, K, 3 m): mean, standard deviation and draw of a policy that is a Gaussian; draws alone, (S, K, m), of
    policies that learn from their own batches."""
    deviates: Bools | bool = False
    """Whether the noise of such a policy was reduced, (S, 1) where trials differ."""


class Numbers(NamedTuple):
    """Exploration numbers of S trials, K steps each: an action is drawn or disturbed by ``noise``, then replaced."""

    noise: Values | None = None
    """(S, K, k): added to actions, or N(0, 1) for policies that draw; None to act without."""
    random: Values | None = None
    """(S, K, m): actions that take the place of the policy's."""
    replaced: Bools | bool = True
    """(S, K, 1): where they do."""
    amplitude: Values | None = None
    """(m,), or (S, 1, m) where trials differ: scale that ``noise`` already has, of a policy's own noise; None for 1."""

    def at(self, step: int) -> Numbers:
        here = slice(step, step + 1)
        noise = None if self.noise is None else self.noise[:, here]
        random = None if self.random is None else self.random[:, here]
        replaced = self.replaced if isinstance(self.replaced, bool) else self.replaced[:, here]
        return Numbers(noise, random, replaced, self.amplitude)


class Draw(Protocol):
    """Source of random numbers."""

    def __call__(self, episode: Episodes, *, starting: bool) -> Numbers:
        """Numbers of the next step, in these episodes (S,); only random actions while ``starting``."""
        ...


class Explore(Protocol):
    """Acts for S trials."""

    def __call__(self, observation: NDArray[np.floating], episode: Episodes, *, starting: bool = False) -> Acted:
        """Act at observations (S, E, n) of the next step, in these episodes (S,)."""
        ...

    def begin(self, which: Bools) -> None:
        """Begin another episode of these actors (S, K)."""
        ...

    def policy(self, actors: tuple[int, int]) -> Policy:
        """Noise-free policies of (S, E) actors, from the start of an episode on."""
        ...


class Remembering:
    """Distribution of recurrent policies of S trials, with a hidden state for each of E actors."""

    def __init__(self, algorithm: Recurrent, actors: tuple[int, int]) -> None:
        self._algorithm = algorithm
        self._hidden: NDArray[np.float32] = np.zeros((*actors, algorithm.hidden_width), np.float32)

    def begin(self, which: Bools) -> None:
        self._hidden[which] = 0.0

    def __call__(self, observation: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Mean and standard deviation (S, E, m) at the next step of every episode."""
        mean, std, self._hidden = self._algorithm.remembering(observation, self._hidden)
        return mean, std


class Explorer:
    """Policies of S trials whose first actor each explores."""

    def __init__(self, algorithm: Algorithm, draw: Draw, trials: int, *, draws: bool) -> None:
        """``draws``: whether a policy that is a Gaussian acts by draws from it."""
        self._algorithm, self._draw = algorithm, draw
        self._remembering = Remembering(algorithm, (trials, 1)) if isinstance(algorithm, Recurrent) else None
        gaussian = algorithm.distribution if isinstance(algorithm, Gaussian) else None
        self._distribution = (self._remembering or gaussian) if draws else None
        self._sample = algorithm.sample if isinstance(algorithm, Stochastic) else None
        self.adds: Final = self._distribution is None and self._sample is None and algorithm.discrete is None
        """Whether noise is added to the policy's actions."""

    def __call__(self, observation: NDArray[np.floating], episode: Episodes, *, starting: bool = False) -> Acted:
        explored, intended, behaviour, deviates = self.act(observation, self._draw(episode, starting=starting))
        action = explored
        if explored.shape[1] < intended.shape[1]:
            action = intended.copy()
            action[:, : explored.shape[1]] = explored
        return Acted(action, intended, behaviour, deviates)

    def act(self, observation: NDArray[np.floating], numbers: Numbers, explorers: int = 1) -> Acted:
        """Act at observations (S, E, n); returns the actions of the first actors only, those that explore."""
        noise = numbers.noise
        if self._distribution is not None:
            assert noise is not None
            mean, std = self._distribution(observation)
            intended = np.clip(mean, -1.0, 1.0).astype(np.float64)
            mean, std = mean[:, :explorers], std[:, :explorers]
            drawn = mean + std * noise
            if numbers.amplitude is not None:
                std = numbers.amplitude * std
            deviates = numbers.amplitude is not None and np.asarray(numbers.amplitude.min(axis=-1) < 1.0)
            return Acted(np.clip(drawn, -1.0, 1.0), intended, np.concatenate((mean, std, drawn), axis=2), deviates)
        intended = self._algorithm.policy(observation).astype(np.float64)
        action = intended[:, :explorers]
        if noise is not None and self._sample is not None:
            action = self._sample(observation[:, :explorers], noise).astype(np.float64)
        elif noise is not None:
            action = np.minimum(np.maximum(action + noise, -1.0), 1.0)
        if numbers.random is not None:
            action = np.where(numbers.replaced, numbers.random, action)
        return Acted(action, intended)

    def begin(self, which: Bools) -> None:
        if self._remembering is not None:
            self._remembering.begin(which)

    def policy(self, actors: tuple[int, int]) -> Policy:
        if not isinstance(self._algorithm, Recurrent):
            return self._algorithm.policy
        distribution = Remembering(self._algorithm, actors)
        return lambda seen: np.clip(distribution(seen)[0], -1.0, 1.0)


class OwnDraws:
    """Policies of S trials with K actors each that learn from batches of their own draws."""

    def __init__(self, algorithm: OnPolicy, seeds: Sequence[int], m: int, actors: int) -> None:
        self._algorithm, self._noise = algorithm, DrawnAhead(seeds, 1, _normal, m, actors)

    def __call__(self, observation: NDArray[np.floating], episode: Episodes, *, starting: bool = False) -> Acted:
        drawn = self._algorithm.draw(observation, self._noise())
        action = np.clip(drawn, -1.0, 1.0)
        return Acted(action, action, drawn)

    def begin(self, which: Bools) -> None:
        """Nothing is remembered."""

    def policy(self, actors: tuple[int, int]) -> Policy:
        return self._algorithm.policy


class EpisodeNumbers:
    """Numbers of S trials in step, for complete episodes, from the exploration stream of the episode as on a rig.

    A policy's own noise is cut and scheduled by process ``own``; noise in weights has no schedule.  Epsilon is the
    algorithm's, or the amplitude of process ``epsilon_greedy``; the settings of another process do not apply.
    """

    def __init__(
        self, algorithm: Algorithm, process: Exploration, seeds: Sequence[int], steps: int, actuators: Sequence[str]
    ) -> None:
        self._process, self._seeds, self._steps = process, seeds, steps
        self._actuators, self._discrete = tuple(actuators), algorithm.discrete
        self._noises = algorithm.noises if isinstance(algorithm, Stochastic) else None
        self.episode = Numbers()
        """Those of the present episode, (S, T, k)."""
        self._step, self._number = steps, 0

    def __call__(self, episode: Episodes, *, starting: bool = False) -> Numbers:
        """Numbers of the next step; all trials are in the same episode."""
        number = int(episode[0])
        if self._step == self._steps or self._number != number:
            self.episode, self._step, self._number = self._drawn(number), 0, number
        self._step += 1
        return self.episode.at(self._step - 1)

    def _drawn(self, episode: int) -> Numbers:
        process, T, names = self._process, self._steps, self._actuators
        streams = [stream(seed, Role.EXPLORATION, episode) for seed in self._seeds]
        if isinstance(process, OwnNoise):
            noise = np.array([episode_noise(process, s, episode, T, names) for s in streams])
            scheduled = np.array(amplitudes(process, names, episode))
            return Numbers(noise, amplitude=np.zeros_like(scheduled) if is_quiet(process.quiet, episode) else scheduled)
        if self._noises is not None:
            return Numbers(np.stack([s.standard_normal((T, self._noises)) for s in streams]))
        if self._discrete is not None:
            drawn = np.stack([random_levels(s, T, self._discrete.levels) for s in streams])
            return Numbers(random=drawn[:, :, 1:], replaced=drawn[:, :, :1] < self._epsilon(episode))
        if not isinstance(process, ActionNoise) or is_quiet(process.quiet, episode):
            return Numbers(np.zeros((len(streams), T, len(names))))
        if not isinstance(process, OrnsteinUhlenbeck):  # that of all trials is computed at once
            return Numbers(np.array([episode_noise(process, s, episode, T, names) for s in streams]))
        white = np.stack([s.standard_normal((T, len(names))) for s in streams], axis=1)
        u = ornstein_uhlenbeck(white, process.gain, process.friction)
        # The amplitude multiplies the clipped noise.
        scaled = np.array(amplitudes(process, names, episode)) * np.clip(u, -1.0, 1.0)
        return Numbers(np.ascontiguousarray(scaled.transpose(1, 0, 2)))

    def _epsilon(self, episode: int) -> float:
        assert self._discrete is not None
        if not isinstance(self._process, EpsilonGreedy):
            return interpolate(self._discrete.epsilon, episode)
        (epsilon,) = schedules(self._process.amplitude, self._actuators)
        return 0.0 if is_quiet(self._process.quiet, episode) else interpolate(epsilon, episode)


class SeparateEpisodes:
    """Numbers of S trials as on a rig, whose episodes end each by itself."""

    def __init__(self, trials: Sequence[EpisodeNumbers]) -> None:
        """``trials``: the numbers of each trial alone."""
        self._trials: Final = trials

    def __call__(self, episode: Episodes, *, starting: bool = False) -> Numbers:
        """Numbers of the next step, in these episodes (S,)."""
        each = [numbers(episode[s : s + 1]) for s, numbers in enumerate(self._trials)]
        first = each[0]
        if first.random is not None:
            replaced = np.concatenate([np.broadcast_to(one.replaced, (1, 1, 1)) for one in each])
            return Numbers(random=np.concatenate([_there(one.random) for one in each]), replaced=replaced)
        amplitude = None
        if first.amplitude is not None:
            amplitude = np.stack([_there(one.amplitude) for one in each])[:, None]
        return Numbers(np.concatenate([_there(one.noise) for one in each]), amplitude=amplitude)


def _there(values: Values | None) -> Values:
    assert values is not None
    return values


class DrawnAhead:
    """Random numbers of S trials, (S, E, k) for each step, from streams of their own."""

    def __init__(
        self,
        seeds: Sequence[int],
        number: int,
        draw: Callable[[np.random.Generator, tuple[int, ...]], Values],
        k: int,
        actors: int = 1,
    ) -> None:
        """``number`` distinguishes the streams of one trial."""
        self._streams = [stream(seed, Role.EXPLORATION, number) for seed in seeds]
        self._draw, self._shape = draw, (AHEAD, actors, k)
        self._rows: Values = np.zeros((0, len(seeds), actors, k))
        self._used = 0

    def __call__(self) -> Values:
        """Return the next step's numbers, (S, E, k)."""
        if self._used == len(self._rows):
            self._rows = np.stack([self._draw(s, self._shape) for s in self._streams], axis=1)
            self._used = 0
        self._used += 1
        row: Values = self._rows[self._used - 1]
        return row


def _uniform(source: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return source.random(shape)


def _normal(source: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return source.standard_normal(shape)


class Correlated:
    """Noise of S trials that persists over steps: u <- (1 - friction) u + N(0, 1), reset in each episode.

    It is Ornstein-Uhlenbeck noise from 0 on, or, with ``unit``, of variance 1 in every step: process ``own`` of a rig.
    """

    def __init__(self, friction: float, trials: int, *, unit: bool) -> None:
        """White noise with a ``friction`` of 1."""
        self._kept = 1.0 - friction
        self._gain = (1.0 - self._kept**2) ** 0.5 if unit else 1.0
        self._u: Values = np.zeros((trials, 1, 1))
        self._episode: Episodes = np.zeros(trials, np.int64)

    def __call__(self, normal: Values, episode: Episodes) -> Values:
        """Noise (S, 1, m) of the next step, in these episodes (S,), from N(0, 1)."""
        goes_on = (episode == self._episode)[:, None, None]
        self._u, self._episode = np.where(goes_on, self._kept * self._u + self._gain * normal, normal), episode.copy()
        return self._u


class StepNumbers:
    """Numbers of S trials whose episodes end at any step."""

    def __init__(
        self, algorithm: Algorithm, correlated: Correlated, seeds: Sequence[int], m: int, *, std: float
    ) -> None:
        """Noise added to actions has ``std``; ``correlated`` makes it, and Gaussians' own, of N(0, 1)."""
        self._gaussian, self._stochastic = isinstance(algorithm, Gaussian), isinstance(algorithm, Stochastic)
        self._discrete, self._correlated, self._std = algorithm.discrete, correlated, std
        noises = algorithm.noises if isinstance(algorithm, Stochastic) else m
        self._uniform = DrawnAhead(seeds, 0, _uniform, m)
        self._normal = DrawnAhead(seeds, 1, _normal, noises)
        self._coin = DrawnAhead(seeds, 2, _uniform, 1)

    def __call__(self, episode: Episodes, *, starting: bool) -> Numbers:
        """Numbers of the next step, in these episodes (S,); a Gaussian acts by itself while ``starting``."""
        if self._gaussian:
            return Numbers(self._correlated(np.clip(self._normal(), -NOISE_CUT, NOISE_CUT), episode))
        discrete = self._discrete
        if discrete is not None and (starting or not self._stochastic):
            level = level_at(self._uniform(), discrete.levels)
            if starting:
                return Numbers(random=level)
            epsilon = np.array([interpolate(discrete.epsilon, e) for e in episode.tolist()])
            return Numbers(random=level, replaced=self._coin() < epsilon[:, None, None])
        if starting:
            return Numbers(random=2.0 * self._uniform() - 1.0)
        if self._stochastic:
            return Numbers(self._normal())
        return Numbers(self._std * self._correlated(self._normal(), episode))
