"""Random numbers for the exploration of S trials.

The numbers for a step come from separate streams: one per episode, as on a rig (``EpisodeNumbers``), or one per trial
(``StepNumbers``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, Gaussian, Stochastic
from onrig.learner.trials.worlds import Bools
from onrig.runtime.explore.noise import episode_noise, ornstein_uhlenbeck, quantize, random_levels
from onrig.runtime.explore.schedule import amplitudes, interpolate, is_quiet, schedules
from onrig.runtime.explore.settings import ActionNoise, EpsilonGreedy, Exploration, OrnsteinUhlenbeck, OwnNoise
from onrig.runtime.policy.contract import NOISE_CUT
from onrig.runtime.random_streams import Role, stream

Values = NDArray[np.float64]
Episodes = NDArray[np.int64]
BUFFERED_STEPS: Final = 256
"""Number of steps whose random numbers are drawn at once."""


class ExplorationNumbers(NamedTuple):
    """Random numbers for K exploration steps of S trials: noise for the policies' actions, and random actions that
    replace them."""

    noise: Values | None = None
    """(S, K, k): noise added to actions, or N(0, 1) for policies that sample; None without noise."""
    random_actions: Values | None = None
    """(S, K, m): actions that may replace the policy's actions; None if there are none."""
    is_replaced: Bools | bool = True
    """(S, K, 1): whether an action is replaced."""
    amplitude: Values | None = None
    """(m,), or (S, 1, m) if trials differ: scale of the policy's own noise, which ``noise`` already includes; None if
    it is 1."""

    def for_step(self, step: int) -> ExplorationNumbers:
        steps = slice(step, step + 1)
        noise = None if self.noise is None else self.noise[:, steps]
        random_actions = None if self.random_actions is None else self.random_actions[:, steps]
        is_replaced = self.is_replaced if isinstance(self.is_replaced, bool) else self.is_replaced[:, steps]
        return ExplorationNumbers(noise, random_actions, is_replaced, self.amplitude)


class NumberSource(Protocol):
    """Source of random numbers."""

    def __call__(self, episode: Episodes, *, is_random_phase: bool) -> ExplorationNumbers:
        """Return the numbers for the next step in episodes (S,); if ``is_random_phase``, only random actions."""
        ...


class EpisodeNumbers:
    """Random numbers of S trials for complete episodes, drawn from each episode's exploration stream, as on a rig.

    The process ``own`` clips and schedules a policy's own noise; noise in weights has no schedule.  Epsilon comes from
    the algorithm, or is the amplitude of the process ``epsilon_greedy``; other processes have no effect on it.
    """

    def __init__(
        self, algorithm: Algorithm, process: Exploration, seeds: Sequence[int], steps: int, actuators: Sequence[str]
    ) -> None:
        self._process, self._seeds, self._steps = process, seeds, steps
        self._actuators, self._discrete = tuple(actuators), algorithm.discrete
        self._noise_width = algorithm.noise_width if isinstance(algorithm, Stochastic) else None
        self.episode = ExplorationNumbers()
        """Numbers of the current episode, (S, T, k)."""
        self._step, self._number = steps, 0

    def __call__(self, episode: Episodes, *, is_random_phase: bool = False) -> ExplorationNumbers:
        """Return the numbers for the next step; all trials are in the same episode."""
        number = int(episode[0])
        if self._step == self._steps or self._number != number:
            self.episode, self._step, self._number = self._draw(number), 0, number
        self._step += 1
        return self.episode.for_step(self._step - 1)

    def _draw(self, episode: int) -> ExplorationNumbers:
        process, T, actuator_names = self._process, self._steps, self._actuators
        streams = [stream(seed, Role.EXPLORATION, episode) for seed in self._seeds]
        if isinstance(process, OwnNoise):
            noise = np.array([episode_noise(process, s, episode, T, actuator_names) for s in streams])
            scheduled_amplitude = np.array(amplitudes(process, actuator_names, episode))
            return ExplorationNumbers(
                noise,
                amplitude=np.zeros_like(scheduled_amplitude)
                if is_quiet(process.quiet, episode)
                else scheduled_amplitude,
            )
        if self._noise_width is not None:
            return ExplorationNumbers(np.stack([s.standard_normal((T, self._noise_width)) for s in streams]))
        if self._discrete is not None:
            level_draws = np.stack([random_levels(s, T, self._discrete.levels) for s in streams])
            return ExplorationNumbers(
                random_actions=level_draws[:, :, 1:], is_replaced=level_draws[:, :, :1] < self._epsilon(episode)
            )
        if not isinstance(process, ActionNoise) or is_quiet(process.quiet, episode):
            return ExplorationNumbers(np.zeros((len(streams), T, len(actuator_names))))
        if not isinstance(process, OrnsteinUhlenbeck):  # OU noise: computed for all trials at once below
            return ExplorationNumbers(
                np.array([episode_noise(process, s, episode, T, actuator_names) for s in streams])
            )
        white_noise = np.stack([s.standard_normal((T, len(actuator_names))) for s in streams], axis=1)
        u = ornstein_uhlenbeck(white_noise, process.gain, process.friction)
        # The amplitude multiplies the clipped noise.
        scaled_noise = np.array(amplitudes(process, actuator_names, episode)) * np.clip(u, -1.0, 1.0)
        return ExplorationNumbers(np.ascontiguousarray(scaled_noise.transpose(1, 0, 2)))

    def _epsilon(self, episode: int) -> float:
        assert self._discrete is not None
        if not isinstance(self._process, EpsilonGreedy):
            return interpolate(self._discrete.epsilon, episode)
        (epsilon,) = schedules(self._process.amplitude, self._actuators)
        return 0.0 if is_quiet(self._process.quiet, episode) else interpolate(epsilon, episode)


