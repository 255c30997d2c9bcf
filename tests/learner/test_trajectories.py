from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.learner.trajectories import BYTES_PER_SLOT, Trajectories, experience_keys
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Layout, Slots
from onrig.runtime.memory.storage import Storage
from onrig.runtime.memory.strategy import build_keeper, parse_strategy

CAPACITY = 11
RETENTIONS = ("FIFO", "FULL", "Resv", "TDE(1.0)", "Expl(1.0)")


class FilledMemory:
    """A memory of one trial that is fed episodes, its trajectories, and a search through its contents."""

    def __init__(self, retention: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._keeper = build_keeper(parse_strategy(f"{retention}[Uniform]"), CAPACITY, np.random.default_rng(seed))
        self.storage = Storage(CAPACITY, Layout(1, 1), cyclic=self._keeper.cyclic)
        self.trajectories = Trajectories(1, CAPACITY, self._continues)

    def _continues(self, trial: int, segment_start: Slots, second: Slots) -> NDArray[np.bool_]:
        next_observations: NDArray[np.float32] = self.storage.next_observation[segment_start, 0]
        is_same: NDArray[np.bool_] = next_observations == self.storage.observation[second, 0]
        return is_same

    def add(self, episode: int, steps: list[int], batch_size: int, attempt: int = 0, *, is_late: bool = False) -> None:
        """Offer these steps of an episode; trajectories receive ``batch_size`` at a time, or all late and shuffled."""
        slots: list[int] = []
        for n, step in enumerate(steps):
            slot = self._keeper.place()
            if slot >= 0:
                state = 1000.0 * episode + 100.0 * attempt + step
                self.storage.insert(slot, [state], [0.0], 0.0, [state + 1], episode=episode, step=step)
                self._keeper.on_write(slot, float(self._rng.random()), episode)
                slots.append(slot)
            if n % batch_size == batch_size - 1 and not is_late:
                self._report_errors(slots)
                slots = []
        if is_late:
            self._rng.shuffle(slots)
        for batch_start in range(0, len(slots), batch_size):
            self._report_errors(slots[batch_start : batch_start + batch_size])
        n_stored = self.storage.stored
        if n_stored:
            self._keeper.on_feedback(Signal.TD_ERROR, np.arange(n_stored), self._rng.random(n_stored, np.float32))

    def _report_errors(self, slots: list[int]) -> None:
        slot_array = np.array(slots, np.int64)
        self.trajectories.on_write(
            0, slot_array, experience_keys(self.storage.episode[slot_array], self.storage.step[slot_array])
        )

    def search_chain(self, slot: int, n: int, direction: int = 1) -> list[int]:
        """The chain from a slot, found by exhaustive search."""
        chain = [slot]
        s = self.storage
        while len(chain) < n:
            slot_reached = chain[-1]
            candidates = [
                other
                for other in range(s.stored)
                if s.episode[other] == s.episode[slot_reached]
                and int(s.step[other]) == int(s.step[slot_reached]) + direction
                and (s.next_observation[slot_reached] == s.observation[other] or direction < 0)
                and (s.next_observation[other] == s.observation[slot_reached] or direction > 0)
            ]
            if not candidates:
                break
            (next_slot,) = candidates
            chain.append(next_slot)
        return chain


@pytest.mark.parametrize("retention", RETENTIONS)
@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=6),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_chains_match_a_search_whatever_was_overwritten(
    retention: str, episodes: list[tuple[int, int]], batch_size: int, is_late: bool, seed: int
) -> None:
    memory = FilledMemory(retention, seed)
    for episode, (length, n_lost) in enumerate(episodes, 1):
        memory.add(episode, [step for step in range(length) if step != n_lost], batch_size, is_late=is_late)
        slots = np.arange(memory.storage.stored)[None]
        successors, predecessors = (
            memory.trajectories.with_successors(slots, 4),
            memory.trajectories.with_predecessors(slots, 3),
        )
        for slot in slots[0].tolist():
            for chain, n, direction in ((successors, 4, 1), (predecessors, 3, -1)):
                expected = memory.search_chain(slot, n, direction)
                assert chain.slots[0, slot][chain.is_present[0, slot]].tolist() == expected
                assert chain.last_slots[0, slot] == expected[-1]
            complete_chain = memory.search_chain(memory.search_chain(slot, 99, -1)[-1], 99)
            segment = memory.trajectories.segments_around(slots, 3)
            segment_slots = segment.slots[0, slot][segment.is_present[0, slot]].tolist()
            segment_start = complete_chain.index(slot) // 3 * 3
            assert segment_slots == complete_chain[segment_start : segment_start + 3]


def test_segments_of_a_long_episode_follow_one_another_from_its_start() -> None:
    trajectories = Trajectories(1, 12, lambda trial, segment_start, second: segment_start >= 0)
    trajectories.on_write(0, np.arange(12), np.arange(12))
    segments = trajectories.segments_around(np.arange(12)[None], 5)
    assert segments.slots[0, :, 0].tolist() == [0] * 5 + [5] * 5 + [10] * 2
    assert segments.is_present.sum(axis=2)[0].tolist() == [5] * 10 + [2] * 2


def test_a_restarted_episode_does_not_continue_the_first_attempt() -> None:
    memory = FilledMemory("FIFO", 0)
    memory.add(1, [0, 1, 2, 3], 9)
    memory.add(1, [0, 1], 9, attempt=1)
    chains = memory.trajectories.with_successors(np.arange(6)[None], 4)
    assert [
        row[is_present].tolist() for row, is_present in zip(chains.slots[0], chains.is_present[0], strict=True)
    ] == [
        [0, 1, 2, 3],
        [1, 2, 3],
        [2, 3],
        [3],
        [4, 5],
        [5],
    ]


def test_trials_are_separate_and_slots_without_a_key_have_no_neighbours() -> None:
    trajectories = Trajectories(2, 4, lambda trial, segment_start, second: np.ones(len(segment_start), np.bool_))
    trajectories.on_write(0, np.array([2, 0, 1]), np.array([5, 6, -1]))
    trajectories.on_write(1, np.array([2, 3]), np.array([6, 7]))
    chains = trajectories.with_successors(np.array([[[2, 0], [2, 1]]]), 2)
    assert chains.slots.tolist() == [[[[2, 0], [0, 0]], [[2, 3], [1, 1]]]]
    assert chains.is_present.tolist() == [[[[True, True], [True, False]], [[True, True], [True, False]]]]


def test_they_stay_within_their_stated_bytes() -> None:
    capacity = 22_000  # about the worst number: the table of the slots has just grown
    tracemalloc.start()
    trajectories = Trajectories(1, capacity, lambda trial, segment_start, second: np.ones(len(segment_start), np.bool_))
    trajectories.on_write(0, np.arange(capacity), experience_keys(np.full(capacity, 7), np.arange(capacity)))
    peak_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.5 * BYTES_PER_SLOT * capacity < peak_bytes <= BYTES_PER_SLOT * capacity
