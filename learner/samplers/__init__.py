"""Sampling: which experiences a minibatch is made of, apart from which ones are kept.

A sampler works on slot numbers alone.  It hears of what happens to the slots and answers with slots; the columns are
gathered by whoever holds the storage.  A new one is a file here and one line of ``SAMPLERS``
(``onrig.runtime.replay.memory.strategy``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.samplers.importance import Linear
from onrig.runtime.replay.memory.keepers.keeper import Signal
from onrig.runtime.replay.memory.strategy import SAMPLERS, SAMPLINGS, Strategy, parts_of_sampling

State = dict[str, NDArray[np.generic]]
"""Plain arrays, as they go into an ``.npz`` file."""


class Draw(NamedTuple):
    """Slots for consecutive updates, one row each."""

    slots: NDArray[np.int64]
    """(updates, batch)"""
    weights: NDArray[np.float32] | None
    """Importance-sampling weights, (updates, batch); None where all are 1."""


class Setting(NamedTuple):
    """What a sampler is built for."""

    capacity: int
    batch: int
    episodes: int
    """Training episodes of the run, over which exponents are scheduled."""
    per_alpha: float = 0.7
    """Exponent of rank-based prioritised sampling."""


class Sampler(Protocol):
    """One sampling strategy of one trial; draws depend on its seed and the events it heard, nothing else."""

    @property
    def looks_at(self) -> frozenset[Signal]:
        """Signals that draws depend on; where there are any, draws are asked for one by one."""

    def begin_episode(self, episode: int) -> None:
        """Hear how far the run is: the training episode whose updates come next (schedules over episodes)."""

    def written(self, slots: NDArray[np.int64]) -> None:
        """Hear that these slots hold new experiences, in insertion order; slots fill from 0 upwards."""

    def updated(self, slots: NDArray[np.int64], td: NDArray[np.floating]) -> None:
        """Hear the TD errors of slots that were just learned from."""

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Choose ``updates`` minibatches; the same as so many single draws.

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """

    def state(self) -> State:
        """Copy out everything the next draws depend on."""

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from a state of ``state()``: the next draws are the same."""


class Registered(Sampler, Protocol):
    """What a class of ``SAMPLERS`` says of itself."""

    bytes_per_slot: ClassVar[float]
    """The most it holds for each slot, beside a fixed rest."""
    first_beta: ClassVar[float]
    """Importance-sampling exponent in the first episode; it is 1 in the last."""

    @classmethod
    def build(cls, setting: Setting, stream: np.random.Generator, beta: Linear | None) -> Sampler:
        """Build one; ``stream`` (PCG64) becomes its own, with ``beta`` draws bear importance weights."""


def sampler_class(name: str) -> type[Registered]:
    """Load what ``SAMPLERS`` names."""
    module, _, attribute = SAMPLERS[name].home.partition(":")
    found: type[Registered] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return found


def sampler_for(strategy: Strategy, stream: np.random.Generator, setting: Setting) -> Sampler:
    """Build the sampling half of ``strategy``; ``stream`` (PCG64) becomes its own.

    Raises ValueError for an unknown sampling, and when the memory cannot hold one minibatch.
    """
    from onrig.learner.samplers.fis import Fis

    if setting.capacity < setting.batch:
        raise ValueError(f"a memory of {setting.capacity} experiences gives no minibatch of {setting.batch}")
    if strategy.sampling not in SAMPLINGS:
        raise ValueError(f"unknown sampling '{strategy.sampling}'")
    name, correction = parts_of_sampling(strategy.sampling)
    sampler = sampler_class(name)
    beta = Linear(sampler.first_beta, 1.0, setting.episodes)
    if correction == "FIS":
        return Fis(sampler.build(setting, stream, None), setting.capacity, beta=beta)
    return sampler.build(setting, stream, beta if correction == "IS" else None)
