"""Worlds: step-by-step environments of S trials with E actors each, and their common interface.

``gym.py`` has the tasks of gymnasium, ``plants.py`` our own plants.
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
"""Actions (S, E, m) in [-1, 1] at observations (S, E, n)."""


class Stepped(NamedTuple):
    """Outcome of one step of every actor; rows of actors that did not step repeat their last observation."""

    observation: Values
    """(S, E, n): where the step led, in a finished episode its last state."""
    reward: NDArray[np.float64]
    """(S, E), raw units; 0 where there was no step."""
    terminated: Bools
    """(S, E): the task is over; no return follows."""
    truncated: Bools
    """(S, E): the episode ends by its time limit; false where it terminated at the same step."""
    action: NDArray[np.float64]
    """(S, E, m): what was applied, normalised, but for actuator noise."""
    intervened: Bools
    """(S, E): a shield changed the action."""
    tripped: Bools
    """(S, E): it handed over to its fallback."""
    noise: NDArray[np.float64] | None = None
    """(S, E, k): what sensors added to the observation before the step, and actuators to the action, normalised; None
    without any."""


class NoSuchTask(Exception):
    """A task of which no world can be made; the message has the reason and the remedy."""


class Spaces(NamedTuple):
    """Sizes of a world's observations and actions."""

    n: int
    """Numbers in an observation."""
    m: int
    """Actions, each normalised to [-1, 1]."""
    levels: int | None
    """Discrete actions, uniform on [-1, 1]; None where every action is possible."""
    horizon: int
    """Steps after which an episode is truncated."""


class Actor(NamedTuple):
    """One of the E actors of a trial."""

    seed: int
    role: Role
    number: int
    """Its number among those of its role, from 0 on."""
    of: int
    """Number of actors of its role."""

    def episode(self, played: int) -> int:
        """Number, from 0 on, of its next episode among those of all actors of its role."""
        return played * self.of + self.number


def actors_of(seeds: Sequence[int], roles: Sequence[Role]) -> list[Actor]:
    """Actors with these roles in trials of ``seeds``, those of a trial together."""
    of_trial = [(role, [*roles[:e]].count(role), [*roles].count(role)) for e, role in enumerate(roles)]
    return [Actor(seed, *actor) for seed in seeds for actor in of_trial]


class World(Protocol):
    """E actors for each of S trials, each with a role (``onrig.runtime.random_streams``).

    An actor's episodes depend on its trial's seed, its role, its number among those of the role and its own episodes
    only, never on other actors and trials.
    """

    @property
    def spaces(self) -> Spaces:
        """Sizes of observations and actions."""
        ...

    def begin(self, which: Bools) -> Values:
        """Begin the next episode of these actors (S, E); returns the present observations of all, (S, E, n)."""
        ...

    def step(self, action: NDArray[np.floating], which: Bools) -> Stepped:
        """One step of these actors (S, E) under actions (S, E, m) in [-1, 1]; ValueError where one is not finite."""
        ...

    def close(self) -> None:
        """Release what the world holds."""
        ...


def episode_returns(world: World, actors: tuple[int, int], act: Policy) -> NDArray[np.float64]:
    """Play one episode with each of (S, E) actors, side by side; returns the sum of each one's rewards, (S, E)."""
    playing: Bools = np.ones(actors, np.bool_)
    observation, total = world.begin(playing), np.zeros(actors)
    while playing.any():
        stepped = world.step(act(observation), playing)
        total += stepped.reward
        playing = playing & ~(stepped.terminated | stepped.truncated)
        observation = stepped.observation
    return total
