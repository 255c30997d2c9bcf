"""Which state frames count as new."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw.intake import LinkCounters, StateIntake, frames_between, is_before
from onrig.hw.messages import State, StateLayout
from tests.hw.fake_device import state_of

LAYOUT = StateLayout(2, 1)


@pytest.fixture
def intake() -> StateIntake:
    return StateIntake(LAYOUT, LinkCounters())


def counters(intake: StateIntake) -> LinkCounters:
    return intake._counters


def take(intake: StateIntake, *states: State) -> None:
    for i, state in enumerate(states):
        intake.take(LAYOUT.encode(state), 1000 + i)


def test_the_newest_frame_is_kept_with_its_receive_time_and_the_others_are_counted(intake: StateIntake) -> None:
    take(intake, state_of(1), state_of(2), state_of(3))
    assert intake.newest == state_of(3)
    assert intake.received_ns == 1002
    assert (counters(intake).states, counters(intake).skipped) == (3, 2)


def test_a_frame_that_was_taken_is_not_counted_as_skipped_by_the_next(intake: StateIntake) -> None:
    take(intake, state_of(1))
    intake.newest = None
    take(intake, state_of(2))
    assert counters(intake).skipped == 0


@pytest.mark.parametrize(
    "second",
    [
        state_of(7),
        state_of(6),
        state_of(6, t_us=8 * 20_000),
        state_of(8, t_us=7 * 20_000),
        state_of(8, t_us=0),
    ],
    ids=["same frame", "older frame", "older frame of a later time", "same time", "older time"],
)
@pytest.mark.rules("H605")
def test_a_frame_whose_number_or_time_does_not_advance_is_dropped(intake: StateIntake, second: State) -> None:
    take(intake, state_of(7), second)
    assert intake.newest == state_of(7)
    assert counters(intake).not_advancing == 1


def test_gaps_in_the_numbering_count_as_lost_except_before_the_first_frame(intake: StateIntake) -> None:
    take(intake, state_of(50), state_of(51), state_of(55))
    assert counters(intake).lost == 3


@pytest.mark.rules("H201")
def test_numbers_wrap_around(intake: StateIntake) -> None:
    take(intake, state_of(2**32 - 1, t_us=5), state_of(1, t_us=6))
    assert intake.newest is not None
    assert intake.newest.frame == 1
    assert (counters(intake).not_advancing, counters(intake).lost) == (0, 0)
    assert frames_between(1, 2**32 - 1) == 1
    assert frames_between(3, 2**32 - 2) == 4


@pytest.mark.rules("H606")
def test_frames_from_before_a_reset_are_dropped_whether_waiting_or_still_in_transit(intake: StateIntake) -> None:
    take(intake, state_of(4))
    intake.ignore_before(6)
    assert intake.newest is None
    take(intake, state_of(5))
    assert intake.newest is None
    take(intake, state_of(6))
    assert intake.newest == state_of(6)
    assert counters(intake).stale == 2


def test_the_first_frame_after_a_reset_is_kept_if_it_arrives_first(intake: StateIntake) -> None:
    take(intake, state_of(6))
    intake.ignore_before(6)
    assert intake.newest == state_of(6)


def test_a_frame_of_another_length_is_counted_as_unreadable(intake: StateIntake) -> None:
    intake.take(LAYOUT.encode(state_of(1))[:-1], 0)
    assert intake.newest is None
    assert counters(intake).unreadable == 1


def test_the_fault_of_the_latest_frame_is_known(intake: StateIntake) -> None:
    take(intake, state_of(1, fault=2))
    assert intake.fault == 2
    intake.restart()
    assert intake.fault == 0


def test_a_restarted_intake_accepts_numbers_and_times_from_the_beginning(intake: StateIntake) -> None:
    take(intake, state_of(900))
    intake.restart()
    take(intake, state_of(1))
    assert intake.newest == state_of(1)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40))
def test_returned_frames_always_advance_and_every_frame_is_accounted_for(events: list[tuple[int, bool]]) -> None:
    intake = StateIntake(LAYOUT, LinkCounters())
    handed_out: list[int] = []
    for frame, asked in events:
        take(intake, state_of(frame))
        if asked and intake.newest is not None:
            handed_out.append(intake.newest.frame)
            intake.newest = None
    assert handed_out == sorted(set(handed_out))
    count = counters(intake)
    waiting = intake.newest is not None
    assert count.states == len(handed_out) + count.skipped + waiting
    assert count.states + count.not_advancing == len(events)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2**31 - 1))
@pytest.mark.rules("H201")
def test_older_is_defined_across_the_wrap(number: int, ahead: int) -> None:
    later = (number + ahead) % 2**32
    assert is_before(number, later)
    assert not is_before(later, number)
    assert not is_before(number, number)
