"""Rows of a trial's memory: what is kept of an experience, and in which columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.samplers import Setting
from onrig.learner.settings import LearnerSettings
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.strategy import Strategy, parse_strategy
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.run_config import RunConfig, capacity_of

Rows = NDArray[np.float32]


class Altered(NamedTuple):
    """Experiences of one episode, some of them synthetic (``onrig.runtime.memory.transitions``)."""

    rows: Rows
    """(S, T, width): the measured rows, some of them replaced."""
    synthetic: NDArray[np.bool_]
    """(S, T): which."""
    renews: NDArray[np.bool_]
    """(S, T): whether the offer may replace the content of its slot."""


class Kept(NamedTuple):
    """Contents and settings of one trial's memory."""

    n: int
    """Numbers in an observation."""
    m: int
    """Actions."""
    strategy: Strategy
    setting: Setting
    """For the samplers; what ``Memories.begin_episode`` counts is its ``episodes``."""
    write_probability: float = 1.0
    noises: int = 0
    """Floats of noise that rows end with: of each observation of the rig and each action."""
    terminates: bool = False
    """Whether episodes can end before their time; rows then have a column for it."""
    behaviour: bool = False
    """Whether rows hold the behaviour policy: 3 m floats, and one for whether another action was applied."""
    prior: Transitions | None = None
    """Experiences that each memory begins with, oldest first, as ``selection.seed_from`` gives a rig's."""

    @property
    def reserved(self) -> int:
        """Number of prior experiences that are never overwritten."""
        return 0 if self.prior is None or not self.strategy.keeps_seeds else len(self.prior.reward)


def kept_for(config: RunConfig, settings: LearnerSettings, *, noisy: bool, behaviour: bool = False) -> Kept:
    """Memory settings of the trials of a run's configuration."""
    return Kept(
        len(config.signals),
        len(config.rig.actuators),
        parse_strategy(config.selection.strategy),
        Setting.of_run(config, settings, capacity_of(config)),
        config.selection.write_probability,
        len(config.rig.observations) + len(config.rig.actuators) if noisy else 0,
        behaviour=behaviour,
    )


class Columns(NamedTuple):
    """Columns of an experience in a row."""

    observation: slice
    action: slice
    next_observation: slice
    reward: int
    exploration: int
    """1-norm of the action's distance from the policy's own (§7.1.1)."""
    terminated: int | None
    """1 where the task ended."""
    behaviour: slice | None
    """Mean, std and draw of the policy."""
    deviates: int
    """1 where another action was applied than the draw, or the noise was reduced."""
    noise: slice
    """Noise of the observation and the action."""

    @classmethod
    def of(cls, kept: Kept) -> Columns:
        """Columns of what is kept."""
        n, m = kept.n, kept.m
        reward = 2 * n + m
        first = reward + 2 + kept.terminates
        last = first + 3 * m
        noise = last + 1 if kept.behaviour else first
        return cls(
            slice(0, n),
            slice(n, n + m),
            slice(n + m, reward),
            reward,
            reward + 1,
            reward + 2 if kept.terminates else None,
            slice(first, last) if kept.behaviour else None,
            last,
            slice(noise, noise + kept.noises),
        )

    def rows_of(self, t: Transitions) -> Rows:
        """Rows (k, width) of k transitions; their noise counts as 0."""
        rows = np.zeros((len(t.reward), self.noise.stop), np.float32)
        rows[:, self.observation], rows[:, self.action] = t.observation, t.action
        rows[:, self.next_observation], rows[:, self.reward] = t.next_observation, t.reward
        rows[:, self.exploration] = t.exploration
        if self.terminated is not None:
            rows[:, self.terminated] = t.flags & Flag.TERMINATED != 0
        if self.behaviour is not None:
            rows[:, self.behaviour], rows[:, self.deviates] = t.behaviour, t.flags & Flag.DEVIATES != 0
        return rows
