"""Sampling for S trials: one sampler each, as on the rig, or a joint one where that is much faster.

The joint one is rank-based prioritised replay; each trial draws what ``onrig.learner.samplers.rank_per`` would.  The
experiences of all trials stand in one order, by trial first: a rank in it is a rank within the trial, moved on by what
the trials before it hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, Look, Sampler, Setting, State, sampler_class, sampler_for
from onrig.learner.samplers.fis import Fis
from onrig.learner.samplers.importance import Linear, Scale, importance_weights
from onrig.learner.samplers.joint import Joint
from onrig.learner.samplers.klper import Klper, closest
from onrig.learner.samplers.rank_per import RankPer, segment_ends
from onrig.learner.samplers.uniform import Uniform
from onrig.learner.trials.ranked import RankedKeys
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.replay.memory.keepers.keeper import Signal
from onrig.runtime.replay.memory.layout import Slots
from onrig.runtime.replay.memory.order.ranked import INFINITE
from onrig.runtime.replay.memory.strategy import Strategy, parts_of_sampling

PRIORITY_BITS: Final = 31
"""Of |TD error| as float32."""
AHEAD: Final = 256
"""Draws whose random numbers are generated at once."""


class RankPerTrials:
    """Equivalent of a ``RankPer`` for each of S trials that draw minibatches of equal size in step."""

    def __init__(
        self,
        capacity: int,
        streams: Sequence[np.random.Generator],
        batch: int,
        *,
        alpha: float = 0.7,
        beta: Linear | None = None,
    ) -> None:
        """Sampler of memories of ``capacity``, one per stream; with ``beta``, draws carry importance weights."""
        S = len(streams)
        self._capacity: Final = capacity
        self._streams: Final = streams
        self._batch: Final = batch
        self._beta: Final = beta
        self._cumulative: Final = np.cumsum(np.arange(1, capacity + 1, dtype=np.float64) ** -alpha)
        # A key: the trial, the priority (0 is the largest error), the number of the write, of which the last are kept.
        trial_bits = max(S - 1, 1).bit_length()
        self._sequence_bits: Final = 64 - PRIORITY_BITS - trial_bits
        self._trial_at: Final = np.uint64(64 - trial_bits)
        self._trial: Final = np.arange(S, dtype=np.uint64) << self._trial_at
        self._order: Final = RankedKeys()
        self._key_of: Final = np.zeros(S * capacity, np.uint64)
        self._written = [1] * S
        self._stored: NDArray[np.int64] = np.zeros(S, np.int64)
        self._episode = 1
        self._stale = True
        self._starts: NDArray[np.int64] = np.zeros((S, batch), np.int64)
        self._lengths: NDArray[np.int64] = np.zeros((S, batch), np.int64)
        self._weights: NDArray[np.float32] | None = None
        self._ahead: NDArray[np.float64] = np.zeros((0, S, batch))
        self._used = 0
        self._ranks: NDArray[np.int64] = np.zeros(0, np.int64)
        self._keys: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._rows: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def begin_episode(self, episode: int) -> None:
        """Note the progress of the run."""
        self._episode = episode
        self._stale = True

    def written(self, slots: Sequence[Slots]) -> None:
        """Rank each trial's new experiences first, in order, until they are replayed."""
        fresh, rows = [], []
        for trial, of_trial in enumerate(slots):
            if len(set(of_trial.tolist())) < len(of_trial):
                # Where a slot was written twice the last write counts.
                distinct, last = np.unique(of_trial[::-1], return_index=True)
                of_trial = distinct[np.argsort(last)[::-1]]
            first = self._written[trial]
            self._written[trial] = last_one = first + len(of_trial)
            if last_one >> self._sequence_bits:
                raise ValueError(f"each of {len(slots)} trials can write at most 2^{self._sequence_bits} experiences")
            fresh.append(self._trial[trial] + np.arange(first, last_one, dtype=np.uint64))
            rows.append(of_trial + trial * self._capacity)
        at = np.concatenate(rows)
        keys = np.concatenate(fresh)
        old = np.sort(self._key_of[at])
        old = old[old.searchsorted(1) :]
        self._order.exchange(self._order.ranks(old), keys, at.astype(np.uint32))
        self._key_of[at] = keys
        self._stored += [len(of_trial) for of_trial in rows]
        self._stored -= np.bincount((old >> self._trial_at).astype(np.int64), minlength=len(slots))
        self._stale = True

    def draw(self) -> Draw:
        """Draw a minibatch of every trial, slots (S, batch); with importance sampling weights of the same shape.

        Raises ValueError while a trial holds fewer than ``batch`` experiences.
        """
        if self._stale:
            self._cut_segments()
        if self._used == len(self._ahead):
            shape = (AHEAD, self._batch)
            self._ahead = np.stack([stream.random(shape) for stream in self._streams], axis=1)
            self._used = 0
        ranks = (self._ahead[self._used] * self._lengths).astype(np.int64)
        ranks += self._starts
        self._used += 1
        self._ranks = ranks.reshape(-1)
        self._keys, self._rows = self._order.at(self._ranks)
        slots = self._rows.reshape(ranks.shape).astype(np.int64)
        slots -= np.arange(len(slots))[:, None] * self._capacity
        return Draw(slots, self._weights)

    def updated(self, td: NDArray[np.floating]) -> None:
        """Rank by the TD errors (S, batch) of the last draw; NaN leaves an entry where it is."""
        bits = np.abs(td.reshape(-1), dtype=np.float32).view(np.uint32)
        place = np.uint64(self._sequence_bits)
        priority = (np.uint32(INFINITE) - bits).astype(np.uint64) << place
        fixed = ~np.uint64(((1 << PRIORITY_BITS) - 1) << self._sequence_bits)
        keys = (self._keys & fixed) | priority
        number = bits <= INFINITE
        if not number.all():
            keys = np.where(number, keys, self._keys)
        self._key_of[self._rows] = keys
        self._order.exchange(self._ranks, keys, self._rows)

    def _cut_segments(self) -> None:
        if self._stored.min() < self._batch:
            raise ValueError(f"cannot draw {self._batch} distinct experiences from the {self._stored.min()} stored")
        first = np.cumsum(self._stored) - self._stored
        weights = np.zeros(self._starts.shape, np.float32)
        for stored in set(self._stored.tolist()):
            who = self._stored == stored
            ends = segment_ends(self._cumulative, stored, self._batch)
            starts = np.concatenate(([0], ends[:-1]))
            self._lengths[who] = ends - starts
            self._starts[who] = first[who, None] + starts
            if self._beta is not None:
                times_uniform = stored / (self._batch * (ends - starts)[None].astype(np.float64))
                beta = self._beta.at(self._episode)
                weights[who] = importance_weights(times_uniform, beta, Scale.NONE, float(times_uniform.min()))
        self._weights = weights if self._beta is not None else None
        self._stale = False


