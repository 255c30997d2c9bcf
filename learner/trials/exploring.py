"""Actions of trials that advance step by step in a world: random at the start, then with exploration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, Gaussian, Recurrent, Stochastic
from onrig.learner.trials.rollout import Values
from onrig.runtime.explore.noise import level_at
from onrig.runtime.explore.schedule import interpolate
from onrig.runtime.policy.contract import NOISE_CUT
from onrig.runtime.random_streams import Role, stream


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
        """Return the next step's numbers, (S, E, k)."""
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
            drawn = level_at(uniform(), discrete.levels)
            epsilon = np.array([interpolate(discrete.epsilon, e) for e in episode.tolist()])
            return drawn if starting else np.where(coin() < epsilon[:, None, None], drawn, wish)
        if starting:
            return 2.0 * uniform() - 1.0
        if isinstance(algorithm, Stochastic):
            return algorithm.sample(observation, normal()).astype(np.float64)
        return np.clip(wish + sigma * correlated(normal(), episode), -1.0, 1.0)

    return explore if distribution is None else explore_by_draws
