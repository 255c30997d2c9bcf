"""Rows of a trial's memory: the content of an experience, and its columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.samplers import SamplerContext
from onrig.learner.settings import LearnerSettings
from onrig.learner.tape.convolutions import ReadFrames
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.strategy import Strategy, parse_strategy
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.run_config import RunConfig, capacity_of

Rows = NDArray[np.float32]


class AlteredEpisode(NamedTuple):
    """Experiences of one episode, some of them synthetic (``onrig.runtime.memory.transitions``)."""

    rows: Rows
    """(S, T, width): measured rows, some of them replaced."""
    is_synthetic: NDArray[np.bool_]
    """(S, T): whether a row was replaced."""
    may_overwrite: NDArray[np.bool_]
    """(S, T): whether the row may replace the content of its slot."""


class MemoryContents(NamedTuple):
    """Contents and settings of one trial's memory."""

    n: int
    """Size of an observation."""
    m: int
    """Number of actions."""
    strategy: Strategy
    context: SamplerContext
    """Context of the samplers; its ``episodes`` are in the unit of ``Memories.begin_episode``."""
    write_probability: float = 1.0
    noise_width: int = 0
    """Number of floats of noise at the end of rows: one for each of the rig's observations and actions."""
    terminates: bool = False
    """Whether episodes can end early, in which case rows have a column for the termination."""
    records_behaviour: bool = False
    """Whether rows contain the behaviour policy: 3 m floats, and one that marks applied actions that differ from the
    policy's."""
    read_frames: ReadFrames | None = None
    """Source of the frames whose numbers are the observations."""
    prior: Transitions | None = None
    """Initial experiences of each memory, oldest first, like those of ``selection.seed_from`` on a rig."""

    @property
    def reserved(self) -> int:
        """Number of prior experiences that are never overwritten."""
        return 0 if self.prior is None or not self.strategy.keeps_seeds else len(self.prior.reward)


def contents_for(
    config: RunConfig, settings: LearnerSettings, *, is_noisy: bool, records_behaviour: bool = False
) -> MemoryContents:
    """Return the contents and settings of the memories for trials of a run."""
    return MemoryContents(
        len(config.signals),
        len(config.rig.actuators),
        parse_strategy(config.selection.strategy),
        SamplerContext.of_run(config, settings, capacity_of(config)),
        config.selection.write_probability,
        len(config.rig.observations) + len(config.rig.actuators) if is_noisy else 0,
        records_behaviour=records_behaviour,
    )


class Columns(NamedTuple):
    """Columns of a row in which the parts of an experience are stored."""

    observation: slice
    action: slice
    next_observation: slice
    reward: int
    exploration: int
    """1-norm of the difference between the applied action and the policy's (§7.1.1)."""
    terminated: int | None
    """1 if the task ended."""
    behaviour: slice | None
    """Mean, std and draw of the policy."""
    overridden: int
    """1 if the applied action differs from the draw, or the noise was reduced."""
    noise: slice
    """Noise on the observation and on the action."""

    @classmethod
    def for_contents(cls, contents: MemoryContents) -> Columns:
        """Return the columns of rows in a memory with these contents."""
        n, m = contents.n, contents.m
        reward = 2 * n + m
        first = reward + 2 + contents.terminates
        last = first + 3 * m
        noise = last + 1 if contents.records_behaviour else first
        return cls(
            slice(0, n),
            slice(n, n + m),
            slice(n + m, reward),
            reward,
            reward + 1,
            reward + 2 if contents.terminates else None,
            slice(first, last) if contents.records_behaviour else None,
            last,
            slice(noise, noise + contents.noise_width),
        )

    def transition_rows(self, t: Transitions) -> Rows:
        """Return the rows (k, width) of k transitions; their noise counts as 0."""
        rows = np.zeros((len(t.reward), self.noise.stop), np.float32)
        rows[:, self.observation], rows[:, self.action] = t.observation, t.action
        rows[:, self.next_observation], rows[:, self.reward] = t.next_observation, t.reward
        rows[:, self.exploration] = t.exploration
        if self.terminated is not None:
            rows[:, self.terminated] = t.flags & Flag.TERMINATED != 0
        if self.behaviour is not None:
            rows[:, self.behaviour], rows[:, self.overridden] = t.behaviour, t.flags & Flag.DEVIATES != 0
        return rows
