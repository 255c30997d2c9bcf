"""Which records are taken in and when, and which may leave the ring, in real time and in lockstep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from onrig.runtime.record import Kind
from onrig.runtime.replay.pace import Lockstep, RealTime

CAPACITY = 100
ANY: Any = None


def ring_of(*, tail: int = 0, taken: int = CAPACITY, full: bool = True) -> Any:
    """A ring that notes up to where it is released."""
    ring = SimpleNamespace(tail=tail, n_taken=taken, capacity=CAPACITY, is_full=full, released=0)
    ring.release = lambda upto: setattr(ring, "released", upto)
    return ring


def lockstep_of(ring: Any = None, done: int = -1) -> Lockstep:
    requests: Any = SimpleNamespace(last_done_episode=done)
    config: Any = SimpleNamespace(episodes=5, actor=UNSET)
    return Lockstep(config, ring, ANY, requests, ANY)


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
    ring = ring_of(tail=tail, taken=tail + kept, full=full)
    paced = lockstep_of(ring) if lockstep else RealTime(ring, ANY)
    paced.release(durable, logged)
    upto = ring.released
    assert tail <= upto <= tail + kept
    if not full and lockstep:
        assert upto <= max(tail, durable)
        assert logged is None or upto <= max(tail, logged)
    if not lockstep:
        assert tail + kept - upto <= CAPACITY // 2, "the loop finds room"


def test_in_lockstep_a_full_ring_yields_only_when_there_is_nothing_left_to_take_in() -> None:
    def upto(taken: int, *, full: bool) -> int:
        ring = ring_of(tail=0, taken=taken, full=full)
        lockstep_of(ring).release(10, None)
        released: int = ring.released
        return released

    assert upto(CAPACITY, full=True) == CAPACITY // 2
    assert upto(CAPACITY, full=False) == 10
    assert upto(CAPACITY - 1, full=True) == 10


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
    assert lockstep_of(done=done).readable(waiting) == taken
    assert RealTime(ANY, ANY).readable(waiting) == len(waiting)


def test_what_must_leave_a_full_ring_though_no_checkpoint_has_it_is_known() -> None:
    ring = ring_of()
    paced = lockstep_of(ring)
    paced.release(10, None)
    assert (ring.released, paced.n_uncovered) == (CAPACITY // 2, CAPACITY // 2 - 10)
    ring.is_full = False
    paced.release(90, None)
    assert (ring.released, paced.n_uncovered) == (90, 0)


def test_in_real_time_records_gather_unless_many_wait() -> None:
    paced = RealTime(ANY, ANY)
    assert paced.is_reading_due(1, now_s=5.0), "nothing was taken in before"
    paced.note_read(5.0)
    assert not paced.is_reading_due(1, now_s=5.01)
    assert paced.is_reading_due(100, now_s=5.01)
    assert paced.is_reading_due(1, now_s=5.0 + paced.pause_ms(5.0) / 1e3)


def test_the_pause_ends_when_the_next_records_are_due_and_is_a_whole_one_where_none_came() -> None:
    paced = RealTime(ANY, ANY)
    paced.note_read(5.0)
    whole = paced.pause_ms(5.0)
    assert paced.pause_ms(5.005) == whole - 5
    assert paced.pause_ms(6.0) == whole, "not a poll every millisecond"


def test_in_lockstep_every_record_is_due_and_the_pause_doubles_while_nothing_comes() -> None:
    paced = lockstep_of()
    paced.note_read(5.0)
    assert paced.is_reading_due(1, now_s=5.0)
    pauses = []
    for is_requested in (False, False, False, False, True, False):
        pauses.append(paced.pause_ms(5.0))
        paced.note_pause(is_requested=is_requested)
    assert pauses == [1, 2, 4, 8, 8, 1]
