"""Actions of S trials: their policies' actions, and in training with exploration.

``Explorer`` computes actions from observations and random numbers.  The numbers of a step come from separate streams,
one per episode, as on a rig (``EpisodeNumbers``), or one per trial (``StepNumbers``).
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
"""Number of steps whose random numbers are drawn at once."""


class ChosenActions(NamedTuple):
    """Normalised actions of S trials with E actors each, of which the first K explore."""

    action: NDArray[np.floating]
    """(S, E, m)"""
    intended: NDArray[np.floating]
    """(S, E, m): actions without exploration."""
    behaviour: NDArray[np.floating] | None = None
    """(S, K, 3 m): mean, standard deviation and draw of a Gaussian policy; only draws, (S, K, m), for on-policy
    algorithms."""
    deviates: Bools | bool = False
    """Whether the noise of a Gaussian policy was reduced, (S, 1) if trials differ."""


class Numbers(NamedTuple):
    """Random numbers for K exploration steps of S trials: noise for actions, and actions that replace them."""

    noise: Values | None = None
    """(S, K, k): noise added to actions, or N(0, 1) for policies that draw; None without noise."""
    random: Values | None = None
    """(S, K, m): actions that replace the policy's."""
    replaced: Bools | bool = True
    """(S, K, 1): whether an action is replaced."""
    amplitude: Values | None = None
    """(m,), or (S, 1, m) if trials differ: scale of the policy's own noise, already included in ``noise``; None for
    1."""

    def at(self, step: int) -> Numbers:
        selected = slice(step, step + 1)
        noise = None if self.noise is None else self.noise[:, selected]
        random = None if self.random is None else self.random[:, selected]
        replaced = self.replaced if isinstance(self.replaced, bool) else self.replaced[:, selected]
        return Numbers(noise, random, replaced, self.amplitude)


class Draw(Protocol):
    """Source of random numbers."""

    def __call__(self, episode: Episodes, *, starting: bool) -> Numbers:
        """Return the numbers for the next step in episodes (S,); only random actions while ``starting``."""
        ...


class Explore(Protocol):
    """Source of the actions of S trials."""

    def __call__(
        self, observation: NDArray[np.floating], episode: Episodes, *, starting: bool = False
    ) -> ChosenActions:
        """Return actions for the next step's observations (S, E, n) in episodes (S,)."""
        ...

    def begin(self, which: Bools) -> None:
        """Begin another episode of these actors (S, K)."""
        ...

    def policy(self, actors: tuple[int, int]) -> Policy:
        """Noise-free policies of (S, E) actors at the start of an episode."""
        ...