class PerTrialNumbers:
    """Random numbers, drawn as on a rig, for S trials whose episodes end independently."""

    def __init__(self, trials: Sequence[EpisodeNumbers]) -> None:
        """``trials``: a source for each trial."""
        self._trials: Final = trials

    def __call__(self, episode: Episodes, *, is_random_phase: bool = False) -> ExplorationNumbers:
        """Return the numbers for the next step in these episodes (S,)."""
        trial_numbers = [source(episode[s : s + 1]) for s, source in enumerate(self._trials)]
        first = trial_numbers[0]
        if first.random_actions is not None:
            is_replaced = np.concatenate([np.broadcast_to(trial.is_replaced, (1, 1, 1)) for trial in trial_numbers])
            return ExplorationNumbers(
                random_actions=np.concatenate([_require(trial.random_actions) for trial in trial_numbers]),
                is_replaced=is_replaced,
            )
        amplitude = None
        if first.amplitude is not None:
            amplitude = np.stack([_require(trial.amplitude) for trial in trial_numbers])[:, None]
        return ExplorationNumbers(
            np.concatenate([_require(trial.noise) for trial in trial_numbers]), amplitude=amplitude
        )


def _require(values: Values | None) -> Values:
    assert values is not None
    return values


class BufferedDraws:
    """Buffered random numbers of S trials, (S, E, k) for each step, from one stream per trial."""

    def __init__(
        self,
        seeds: Sequence[int],
        number: int,
        draw: Callable[[np.random.Generator, tuple[int, ...]], Values],
        k: int,
        actors: int = 1,
    ) -> None:
        """``number``: index of the stream within each trial."""
        self._streams = [stream(seed, Role.EXPLORATION, number) for seed in seeds]
        self._draw, self._shape = draw, (BUFFERED_STEPS, actors, k)
        self._rows: Values = np.zeros((0, len(seeds), actors, k))
        self._n_used = 0

    def __call__(self) -> Values:
        """Return the next step's numbers, (S, E, k)."""
        if self._n_used == len(self._rows):
            self._rows = np.stack([self._draw(s, self._shape) for s in self._streams], axis=1)
            self._n_used = 0
        self._n_used += 1
        row: Values = self._rows[self._n_used - 1]
        return row


def _uniform(source: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return source.random(shape)


def normal(source: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Draw N(0, 1) numbers."""
    return source.standard_normal(shape)


class CorrelatedNoise:
    """Noise of S trials that persists over steps: u <- (1 - friction) u + N(0, 1), reset in each episode.

    It is Ornstein-Uhlenbeck noise that starts at 0; with ``has_unit_variance``, it has variance 1 in every step
    instead, like the process ``own`` on a rig.
    """

    def __init__(self, friction: float, trials: int, *, has_unit_variance: bool) -> None:
        """``friction``: 1 for white noise."""
        self._correlation = 1.0 - friction
        self._gain = (1.0 - self._correlation**2) ** 0.5 if has_unit_variance else 1.0
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
        self, algorithm: Algorithm, correlated_noise: CorrelatedNoise, seeds: Sequence[int], m: int, *, std: float
    ) -> None:
        """``std``: standard deviation of the noise added to actions; ``correlated_noise`` generates this noise, and the
        noise of Gaussian policies, from N(0, 1)."""
        self._gaussian, self._stochastic = isinstance(algorithm, Gaussian), isinstance(algorithm, Stochastic)
        self._discrete, self._correlated_noise, self._std = algorithm.discrete, correlated_noise, std
        noise_width = algorithm.noise_width if isinstance(algorithm, Stochastic) else m
        self._uniform = BufferedDraws(seeds, 0, _uniform, m)
        self._normal = BufferedDraws(seeds, 1, normal, noise_width)
        self._epsilon_draws = BufferedDraws(seeds, 2, _uniform, 1)

    def __call__(self, episode: Episodes, *, is_random_phase: bool) -> ExplorationNumbers:
        """Return the numbers for the next step in episodes (S,); Gaussian policies ignore ``is_random_phase``."""
        if self._gaussian:
            return ExplorationNumbers(self._correlated_noise(np.clip(self._normal(), -NOISE_CUT, NOISE_CUT), episode))
        discrete = self._discrete
        if discrete is not None and (is_random_phase or not self._stochastic):
            level = quantize(self._uniform(), discrete.levels)
            if is_random_phase:
                return ExplorationNumbers(random_actions=level)
            epsilon = np.array([interpolate(discrete.epsilon, e) for e in episode.tolist()])
            return ExplorationNumbers(random_actions=level, is_replaced=self._epsilon_draws() < epsilon[:, None, None])
        if is_random_phase:
            return ExplorationNumbers(random_actions=2.0 * self._uniform() - 1.0)
        if self._stochastic:
            return ExplorationNumbers(self._normal())
        return ExplorationNumbers(self._std * self._correlated_noise(self._normal(), episode))
