"""Sampling: selection of the stored experiences for a minibatch.

A sampler is notified of changes to slots and draws slots; the owner of the storage gathers the columns.  A sampler that
needs the experiences themselves, or the policy, receives a ``ReplayView``.  A new sampler needs two classes: a
description (``onrig.learner.sampler_settings``), registered under its name in the notation, and an implementation of
the protocol below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.samplers.importance import LinearSchedule
from onrig.learner.tape.convolutions import ReadFrames
from onrig.runtime import registry
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.strategy import Strategy, parse_sampling, sampling_class
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps

if TYPE_CHECKING:  # circular otherwise: descriptions of algorithms and samplers may be in the modules of their code
    from onrig.learner.settings import LearnerSettings

State = dict[str, NDArray[np.generic]]
"""Arrays by name, as stored in an ``.npz`` file."""


class ReplayView(NamedTuple):
    """A sampler's access to stored experiences and policies of S trials."""

    gather: Callable[[NDArray[np.int64]], Minibatches]
    """Function that returns the experiences in slots (S, n), as fields (S, n, ...) that are valid until the next
    call."""
    policy: Callable[[NDArray[np.floating]], NDArray[np.floating]]
    """The current policy: a function from normalised observations (S, n, ...) to normalised, noise-free actions."""
    age: Callable[[NDArray[np.int64]], NDArray[np.floating]]
    """Function that returns the number of training steps before each experience in slots (S, n), as a share of the run:
    (S, n)."""
    observations: int
    """Number of observation dimensions."""
    actions: int
    """Number of action dimensions."""
    read_frames: ReadFrames | None = None
    """Source of the frames whose numbers are the observations; None for vectors."""


class Draw(NamedTuple):
    """Slots for consecutive updates, one row each."""

    slots: NDArray[np.int64]
    """(updates, batch)"""
    weights: NDArray[np.float32] | None
    """Importance-sampling weights, (updates, batch); None if all are 1."""


class SamplerContext(NamedTuple):
    """Memory, run and learner for which a sampler is built."""

    capacity: int
    batch: int
    episodes: int
    """Number of training episodes in the run."""
    updates: int = 0
    """Number of batch updates in the run; 0 if unknown."""
    steps: int = 0
    """Number of training steps in the run; 0 if unknown."""
    learner: LearnerSettings | None = None
    """The ``learner`` section of the run; None for its defaults."""
    view: ReplayView | None = None
    """Access to experiences and the policy; None if the sampler has none."""
    argument: float | None = None
    """Number given in the strategy's notation."""
    write_probability: float = 1.0
    """Share of the steps that are stored as experiences."""
    inner_sampling: str = ""
    """Sampling strategy given in brackets, from which this one draws; empty without brackets."""
    reserved: int = 0
    """Number of leading slots with experiences of an earlier run, which are never overwritten."""

    @property
    def options(self) -> LearnerSettings:
        from onrig.learner.settings import LearnerSettings

        return LearnerSettings() if self.learner is None else self.learner

    @property
    def beta(self) -> LinearSchedule:
        """Importance-sampling exponent over the episodes of the run (de Bruin et al. 2018, §3.3.2)."""
        return LinearSchedule(0.5, 1.0, self.episodes)

    @property
    def replays(self) -> float:
        """Expected number of replays of an experience under FIFO; 8 for a run of unknown length, as in de Bruin et al.
        2018."""
        experiences = self.steps * self.write_probability
        return self.updates * self.batch / experiences if self.updates and experiences else 8.0

    @classmethod
    def of_run(
        cls, config: RunConfig, options: LearnerSettings, capacity: int, view: ReplayView | None = None
    ) -> SamplerContext:
        """Return the context of a run with a fixed number of episodes and a memory of ``capacity`` experiences."""
        steps = config.episodes * episode_steps(config.task, config.rate_hz)
        updates_per_episode, updates_per_transition = options.updates_per_episode, options.updates_per_transition
        write_probability = config.selection.write_probability
        updates = config.episodes * (updates_per_episode or 0) + round(
            steps * write_probability * (updates_per_transition or 0.0)
        )
        context = cls(capacity, options.batch, config.episodes, updates, steps, options, view, None, write_probability)
        return context._replace(reserved=config.selection.reserved)


def sub_state(state: Mapping[str, NDArray[np.generic]], prefix: str) -> State:
    """Return the entries of a state whose names start with a prefix, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


class Sampler(Protocol):
    """Sampling strategy of one trial; draws depend only on its seed and its notifications.

    A subclass implements the notifications that its draws depend on.
    """

    @property
    def required_signals(self) -> frozenset[Signal]:
        """Signals on which draws depend; unless it is empty, each draw waits for the previous update."""

    def begin_episode(self, episode: int) -> None:
        """Set the training episode whose updates come next, for schedules over episodes."""
        return

    def on_write(self, slots: NDArray[np.int64]) -> None:
        """Receive the slots of new experiences, in insertion order; slots fill from 0 upwards."""

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Receive the signals (n,) of the slots (n,) that were just replayed."""
        return

    def on_episode_end(self, episode_return: float) -> None:
        """Receive a training episode's undiscounted return in raw units, NaN if unknown, before the updates that follow
        it."""
        return

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` minibatches, the same ones as in that many separate calls.

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """

    def state(self) -> State:
        """Return a copy of everything that the next draws depend on."""

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``; the next draws are then the same."""

    def learned_state(self) -> State:
        """Return the learned part of ``state()``, which does not depend on slots and so remains valid with a different
        memory."""
        return {}


class SamplerClass(Sampler, Protocol):
    """Sampler class named in a description's ``home``."""

    @classmethod
    def build(cls, context: SamplerContext, stream: np.random.Generator, *, weighted: bool) -> Sampler:
        """Build a sampler that owns ``stream`` (PCG64) from then on; ``weighted``: draws have importance weights."""


def sampler_class(name: str) -> type[SamplerClass]:
    """Load the sampler class registered under a name."""
    description = sampling_class(name)
    sampler: type[SamplerClass] = registry.import_home(description, description.home)
    return sampler


def sampler_for(strategy: Strategy, stream: np.random.Generator, context: SamplerContext) -> Sampler:
    """Build the sampler of ``strategy``, which owns ``stream`` (PCG64) from then on.

    Raises ValueError if the sampling is unknown, or the memory cannot hold one minibatch.
    """
    if context.capacity < context.batch:
        raise ValueError(f"a memory of {context.capacity} experiences is too small for a minibatch of {context.batch}")
    return sampler_of(strategy.sampling, stream, context)


def sampler_of(sampling: str, stream: np.random.Generator, context: SamplerContext) -> Sampler:
    """Build the sampler of a sampling strategy, possibly nested in another; raise ValueError if it is unknown."""
    from onrig.learner.samplers.fis import Fis

    name, correction, argument, inner_sampling = parse_sampling(sampling)
    context = context._replace(argument=argument, inner_sampling=inner_sampling)
    sampler = sampler_class(name).build(context, stream, weighted=correction == "IS")
    if correction == "FIS":
        return Fis(sampler, context.capacity, beta=context.beta, replays=context.replays)
    return sampler