class RecurrentPolicies:
    """Distributions of S trials' recurrent policies, with a hidden state for each of E actors."""

    def __init__(self, algorithm: Recurrent, actors: tuple[int, int]) -> None:
        self._algorithm = algorithm
        self._hidden: NDArray[np.float32] = np.zeros((*actors, algorithm.hidden_width), np.float32)

    def begin(self, which: Bools) -> None:
        self._hidden[which] = 0.0

    def __call__(self, observation: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Mean and standard deviation (S, E, m) for the next step of every episode."""
        mean, std, self._hidden = self._algorithm.remembering(observation, self._hidden)
        return mean, std


class Explorer:
    """Policies of S trials, each with one exploring actor, the first."""

    def __init__(self, algorithm: Algorithm, draw: Draw, trials: int, *, draws: bool) -> None:
        """``draws``: whether a Gaussian policy samples its actions."""
        self._algorithm, self._draw = algorithm, draw
        self._remembering = RecurrentPolicies(algorithm, (trials, 1)) if isinstance(algorithm, Recurrent) else None
        gaussian = algorithm.distribution if isinstance(algorithm, Gaussian) else None
        self._distribution = (self._remembering or gaussian) if draws else None
        self._sample = algorithm.sample if isinstance(algorithm, Stochastic) else None
        self.adds: Final = self._distribution is None and self._sample is None and algorithm.discrete is None
        """Whether noise is added to the policy's actions."""

    def __call__(
        self, observation: NDArray[np.floating], episode: Episodes, *, starting: bool = False
    ) -> ChosenActions:
        explored, intended, behaviour, deviates = self.act(observation, self._draw(episode, starting=starting))
        action = explored
        if explored.shape[1] < intended.shape[1]:
            action = intended.copy()
            action[:, : explored.shape[1]] = explored
        return ChosenActions(action, intended, behaviour, deviates)

    def act(self, observation: NDArray[np.floating], numbers: Numbers, explorers: int = 1) -> ChosenActions:
        """Return the exploring actors' actions for observations (S, E, n)."""
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
            return ChosenActions(
                np.clip(drawn, -1.0, 1.0), intended, np.concatenate((mean, std, drawn), axis=2), deviates
            )
        intended = self._algorithm.policy(observation).astype(np.float64)
        action = intended[:, :explorers]
        if noise is not None and self._sample is not None:
            action = self._sample(observation[:, :explorers], noise).astype(np.float64)
        elif noise is not None:
            action = np.minimum(np.maximum(action + noise, -1.0), 1.0)
        if numbers.random is not None:
            action = np.where(numbers.replaced, numbers.random, action)
        return ChosenActions(action, intended)

    def begin(self, which: Bools) -> None:
        if self._remembering is not None:
            self._remembering.begin(which)

    def policy(self, actors: tuple[int, int]) -> Policy:
        if not isinstance(self._algorithm, Recurrent):
            return self._algorithm.policy
        distribution = RecurrentPolicies(self._algorithm, actors)
        return lambda seen: np.clip(distribution(seen)[0], -1.0, 1.0)


class OnPolicyExplorer:
    """On-policy actions of S trials with K actors each: draws from the policies that learn from them."""

    def __init__(self, algorithm: OnPolicy, seeds: Sequence[int], m: int, actors: int) -> None:
        self._algorithm, self._noise = algorithm, BufferedDraws(seeds, 1, _normal, m, actors)

    def __call__(
        self, observation: NDArray[np.floating], episode: Episodes, *, starting: bool = False
    ) -> ChosenActions:
        drawn = self._algorithm.draw(observation, self._noise())
        action = np.clip(drawn, -1.0, 1.0)
        return ChosenActions(action, action, drawn)

    def begin(self, which: Bools) -> None:
        """Do nothing: these policies have no memory."""

    def policy(self, actors: tuple[int, int]) -> Policy:
        return self._algorithm.policy


class EpisodeNumbers:
    """Random numbers of S trials for complete episodes, from the episode's exploration stream, as on a rig.

    Process ``own`` clips and schedules a policy's own noise; noise in weights has no schedule.  Epsilon is the
    algorithm's, or the amplitude of process ``epsilon_greedy``; the settings of other processes do not apply.
    """

    def __init__(
        self, algorithm: Algorithm, process: Exploration, seeds: Sequence[int], steps: int, actuators: Sequence[str]
    ) -> None:
        self._process, self._seeds, self._steps = process, seeds, steps
        self._actuators, self._discrete = tuple(actuators), algorithm.discrete
        self._noises = algorithm.noises if isinstance(algorithm, Stochastic) else None
        self.episode = Numbers()
        """Numbers of the present episode, (S, T, k)."""
        self._step, self._number = steps, 0

    def __call__(self, episode: Episodes, *, starting: bool = False) -> Numbers:
        """Return the numbers for the next step; all trials are in the same episode."""
        number = int(episode[0])
        if self._step == self._steps or self._number != number:
            self.episode, self._step, self._number = self._draw(number), 0, number
        self._step += 1
        return self.episode.at(self._step - 1)

    def _draw(self, episode: int) -> Numbers:
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
        if not isinstance(process, OrnsteinUhlenbeck):  # computed for all trials at once below
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
    """Numbers of S trials as on a rig, whose episodes end separately."""

    def __init__(self, trials: Sequence[EpisodeNumbers]) -> None:
        """``trials``: the numbers of each trial alone."""
        self._trials: Final = trials

    def __call__(self, episode: Episodes, *, starting: bool = False) -> Numbers:
        """Return the numbers for the next step in these episodes (S,)."""
        each = [numbers(episode[s : s + 1]) for s, numbers in enumerate(self._trials)]
        first = each[0]
        if first.random is not None:
            replaced = np.concatenate([np.broadcast_to(one.replaced, (1, 1, 1)) for one in each])
            return Numbers(random=np.concatenate([_present(one.random) for one in each]), replaced=replaced)
        amplitude = None
        if first.amplitude is not None:
            amplitude = np.stack([_present(one.amplitude) for one in each])[:, None]
        return Numbers(np.concatenate([_present(one.noise) for one in each]), amplitude=amplitude)


def _present(values: Values | None) -> Values:
    assert values is not None
    return values


class BufferedDraws:
    """Buffered random numbers of S trials, (S, E, k) for each step, from separate streams."""

    def __init__(
        self,
        seeds: Sequence[int],
        number: int,
        draw: Callable[[np.random.Generator, tuple[int, ...]], Values],
        k: int,
        actors: int = 1,
    ) -> None:
        """``number``: number of the stream within each trial."""
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


class CorrelatedNoise:
    """Noise of S trials that persists over steps: u <- (1 - friction) u + N(0, 1), reset in each episode.

    It is Ornstein-Uhlenbeck noise that starts at 0, or with ``unit`` has variance 1 in every step, like process ``own``
    on a rig.
    """

    def __init__(self, friction: float, trials: int, *, unit: bool) -> None:
        """``friction``: 1 for white noise."""
        self._correlation = 1.0 - friction
        self._gain = (1.0 - self._correlation**2) ** 0.5 if unit else 1.0
        self._u: Values = np.zeros((trials, 1, 1))
        self._episode: Episodes = np.zeros(trials, np.int64)

    def __call__(self, normal: Values, episode: Episodes) -> Values:
        """Return the noise (S, 1, m) for the next step in episodes (S,), computed from N(0, 1)."""
        continues = (episode == self._episode)[:, None, None]
        self._u, self._episode = (
            np.where(continues, self._correlation * self._u + self._gain * normal, normal),
            episode.copy(),
        )
        return self._u


class StepNumbers:
    """Random numbers of S trials whose episodes may end at any step."""

    def __init__(
        self, algorithm: Algorithm, correlated: CorrelatedNoise, seeds: Sequence[int], m: int, *, std: float
    ) -> None:
        """``std``: standard deviation of noise added to actions; ``correlated`` converts N(0, 1) to it, and to
        Gaussian policies' own noise."""
        self._gaussian, self._stochastic = isinstance(algorithm, Gaussian), isinstance(algorithm, Stochastic)
        self._discrete, self._correlated, self._std = algorithm.discrete, correlated, std
        noises = algorithm.noises if isinstance(algorithm, Stochastic) else m
        self._uniform = BufferedDraws(seeds, 0, _uniform, m)
        self._normal = BufferedDraws(seeds, 1, _normal, noises)
        self._coin = BufferedDraws(seeds, 2, _uniform, 1)

    def __call__(self, episode: Episodes, *, starting: bool) -> Numbers:
        """Return the numbers for the next step in episodes (S,); a Gaussian policy also acts while ``starting``."""
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
