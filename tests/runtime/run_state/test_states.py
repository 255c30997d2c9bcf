from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.states import MOVES, Action, Event, State, StateMachine, Transition, describe, next_move

ARMED = {State.RESETTING, State.RUNNING, State.FALLBACK, State.FADING}
"""States in which the device takes commands."""
LINE_GONE = (Event.LINK_LOST, Event.UNPLUGGED)
PAIRS = list(itertools.product(State, Event))

EXPECTED = {
    "disconnected": "connected:ready stop:disconnected stop_now:disconnected link_lost:disconnected plugged_in:fault "
    "trip:fault",
    "ready": "episode:resetting pause:paused stop:disconnected stop_now:disconnected completed:disconnected "
    "trip:fault link_lost:disconnected unplugged:disconnected",
    "resetting": "at_start:running shield_acts:resetting shield_releases:resetting pause:paused stop:disconnected "
    "stop_now:disconnected trip:fault link_lost:disconnected unplugged:disconnected",
    "running": "shield_acts:fallback episode_over:ready stop:fading stop_now:disconnected trip:fault "
    "link_lost:disconnected unplugged:disconnected",
    "fallback": "shield_releases:running episode_over:ready stop:fading stop_now:disconnected trip:fault "
    "link_lost:disconnected unplugged:disconnected",
    "fading": "shield_acts:fading shield_releases:fading stop:fading faded:disconnected episode_over:disconnected "
    "stop_now:disconnected trip:fault link_lost:disconnected unplugged:disconnected",
    "paused": "resume:ready stop:disconnected stop_now:disconnected expired:disconnected trip:fault "
    "link_lost:disconnected unplugged:disconnected",
    "fault": "trip:fault rearm:ready stop:disconnected stop_now:disconnected expired:disconnected "
    "link_lost:disconnected unplugged:disconnected",
}
"""The table once more, in the words of the README."""


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda x: x.name.lower())
def test_each_event_leads_where_the_readme_says_and_an_impossible_one_to_a_disarmed_fault(
    state: State, event: Event
) -> None:
    words = dict(pair.split(":") for pair in EXPECTED[state.name.lower()].split())
    move = next_move(state, event)
    if event.value in words:
        assert move.is_possible
        assert move.state is State[words[event.value].upper()]
    else:
        assert move == (State.FAULT, (Action.DISARM,), False)


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda x: x.name.lower())
def test_whoever_leaves_the_armed_states_disarms_unless_the_line_is_gone(state: State, event: Event) -> None:
    move = next_move(state, event)
    if state in ARMED and move.state not in ARMED and event not in LINE_GONE:
        assert Action.DISARM in move.actions
    if state not in ARMED and move.state in ARMED:
        assert move.actions[0] is Action.ARM
    assert (Action.ARM in move.actions) == (move.state in ARMED and state not in ARMED)


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_way_out_at_once_and_a_way_to_fault(state: State) -> None:
    assert next_move(state, Event.STOP_NOW).state is State.DISCONNECTED
    assert Action.END in next_move(state, Event.STOP_NOW).actions
    assert next_move(state, Event.TRIP).state is State.FAULT


def test_nothing_but_rearming_leads_from_a_fault_back_to_work() -> None:
    back = {
        event for event in Event if MOVES[State.FAULT].get(event, next_move(State.FAULT, event)).state is State.READY
    }
    assert back == {Event.REARM}
    assert next_move(State.FAULT, Event.REARM).actions == (Action.CLEAR_FAULT,)


def machine() -> tuple[StateMachine, list[Transition]]:
    told: list[Transition] = []
    return StateMachine(told.append), told


def test_the_first_fault_stays_latched_with_its_cause_until_it_is_rearmed() -> None:
    m, told = machine()
    m.apply(Event.CONNECTED)
    m.apply(Event.TRIP, FaultName.DEVICE_ESTOP, "pressed")
    m.apply(Event.TRIP, FaultName.DEVICE_LEASE, "later")
    assert (m.fault, m.detail) == (FaultName.DEVICE_ESTOP, "pressed")
    m.apply(Event.REARM)
    assert (m.state, m.fault) == (State.READY, None)
    assert [(t.event, t.fault) for t in told] == [
        (Event.CONNECTED, None),
        (Event.TRIP, FaultName.DEVICE_ESTOP),
        (Event.REARM, None),
    ]


def test_an_impossible_event_is_the_programs_fault_and_says_which() -> None:
    m, told = machine()
    assert m.apply(Event.AT_START) == (Action.DISARM,)
    assert (m.state, m.fault) == (State.FAULT, FaultName.PROGRAM)
    assert told[-1].detail == "'at_start' cannot happen while disconnected"


def test_a_transition_is_told_with_cause_and_hint() -> None:
    m, told = machine()
    m.apply(Event.CONNECTED)
    m.apply(Event.TRIP, FaultName.DEVICE_SENSOR, "angle")
    entry = FAULTS[FaultName.DEVICE_SENSOR]
    assert describe(told[-1]) == {
        "before": "ready",
        "event": "trip",
        "state": "fault",
        "fault": "device_sensor",
        "cause": entry.cause,
        "hint": entry.hint,
        "detail": "angle",
    }


def test_a_closed_line_needs_a_person_whatever_the_run_could_have_re_armed_by_itself() -> None:
    m, _ = machine()
    m.apply(Event.CONNECTED)
    m.apply(Event.TRIP, FaultName.DEVICE_LEASE)
    m.apply(Event.UNPLUGGED, FaultName.LINK_UNPLUGGED)
    assert (m.state, m.fault) == (State.DISCONNECTED, FaultName.LINK_UNPLUGGED)
    assert m.apply(Event.PLUGGED_IN) == ()
    assert (m.state, m.fault) == (State.FAULT, FaultName.LINK_UNPLUGGED)


def test_a_closed_line_leaves_a_fault_that_needs_a_person_as_it_is() -> None:
    m, _ = machine()
    m.apply(Event.CONNECTED)
    m.apply(Event.TRIP, FaultName.DEVICE_ESTOP)
    m.apply(Event.UNPLUGGED, FaultName.LINK_UNPLUGGED)
    assert m.fault is FaultName.DEVICE_ESTOP


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_whatever_happens_the_device_is_armed_in_the_armed_states_only(events: list[Event]) -> None:
    m, _ = machine()
    armed = False
    for event in events:
        for action in m.apply(event, FaultName.DEVICE_LEASE if event is Event.TRIP else None):
            armed = action is Action.ARM or (armed and action is not Action.DISARM)
        if event in LINE_GONE:
            armed = False  # by the device's own lease
        assert armed == (m.state in ARMED)
