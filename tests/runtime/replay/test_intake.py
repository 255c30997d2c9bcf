"""Which records may leave the ring, and where a successor begins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.record import Kind
from onrig.runtime.replay.intake import Horizon, Looks, releasable, since, takable, take_over

CAPACITY = 100


@given(
    tail=st.integers(0, 1000),
    kept=st.integers(0, CAPACITY),
    durable=st.integers(0, 1200),
    logged=st.none() | st.integers(0, 1200),
    full=st.booleans(),
    lockstep=st.booleans(),
)
def test_nothing_leaves_that_was_not_taken_in_and_nothing_comes_back(
    tail: int, kept: int, durable: int, logged: int | None, full: bool, lockstep: bool
) -> None:
    upto = releasable(
        tail=tail, taken=tail + kept, durable=durable, capacity=CAPACITY, full=full, lockstep=lockstep, logged=logged
    )
    assert tail <= upto <= tail + kept
    if not full and lockstep:
        assert upto <= max(tail, durable)
        assert logged is None or upto <= max(tail, logged)
    if not lockstep:
        assert tail + kept - upto <= CAPACITY // 2, "the loop finds room"


def test_in_lockstep_a_full_ring_yields_only_when_there_is_nothing_left_to_take_in() -> None:
    def upto(taken: int, *, full: bool) -> int:
        return releasable(tail=0, taken=taken, durable=10, capacity=CAPACITY, full=full, lockstep=True)

    assert upto(CAPACITY, full=True) == CAPACITY // 2
    assert upto(CAPACITY, full=False) == 10
    assert upto(CAPACITY - 1, full=True) == 10


@pytest.mark.parametrize(
    ("tail", "restored", "expected"),
    [
        (0, None, (0, 0)),
        (40, None, (40, 40)),
        (40, {"life": 7, "taken": 60}, (60, 0)),
        (70, {"life": 7, "taken": 60}, (70, 10)),
        (0, {"life": 6, "taken": 60}, (0, 0)),
        (5, {"taken": 60}, (5, 5)),
    ],
    ids=["a new run", "no checkpoint", "the usual", "the ring had to yield", "another life's", "an older version's"],
)
def test_a_successor_begins_behind_the_checkpoint_of_its_own_life(
    tail: int, restored: dict[str, int] | None, expected: tuple[int, int]
) -> None:
    assert take_over(tail, 7, restored) == expected


def records(*parts: tuple[Kind, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    rows = [(n, episode, kind) for n, (kind, episode) in enumerate(parts)]
    return np.array(rows, [("seq", "<u8"), ("episode", "<u4"), ("kind", "u1")])


@pytest.mark.parametrize(
    ("done", "taken"),
    [(-1, 0), (0, 2), (1, 5), (2, 6), (3, 6)],
    ids=["before the learner has begun", "the first", "its evaluation and the next", "all", "and more"],
)
def test_an_episode_is_taken_in_once_all_is_done_that_follows_from_the_one_before(done: int, taken: int) -> None:
    train, evaluate, reset = Kind.TRAIN, Kind.EVAL, Kind.RESET
    waiting = records((train, 1), (train, 1), (evaluate, 1), (reset, 1), (train, 2), (evaluate, 2))
    assert takable(waiting, done) == taken


def test_what_is_known_already_is_left_out() -> None:
    waiting = records(*[(Kind.TRAIN, 1)] * 4)
    assert [since(waiting, seq)["seq"].tolist() for seq in (0, 2, 9)] == [[0, 1, 2, 3], [2, 3], []]
    assert len(since(waiting[:0], 2)) == 0


def test_what_must_leave_a_full_ring_though_no_checkpoint_has_it_is_known(tmp_path: Path) -> None:
    ring = SimpleNamespace(tail=0, taken=CAPACITY, capacity=CAPACITY, full=True, released=0)
    ring.release = lambda upto: setattr(ring, "released", upto)
    anything: Any = ring
    horizon = Horizon(anything, lockstep=True)
    horizon.advance(10, None)
    assert (ring.released, horizon.uncovered) == (CAPACITY // 2, CAPACITY // 2 - 10)
    ring.full = False
    horizon.advance(90, None)
    assert (ring.released, horizon.uncovered) == (90, 0)


def test_in_real_time_records_gather_unless_many_wait() -> None:
    looks = Looks(lockstep=False)
    assert looks.due(1, now_s=5.0), "nothing was taken in before"
    looks.took(5.0)
    assert not looks.due(1, now_s=5.01)
    assert looks.due(100, now_s=5.01)
    assert looks.due(1, now_s=5.0 + looks.pause_ms(5.0) / 1e3)


def test_the_pause_ends_when_the_next_records_are_due_and_is_a_whole_one_where_none_came() -> None:
    looks = Looks(lockstep=False)
    looks.took(5.0)
    whole = looks.pause_ms(5.0)
    assert looks.pause_ms(5.005) == whole - 5
    assert looks.pause_ms(6.0) == whole, "not a poll every millisecond"


def test_in_lockstep_every_record_is_due_and_the_pause_doubles_while_nothing_comes() -> None:
    looks = Looks(lockstep=True)
    looks.took(5.0)
    assert looks.due(1, now_s=5.0)
    pauses = []
    for heard in (False, False, False, False, True, False):
        pauses.append(looks.pause_ms(5.0))
        looks.paused(heard=heard)
    assert pauses == [1, 2, 4, 8, 8, 1]
