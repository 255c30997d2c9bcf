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


class Filled:
    """A memory of one trial that is fed episodes, its trajectories, and what is stored, by search."""

    def __init__(self, retention: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._keeper = build_keeper(parse_strategy(f"{retention}[Uniform]"), CAPACITY, np.random.default_rng(seed))
        self.storage = Storage(CAPACITY, Layout(1, 1), cyclic=self._keeper.cyclic)
        self.trajectories = Trajectories(1, CAPACITY, self._continues)

    def _continues(self, trial: int, first: Slots, second: Slots) -> NDArray[np.bool_]:
        ends: NDArray[np.float32] = self.storage.next_observation[first, 0]
        same: NDArray[np.bool_] = ends == self.storage.observation[second, 0]
        return same

    def add(self, episode: int, steps: list[int], at_once: int, attempt: int = 0, *, late: bool = False) -> None:
        """Offer these steps of an episode; trajectories hear of so many at once, or late and in any order."""
        slots: list[int] = []
        for n, step in enumerate(steps):
            slot = self._keeper.place()
            if slot >= 0:
                state = 1000.0 * episode + 100.0 * attempt + step
                self.storage.insert(slot, [state], [0.0], 0.0, [state + 1], episode=episode, step=step)
                self._keeper.on_write(slot, float(self._rng.random()), episode)
                slots.append(slot)
            if n % at_once == at_once - 1 and not late:
                self._tell(slots)
                slots = []
        if late:
            self._rng.shuffle(slots)
        for first in range(0, len(slots), at_once):
            self._tell(slots[first : first + at_once])
        stored = self.storage.stored
        if stored:
            self._keeper.on_feedback(Signal.TD_ERROR, np.arange(stored), self._rng.random(stored, np.float32))

    def _tell(self, slots: list[int]) -> None:
        at = np.array(slots, np.int64)
        self.trajectories.on_write(0, at, experience_keys(self.storage.episode[at], self.storage.step[at]))

    def searched(self, slot: int, n: int, ahead: int = 1) -> list[int]:
        """The chain from a slot on, found by looking through everything."""
        found = [slot]
        s = self.storage
        while len(found) < n:
            here = found[-1]
            near = [
                other
                for other in range(s.stored)
                if s.episode[other] == s.episode[here]
                and int(s.step[other]) == int(s.step[here]) + ahead
                and (s.next_observation[here] == s.observation[other] or ahead < 0)
                and (s.next_observation[other] == s.observation[here] or ahead > 0)
            ]
            if not near:
                break
            (one,) = near
            found.append(one)
        return found


@pytest.mark.parametrize("retention", RETENTIONS)
@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=6),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_chains_are_those_that_a_search_finds_whatever_was_overwritten(
    retention: str, episodes: list[tuple[int, int]], at_once: int, late: bool, seed: int
) -> None:
    filled = Filled(retention, seed)
    for episode, (length, lost) in enumerate(episodes, 1):
        filled.add(episode, [step for step in range(length) if step != lost], at_once, late=late)
        slots = np.arange(filled.storage.stored)[None]
        after, before = filled.trajectories.with_successors(slots, 4), filled.trajectories.with_predecessors(slots, 3)
        for slot in slots[0].tolist():
            for chain, n, ahead in ((after, 4, 1), (before, 3, -1)):
                wanted = filled.searched(slot, n, ahead)
                assert chain.slots[0, slot][chain.is_present[0, slot]].tolist() == wanted
                assert chain.last_slots[0, slot] == wanted[-1]
            whole = filled.searched(filled.searched(slot, 99, -1)[-1], 99)
            segment = filled.trajectories.segments_around(slots, 3)
            cut = segment.slots[0, slot][segment.is_present[0, slot]].tolist()
            first = whole.index(slot) // 3 * 3
            assert cut == whole[first : first + 3]


def test_segments_of_a_long_episode_follow_one_another_from_its_start() -> None:
    trajectories = Trajectories(1, 12, lambda trial, first, second: first >= 0)
    trajectories.on_write(0, np.arange(12), np.arange(12))
    segments = trajectories.segments_around(np.arange(12)[None], 5)
    assert segments.slots[0, :, 0].tolist() == [0] * 5 + [5] * 5 + [10] * 2
    assert segments.is_present.sum(axis=2)[0].tolist() == [5] * 10 + [2] * 2


def test_an_episode_that_was_begun_again_does_not_go_on_from_the_first_attempt() -> None:
    filled = Filled("FIFO", 0)
    filled.add(1, [0, 1, 2, 3], 9)
    filled.add(1, [0, 1], 9, attempt=1)
    chains = filled.trajectories.with_successors(np.arange(6)[None], 4)
    assert [row[there].tolist() for row, there in zip(chains.slots[0], chains.is_present[0], strict=True)] == [
        [0, 1, 2, 3],
        [1, 2, 3],
        [2, 3],
        [3],
        [4, 5],
        [5],
    ]


def test_trials_are_apart_and_what_has_no_key_has_no_neighbours() -> None:
    trajectories = Trajectories(2, 4, lambda trial, first, second: np.ones(len(first), np.bool_))
    trajectories.on_write(0, np.array([2, 0, 1]), np.array([5, 6, -1]))
    trajectories.on_write(1, np.array([2, 3]), np.array([6, 7]))
    chains = trajectories.with_successors(np.array([[[2, 0], [2, 1]]]), 2)
    assert chains.slots.tolist() == [[[[2, 0], [0, 0]], [[2, 3], [1, 1]]]]
    assert chains.is_present.tolist() == [[[[True, True], [True, False]], [[True, True], [True, False]]]]


def test_they_stay_within_the_bytes_that_they_state() -> None:
    capacity = 22_000  # of those, about the worst: the table of the slots has just grown
    tracemalloc.start()
    trajectories = Trajectories(1, capacity, lambda trial, first, second: np.ones(len(first), np.bool_))
    trajectories.on_write(0, np.arange(capacity), experience_keys(np.full(capacity, 7), np.arange(capacity)))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.5 * BYTES_PER_SLOT * capacity < held <= BYTES_PER_SLOT * capacity
