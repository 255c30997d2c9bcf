"""Onrig's memory, assembled as on the rig and in its learner: keeper, storage, sampler and gathering of rows.

Sampling includes all of a learner's steps: drawing slots, gathering rows and separating terminations.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import SamplerContext, sampler_for
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import GENERATION_SHIFT, POLICY_SHIFT, Batch, Flag, Layout
from onrig.runtime.memory.storage import Storage
from onrig.runtime.memory.strategy import build_keeper, parse_strategy
from onrig.tools.bench.replay.buffers import (
    BATCH_SIZE,
    INSERTS_PER_CYCLE,
    POOL_SIZE,
    UPDATES_PER_CYCLE,
    Buffer,
    Columns,
    Errors,
    Floats,
    Transitions,
    proportional_probabilities,
    uniform_probabilities,
)
from onrig.tools.bench.timing import SKIPPED

_EPISODES = 2000
_CHUNK = 1024
_RANK_ALPHA = 0.7
_EPSILON = 1e-6

_Row = tuple[Floats, Floats, float, Floats, int, int, float, int, int]


class _Onrig(Buffer):
    def __init__(self, kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> None:
        strategy = parse_strategy(kind)
        self._sampling = strategy.sampling
        self._keeper = build_keeper(strategy, capacity, np.random.default_rng([seed, 3]))
        self._storage = Storage(capacity, Layout(n_obs, n_act), cyclic=self._keeper.cyclic)
        self._sampler = sampler_for(
            strategy, np.random.default_rng([seed, 4]), SamplerContext(capacity, BATCH_SIZE, _EPISODES)
        )
        self._capacity = capacity
        self._batches = {size: Batch(self._storage.layout, size) for size in (16, 64, 256)}
        # These are bound once, as the rig's loops bind them to local names.
        self._place, self._on_write, self._store = self._keeper.place, self._keeper.on_write, self._storage.insert
        self._draw, self._gather = self._sampler.draw, self._storage.gather
        # Errors go to the rig's keeper if it uses them, else to the learner's sampler.
        keeper_uses_errors = Signal.TD_ERROR in strategy.keeper.required_signals
        self._take_errors = (
            partial(self._keeper.on_feedback, Signal.TD_ERROR) if keeper_uses_errors else self._notify_sampler
        )
        self._arguments: list[_Row] = []
        self._slots: list[NDArray[np.int64]] = []
        self._td: list[Floats] = []
        # State at the start of a round of inserts: FULL counts its writes, and Resv its offers.
        self._first_state = self._keeper.state() if strategy.retention == "FULL" else None
        self._is_reservoir = strategy.retention == "Resv"

    def extend(self, t: Transitions) -> None:
        n_stored = self._storage.stored
        n = len(t.reward)
        if n_stored + n > self._capacity:
            for row in _rows(t):
                self._insert(row)
            return
        slots = np.arange(n_stored, n_stored + n)
        self._storage.write_rows(_export_rows(self._storage.layout, slots, self._storage.inserted, t))
        for step, exploration in enumerate(t.exploration.tolist()):
            self._on_write(self._place(), exploration, (n_stored + step) // INSERTS_PER_CYCLE)
        self._sampler.on_write(slots)
        if self._is_reservoir and n_stored + n == self._capacity:
            self._first_state = self._keeper.state()

    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        for start in range(0, len(slots), _CHUNK):
            chunk, errors = slots[start : start + _CHUNK], td[start : start + _CHUNK]
            self._sampler.on_update(chunk, Signals(errors))
            self._keeper.on_feedback(Signal.TD_ERROR, chunk, errors)

    def probabilities(self, td: Floats) -> NDArray[np.float64]:
        if self._sampling == "Uniform":
            return uniform_probabilities(self._capacity)
        if self._sampling.startswith("PropPER"):
            return proportional_probabilities(td, _EPSILON)
        return _segment_probabilities(td)

    def columns(self) -> Columns:
        self.sample(BATCH_SIZE)
        b = self._batches[BATCH_SIZE]
        return Columns(
            b.observation.copy(), b.action.copy(), b.reward.copy(), b.next_observation.copy(), b.terminated()
        )

    def prepare(self, t: Transitions, e: Errors) -> None:
        self._arguments = _rows(t)
        self._slots, self._td = list(e.slots), list(e.td)

    def _insert(self, row: _Row) -> int:
        slot = self._place()
        if slot >= 0:
            o, a, r, n, flags, policy, exploration, episode, step = row
            self._store(slot, o, a, r, n, flags, policy, exploration, episode, step)
            self._on_write(slot, exploration, episode)
        return slot

    def insert(self, i: int) -> object:
        slot = self._place()
        if slot < 0:
            return SKIPPED
        o, a, r, n, flags, policy, exploration, episode, step = self._arguments[i]
        self._store(slot, o, a, r, n, flags, policy, exploration, episode, step)
        self._on_write(slot, exploration, episode)
        return slot

    def insert_drawable(self, i: int) -> object:
        slot = self._insert(self._arguments[i])
        self._sampler.on_write(np.array([slot]))
        return slot

    def sample(self, size: int) -> object:
        draw = self._draw(size)
        batch = self._gather(draw.slots.reshape(-1), self._batches[size])
        return draw, batch, batch.terminated()

    def update(self, i: int) -> None:
        self._take_errors(self._slots[i], self._td[i])

    def _notify_sampler(self, slots: NDArray[np.int64], td: Floats) -> None:
        self._sampler.on_update(slots, Signals(td))

    def learn(self, i: int) -> None:
        draw = self._draw(BATCH_SIZE)
        slots = draw.slots.reshape(-1)
        self._gather(slots, self._batches[BATCH_SIZE]).terminated()
        td = self._td[i]
        self._sampler.on_update(slots, Signals(td))
        self._keeper.on_feedback(Signal.TD_ERROR, slots, td)

    def cycle(self, i: int) -> None:
        slots = [
            self._insert(self._arguments[j % POOL_SIZE])
            for j in range(i * INSERTS_PER_CYCLE, (i + 1) * INSERTS_PER_CYCLE)
        ]
        self._sampler.on_write(np.array([slot for slot in slots if slot >= 0]))
        for j in range(UPDATES_PER_CYCLE):
            self.learn(j)

    def begin_round(self) -> None:
        if self._first_state is not None:
            self._keeper.restore(self._first_state)

    def array_bytes(self) -> int | None:
        return self._storage.nbytes + self._keeper.nbytes if self._sampling == "Uniform" else None


def _rows(t: Transitions) -> list[_Row]:
    flags = np.where(t.terminated, int(Flag.TERMINATED), 0).tolist()
    rewards, explorations = t.reward.tolist(), t.exploration.tolist()
    rows = zip(t.observation, t.action, rewards, t.next_observation, flags, explorations, strict=True)
    return [(o, a, r, n, f, 1, e, step // INSERTS_PER_CYCLE, step) for step, (o, a, r, n, f, e) in enumerate(rows)]


def _export_rows(layout: Layout, slots: NDArray[np.int64], n_written: int, t: Transitions) -> NDArray[np.uint32]:
    """Convert transitions to the rows that a mirror applies (``Storage.write_rows``)."""
    rows = np.zeros((len(slots), 3 + layout.width), np.uint32)
    rows[:, 0] = slots
    rows[:, 1] = np.arange(n_written + 1, n_written + 1 + len(slots))
    words = rows[:, 3:]
    fields = (t.observation, t.action, t.next_observation)
    for columns, field in zip((layout.observation, layout.action, layout.next_observation), fields, strict=True):
        words[:, columns] = field.view(np.uint32)
    words[:, layout.reward] = t.reward.view(np.uint32)
    words[:, layout.exploration] = t.exploration.view(np.uint32)
    words[:, layout.meta] = np.where(t.terminated, int(Flag.TERMINATED), 0) | 1 << GENERATION_SHIFT | 1 << POLICY_SHIFT
    return rows


def _segment_probabilities(td: Floats) -> NDArray[np.float64]:
    """Return 1 / (BATCH_SIZE * number of ranks in the segment) for each slot (de Bruin et al. 2018, §3.3.1).

    The computation does not use the sampler's code.
    """
    n = len(td)
    rank = np.empty(n, np.int64)
    rank[np.argsort(-td, kind="stable")] = np.arange(1, n + 1)
    cumulative = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -_RANK_ALPHA)
    # A rank belongs to the segment that contains the cumulative probability of the ranks before it.
    segment = np.minimum(
        (np.concatenate(([0.0], cumulative[:-1])) / cumulative[-1] * BATCH_SIZE).astype(np.int64), BATCH_SIZE - 1
    )
    probability_of_rank = 1.0 / (BATCH_SIZE * np.bincount(segment, minlength=BATCH_SIZE)[segment])
    probabilities: NDArray[np.float64] = probability_of_rank[rank - 1]
    return probabilities


def build(kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> Buffer:
    """Build an empty memory for the strategy ``kind``."""
    return _Onrig(kind, n_obs, n_act, capacity, seed)