class Sampling(Protocol):
    """The samplers of S trials; each draws what ``onrig.learner.samplers`` would have it draw alone."""

    @property
    def looks_at(self) -> frozenset[Signal]:
        """Signals that draws depend on; where there are any, draws are asked for one by one."""
        ...

    def begin_episode(self, episode: int) -> None:
        """Note the progress of the run."""
        ...

    def written(self, slots: Sequence[Slots]) -> None:
        """Notify of the slots of each trial with new experiences, in order."""
        ...

    def draw(self, updates: int) -> Draw:
        """Choose minibatches: slots (updates, S, batch), weights of the same shape or None."""
        ...

    def updated(self, slots: Slots, signals: Signals) -> None:
        """Note what the updates said of the last draw, slots (updates, S, batch)."""
        ...

    def episode_closed(self, returns: NDArray[np.float64], ended: NDArray[np.bool_]) -> None:
        """Note the returns (S,) of the trials whose training episode ended (S,), before the updates that follow."""
        ...


class Each:
    """One sampler per trial."""

    def __init__(self, samplers: Sequence[Sampler], batch: int) -> None:
        self._samplers: Final = samplers
        self._batch: Final = batch
        self.looks_at: Final = samplers[0].looks_at

    def begin_episode(self, episode: int) -> None:
        """Note the progress of the run."""
        for sampler in self._samplers:
            sampler.begin_episode(episode)

    def written(self, slots: Sequence[Slots]) -> None:
        """Note new experiences."""
        for sampler, of_trial in zip(self._samplers, slots, strict=True):
            sampler.written(of_trial)

    def draw(self, updates: int) -> Draw:
        """Choose minibatches."""
        draws = [sampler.draw(self._batch, updates) for sampler in self._samplers]
        slots = np.stack([draw.slots for draw in draws], axis=1)
        weights = [draw.weights for draw in draws if draw.weights is not None]
        return Draw(slots, np.stack(weights, axis=1) if weights else None)

    def updated(self, slots: Slots, signals: Signals) -> None:
        """Note what the updates said."""
        if not self.looks_at:
            return
        for trial, sampler in enumerate(self._samplers):
            sampler.updated(slots[:, trial].reshape(-1), signals.of_trial(trial))

    def episode_closed(self, returns: NDArray[np.float64], ended: NDArray[np.bool_]) -> None:
        """Note returns."""
        for trial in np.flatnonzero(ended).tolist():
            self._samplers[trial].episode_closed(float(returns[trial]))


