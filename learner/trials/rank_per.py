"""Rank-based prioritised replay for S trials at once; each draws what ``onrig.learner.samplers.rank_per`` would.

The experiences of all trials stand in one order, by trial first: a rank in it is a rank within the trial, moved on by
what the trials before it hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.samplers import Draw
from onrig.learner.samplers.importance import Linear, Scale, importance_weights
from onrig.learner.samplers.rank_per import segment_ends
from onrig.learner.trials.ranked import RankedKeys
from onrig.runtime.replay.memory.layout import Slots
from onrig.runtime.replay.memory.order.ranked import INFINITE

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
