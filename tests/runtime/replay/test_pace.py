"""Which records are read and when, and which may leave the ring, in real time and in lockstep."""

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
UNUSED: Any = None


def make_ring(*, tail: int = 0, n_taken: int = CAPACITY, is_full: bool = True) -> Any:
    """A ring that records how far it is released."""
    ring = SimpleNamespace(tail=tail, n_taken=n_taken, capacity=CAPACITY, is_full=is_full, released=0)
    ring.release = lambda upto: setattr(ring, "released", upto)
    return ring


def make_lockstep(ring: Any = None, done_episode: int = -1) -> Lockstep:
    requests: Any = SimpleNamespace(last_done_episode=done_episode)
    config: Any = SimpleNamespace(episodes=5, actor=UNSET)
    return Lockstep(config, ring, UNUSED, requests, UNUSED)


@given(
    tail=st.integers(0, 1000),
    n_kept=st.integers(0, CAPACITY),
    durable_upto=st.integers(0, 1200),
    logged_upto=st.none() | st.integers(0, 1200),
    is_full=st.booleans(),
    lockstep=st.booleans(),
)
def test_only_records_that_were_read_are_released_and_none_return(
    tail: int, n_kept: int, durable_upto: int, logged_upto: int | None, is_full: bool, lockstep: bool
) -> None:
    ring = make_ring(tail=tail, n_taken=tail + n_kept, is_full=is_full)
    pace = make_lockstep(ring) if lockstep else RealTime(ring, UNUSED)
    pace.release(durable_upto, logged_upto)
    released_upto = ring.released
    assert tail <= released_upto <= tail + n_kept
    if not is_full and lockstep:
        assert released_upto <= max(tail, durable_upto)
        assert logged_upto is None or released_upto <= max(tail, logged_upto)
    if not lockstep:
        assert tail + n_kept - released_upto <= CAPACITY // 2, "the loop finds room"


def test_in_lockstep_a_full_ring_is_released_only_when_nothing_is_left_to_read() -> None:
    def released_upto(n_taken: int, *, is_full: bool) -> int:
        ring = make_ring(tail=0, n_taken=n_taken, is_full=is_full)
        make_lockstep(ring).release(10, None)
        released: int = ring.released
        return released

    assert released_upto(CAPACITY, is_full=True) == CAPACITY // 2
    assert released_upto(CAPACITY, is_full=False) == 10
    assert released_upto(CAPACITY - 1, is_full=True) == 10


def records(*parts: tuple[Kind, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    rows = [(n, episode, kind) for n, (kind, episode) in enumerate(parts)]
    return np.array(rows, [("seq", "<u8"), ("episode", "<u4"), ("kind", "u1")])


@pytest.mark.parametrize(
    ("done_episode", "n_taken"),
    [(-1, 0), (0, 2), (1, 5), (2, 6), (3, 6)],
    ids=["before the learner has begun", "the first", "its evaluation and the next", "all", "and more"],
)
def test_an_episode_is_read_once_everything_that_follows_from_the_previous_one_is_done(
    done_episode: int, n_taken: int
) -> None:
    train, evaluate, reset = Kind.TRAIN, Kind.EVAL, Kind.RESET
    queued = records((train, 1), (train, 1), (evaluate, 1), (reset, 1), (train, 2), (evaluate, 2))
    assert make_lockstep(done_episode=done_episode).readable(queued) == n_taken
    assert RealTime(UNUSED, UNUSED).readable(queued) == len(queued)


def test_records_that_must_leave_a_full_ring_without_a_checkpoint_are_known() -> None:
    ring = make_ring()
    pace = make_lockstep(ring)
    pace.release(10, None)
    assert (ring.released, pace.n_uncovered) == (CAPACITY // 2, CAPACITY // 2 - 10)
    ring.is_full = False
    pace.release(90, None)
    assert (ring.released, pace.n_uncovered) == (90, 0)


def test_in_real_time_records_accumulate_unless_many_are_waiting() -> None:
    pace = RealTime(UNUSED, UNUSED)
    assert pace.is_reading_due(1, now_s=5.0), "nothing was taken in before"
    pace.note_read(5.0)
    assert not pace.is_reading_due(1, now_s=5.01)
    assert pace.is_reading_due(100, now_s=5.01)
    assert pace.is_reading_due(1, now_s=5.0 + pace.pause_ms(5.0) / 1e3)


def test_the_pause_ends_when_the_next_records_are_due_and_is_a_full_one_if_none_came() -> None:
    pace = RealTime(UNUSED, UNUSED)
    pace.note_read(5.0)
    full_pause_ms = pace.pause_ms(5.0)
    assert pace.pause_ms(5.005) == full_pause_ms - 5
    assert pace.pause_ms(6.0) == full_pause_ms, "not a poll every millisecond"


def test_in_lockstep_every_record_is_due_and_the_pause_doubles_while_none_comes() -> None:
    pace = make_lockstep()
    pace.note_read(5.0)
    assert pace.is_reading_due(1, now_s=5.0)
    pauses_ms = []
    for is_requested in (False, False, False, False, True, False):
        pauses_ms.append(pace.pause_ms(5.0))
        pace.note_pause(is_requested=is_requested)
    assert pauses_ms == [1, 2, 4, 8, 8, 1]