class Closest:
    """KLPER for all trials at once: their candidates pass through the policies together."""

    looks_at: Final = Klper.looks_at

    def __init__(self, within: Each, candidates: int, look: Look, variance: float) -> None:
        self._within: Final = within
        self._candidates: Final = candidates
        self._look: Final = look
        self._variance: Final = variance

    def begin_episode(self, episode: int) -> None:
        """No effect: draws do not depend on the episode."""

    def written(self, slots: Sequence[Slots]) -> None:
        """Note new experiences."""
        self._within.written(slots)

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch of each trial; ValueError for more, since the policies change between them."""
        if updates != 1:
            raise ValueError(f"a draw that depends on the policy cannot be one of {updates}")
        candidates = self._within.draw(self._candidates).slots
        return Draw(closest(candidates, self._look, self._variance)[None], None)

    def updated(self, slots: Slots, signals: Signals) -> None:
        """No effect: draws do not depend on updates."""

    def episode_closed(self, returns: NDArray[np.float64], ended: NDArray[np.bool_]) -> None:
        """No effect: draws do not depend on returns."""


class Ranked:
    """Rank-based PER for all trials at once, with or without full importance sampling."""

    looks_at: Final = frozenset({Signal.TD_ERROR})

    def __init__(self, per: RankPerTrials, batch: int, fis: Sequence[tuple[Fis, PresetSlots]]) -> None:
        self._per: Final = per
        self._batch: Final = batch
        self._fis: Final = fis

    def begin_episode(self, episode: int) -> None:
        """Note the progress of the run."""
        self._per.begin_episode(episode)
        for fis, _ in self._fis:
            fis.begin_episode(episode)

    def written(self, slots: Sequence[Slots]) -> None:
        """Note new experiences."""
        self._per.written(slots)
        for (fis, _), of_trial in zip(self._fis, slots, strict=False):
            fis.written(of_trial)

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch of each trial; ValueError for more, since draws depend on the last errors."""
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

    def updated(self, slots: Slots, signals: Signals) -> None:
        """Note TD errors."""
        self._per.updated(signals.priority[0])

    def episode_closed(self, returns: NDArray[np.float64], ended: NDArray[np.bool_]) -> None:
        """No effect: draws do not depend on returns."""


class PresetSlots:
    """Stand-in for the sampler wrapped by ``Fis``, with slots drawn elsewhere."""

    looks_at: Final = frozenset({Signal.TD_ERROR})

    def __init__(self) -> None:
        self.slots: Slots = np.zeros((0, 0), np.int64)
        """(1, batch): what was drawn."""

    def begin_episode(self, episode: int) -> None:
        """Nothing to note."""

    def written(self, slots: Slots) -> None:
        """Nothing to note."""

    def updated(self, slots: Slots, signals: Signals) -> None:
        """Nothing to note."""

    def episode_closed(self, episode_return: float) -> None:
        """Nothing to note."""

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Return what was drawn."""
        return Draw(self.slots, None)

    def state(self) -> State:
        """Empty: there is no state."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Nothing to restore."""


def sampling_for(strategy: Strategy, seeds: Sequence[int], setting: Setting) -> Sampling:
    """Build the sampling half of ``strategy`` for trials of ``seeds``, as ``sampler_for`` does for one."""
    streams = [stream(seed, Role.SAMPLER) for seed in seeds]
    name, correction, candidates = parts_of_sampling(strategy.sampling)
    one_trial: type = sampler_class(name)
    if setting.capacity < setting.batch:
        raise ValueError(f"a memory of {setting.capacity} experiences gives no minibatch of {setting.batch}")
    if one_trial is Klper and setting.look is not None and candidates is not None:
        uniform = Each([Uniform(s) for s in streams], setting.batch)
        return Closest(uniform, int(candidates), setting.look, setting.options.klper_settings.variance)
    if issubclass(one_trial, Joint):
        return one_trial(setting, streams)
    if one_trial is not RankPer:
        return Each([sampler_for(strategy, s, setting) for s in streams], setting.batch)
    weighted = setting.beta if correction == "IS" else None
    within = [PresetSlots() for _ in seeds] if correction == "FIS" else []
    fis = [(Fis(drawn, setting.capacity, beta=setting.beta, replays=setting.replays), drawn) for drawn in within]
    per = RankPerTrials(setting.capacity, streams, setting.batch, alpha=setting.options.per_alpha, beta=weighted)
    return Ranked(per, setting.batch, fis)
