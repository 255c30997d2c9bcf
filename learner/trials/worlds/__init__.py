"""Worlds: step-by-step environments for S trials with E actors each, and their common interface.

``gym.py`` provides gymnasium tasks, ``plants.py`` our own plants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.random_streams import Role

Values = NDArray[np.floating]
Bools = NDArray[np.bool_]
Policy = Callable[[NDArray[np.floating]], NDArray[np.floating]]
"""Function from observations (S, E, n) to actions (S, E, m) in [-1, 1]."""


class StepResult(NamedTuple):
    """Outcome of one step of every actor; actors that did not step repeat their last observation."""

    observation: Values
    """(S, E, n): observation after the step; in a finished episode, its last observation."""
    reward: NDArray[np.float64]
    """(S, E), raw units; 0 without a step."""
    terminated: Bools
    """(S, E): whether the task is over, so that no return follows."""
    truncated: Bools
    """(S, E): whether the time limit ends the episode; false if the episode terminated at the same step."""
    action: NDArray[np.float64]
    """(S, E, m): applied action, normalised, without actuator noise."""
    intervened: Bools
    """(S, E): whether a shield changed the action."""
    tripped: Bools
    """(S, E): whether the shield switched to its fallback."""
    noise: NDArray[np.float64] | None = None
    """(S, E, k): sensor noise on the observation before the step, and actuator noise, normalised; None if absent."""


class NoSuchTask(Exception):
    """Raised if no world can be created for the task; the message states the reason and the remedy."""


class Spaces(NamedTuple):
    """Sizes of a world's observations and actions."""

    n: int
    """Size of an observation."""
    m: int
    """Number of actions, each normalised to [-1, 1]."""
    levels: int | None
    """Number of discrete actions, evenly spaced on [-1, 1]; None for continuous actions."""
    horizon: int
    """Number of steps after which an episode is truncated."""
    image: tuple[int, int] | None = None
    """Height and width of a frame in pixels, if observations are frame indices (``frames``)."""


class Actor(NamedTuple):
    """One of the E actors of a trial."""

    seed: int
    role: Role
    number: int
    """Index of the actor among the trial's actors with the same role."""
    actors: int
    """Number of the trial's actors with the same role."""

    def episode(self, n_played: int) -> int:
        """Return the index of the actor's next episode among the episodes of all the trial's actors with the same
        role."""
        return n_played * self.actors + self.number


def make_actors(seeds: Sequence[int], roles: Sequence[Role]) -> list[Actor]:
    """Return the actors with ``roles`` in trials with ``seeds``, trial by trial."""
    actor_fields = [(role, [*roles[:e]].count(role), [*roles].count(role)) for e, role in enumerate(roles)]
    return [Actor(seed, *actor) for seed in seeds for actor in actor_fields]


class World(Protocol):
    """E actors for each of S trials, each with a role (``onrig.runtime.random_streams``).

    An actor's episodes depend only on its trial's seed, its role, its index within the role and its own episodes, never
    on other actors and trials.
    """

    @property
    def spaces(self) -> Spaces:
        """Sizes of observations and actions."""
        ...

    def begin(self, actor_mask: Bools) -> Values:
        """Begin the next episode of the actors in ``actor_mask`` (S, E), and return all observations, (S, E, n)."""
        ...

    def step(self, action: NDArray[np.floating], actor_mask: Bools) -> StepResult:
        """Advance the actors in ``actor_mask`` (S, E) with actions (S, E, m) in [-1, 1].

        Raises ValueError if an action is non-finite.
        """
        ...

    def close(self) -> None:
        """Release the world's resources."""
        ...


def episode_returns(world: World, actors: tuple[int, int], act: Policy) -> NDArray[np.float64]:
    """Play one episode with each of (S, E) actors in parallel, and return the sum of each actor's rewards, (S, E)."""
    is_playing: Bools = np.ones(actors, np.bool_)
    observation, total = world.begin(is_playing), np.zeros(actors)
    while is_playing.any():
        result = world.step(act(observation), is_playing)
        total += result.reward
        is_playing = is_playing & ~(result.terminated | result.truncated)
        observation = result.observation
    return total
