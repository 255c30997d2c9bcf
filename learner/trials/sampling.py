"""Sampling for S trials: a sampler each, as on the rig, or one for all where that is much quicker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.samplers import Draw, Sampler, Setting, State, sampler_class, sampler_for
from onrig.learner.samplers.fis import Fis
from onrig.learner.samplers.importance import Linear
from onrig.learner.samplers.rank_per import RankPer
from onrig.learner.trials.rank_per import RankPerTrials
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.replay.memory.keepers.keeper import Signal
from onrig.runtime.replay.memory.layout import Slots
from onrig.runtime.replay.memory.strategy import Strategy, parts_of_sampling


class Sampling(Protocol):
    """The samplers of S trials; each draws what ``onrig.learner.samplers`` would have it draw alone."""

    @property
    def looks_at(self) -> frozenset[Signal]:
        """Signals that draws depend on; where there are any, draws are asked for one by one."""
        ...

    def begin_episode(self, episode: int) -> None:
        """Hear how far the run is."""
        ...

    def written(self, slots: Sequence[Slots]) -> None:
        """Hear which slots of each trial hold new experiences, in order."""
        ...

    def draw(self, updates: int) -> Draw:
        """Choose minibatches: slots (updates, S, batch), weights of the same shape or None."""
        ...

    def updated(self, td: NDArray[np.float32]) -> None:
        """Hear the TD errors (updates, S, batch) of what was drawn last."""
        ...


class Each:
    """A sampler for each trial, none of which wants to hear of updates before the next draw."""

    def __init__(self, samplers: Sequence[Sampler], batch: int) -> None:
        self._samplers: Final = samplers
        self._batch: Final = batch
        self._slots: Slots = np.zeros((0, 0, 0), np.int64)
        self.looks_at: Final = samplers[0].looks_at

    def begin_episode(self, episode: int) -> None:
        """Hear how far the run is."""
        for sampler in self._samplers:
            sampler.begin_episode(episode)

    def written(self, slots: Sequence[Slots]) -> None:
        """Hear of new experiences."""
        for sampler, of_trial in zip(self._samplers, slots, strict=True):
            sampler.written(of_trial)

    def draw(self, updates: int) -> Draw:
        """Choose minibatches."""
        draws = [sampler.draw(self._batch, updates) for sampler in self._samplers]
        self._slots = np.stack([draw.slots for draw in draws], axis=1)
        weights = [draw.weights for draw in draws if draw.weights is not None]
        return Draw(self._slots, np.stack(weights, axis=1) if weights else None)

    def updated(self, td: NDArray[np.float32]) -> None:
        """Hear TD errors."""
        if not self.looks_at:
            return
        for trial, sampler in enumerate(self._samplers):
            sampler.updated(self._slots[:, trial].reshape(-1), td[:, trial].reshape(-1))


class Ranked:
    """Rank-based PER for all trials at once, with or without full importance sampling."""

    looks_at: Final = frozenset({Signal.TD_ERROR})

    def __init__(self, per: RankPerTrials, batch: int, fis: Sequence[tuple[Fis, Drawn]]) -> None:
        self._per: Final = per
        self._batch: Final = batch
        self._fis: Final = fis

    def begin_episode(self, episode: int) -> None:
        """Hear how far the run is."""
        self._per.begin_episode(episode)
        for fis, _ in self._fis:
            fis.begin_episode(episode)

    def written(self, slots: Sequence[Slots]) -> None:
        """Hear of new experiences."""
        self._per.written(slots)
        for (fis, _), of_trial in zip(self._fis, slots, strict=False):
            fis.written(of_trial)

    def draw(self, updates: int) -> Draw:
        """Choose a minibatch of each trial; ValueError for more than one, which would not know of the errors."""
        if updates != 1:
            raise ValueError(f"a draw that depends on the update before it cannot be one of {updates}")
        draw = self._per.draw()
        weights = draw.weights
        if self._fis:
            weights = np.empty(draw.slots.shape, np.float32)
            for (fis, drawn), slots, of_trial in zip(self._fis, draw.slots, weights, strict=True):
                drawn.slots = slots[None]
                of_trial[:] = fis.draw(self._batch).weights
        return Draw(draw.slots[None], None if weights is None else weights[None])

    def updated(self, td: NDArray[np.float32]) -> None:
        """Hear TD errors."""
        self._per.updated(td[0])


class Drawn:
    """Stands for a sampler within ``Fis`` where somebody else has drawn."""

    looks_at: Final = frozenset({Signal.TD_ERROR})

    def __init__(self) -> None:
        self.slots: Slots = np.zeros((0, 0), np.int64)
        """(1, batch): what was drawn."""

    def begin_episode(self, episode: int) -> None:
        """Nothing to note."""

    def written(self, slots: Slots) -> None:
        """Nothing to note."""

    def updated(self, slots: Slots, td: NDArray[np.floating]) -> None:
        """Nothing to note."""

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Return what was drawn."""
        return Draw(self.slots, None)

    def state(self) -> State:
        """Return nothing: there is none."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Nothing to take up."""


def sampling_for(strategy: Strategy, seeds: Sequence[int], setting: Setting) -> Sampling:
    """Build the sampling half of ``strategy`` for trials of ``seeds``, as ``sampler_for`` does for one."""
    streams = [stream(seed, Role.SAMPLER) for seed in seeds]
    name, correction = parts_of_sampling(strategy.sampling)
    one_trial: type = sampler_class(name)
    if one_trial is not RankPer:
        return Each([sampler_for(strategy, s, setting) for s in streams], setting.batch)
    if setting.capacity < setting.batch:
        raise ValueError(f"a memory of {setting.capacity} experiences gives no minibatch of {setting.batch}")
    beta = Linear(RankPer.first_beta, 1.0, setting.episodes)
    weighted = beta if correction == "IS" else None
    within = [Drawn() for _ in seeds] if correction == "FIS" else []
    fis = [(Fis(drawn, setting.capacity, beta=beta), drawn) for drawn in within]
    per = RankPerTrials(setting.capacity, streams, setting.batch, alpha=setting.per_alpha, beta=weighted)
    return Ranked(per, setting.batch, fis)
