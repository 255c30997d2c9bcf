from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.states import MOVES, Action, Event, State, StateMachine, Transition, describe, next_move

ARMED_STATES = {State.RESETTING, State.RUNNING, State.FALLBACK, State.FADING}
"""States in which the device accepts commands."""
LINE_LOST_EVENTS = (Event.LINK_LOST, Event.UNPLUGGED)
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
"""The table again, in the words of the README."""


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
def test_leaving_the_armed_states_disarms_unless_the_line_is_gone(state: State, event: Event) -> None:
    move = next_move(state, event)
    if state in ARMED_STATES and move.state not in ARMED_STATES and event not in LINE_LOST_EVENTS:
        assert Action.DISARM in move.actions
    if state not in ARMED_STATES and move.state in ARMED_STATES:
        assert move.actions[0] is Action.ARM
    assert (Action.ARM in move.actions) == (move.state in ARMED_STATES and state not in ARMED_STATES)


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_left_at_once_and_can_lead_to_fault(state: State) -> None:
    assert next_move(state, Event.STOP_NOW).state is State.DISCONNECTED
    assert Action.END in next_move(state, Event.STOP_NOW).actions
    assert next_move(state, Event.TRIP).state is State.FAULT


def test_only_rearming_leads_from_a_fault_back_to_work() -> None:
    leaving_events = {
        event for event in Event if MOVES[State.FAULT].get(event, next_move(State.FAULT, event)).state is State.READY
    }
    assert leaving_events == {Event.REARM}
    assert next_move(State.FAULT, Event.REARM).actions == (Action.CLEAR_FAULT,)


def machine() -> tuple[StateMachine, list[Transition]]:
    transitions: list[Transition] = []
    return StateMachine(transitions.append), transitions


def test_the_first_fault_remains_latched_with_its_cause_until_it_is_rearmed() -> None:
    state_machine, transitions = machine()
    state_machine.apply(Event.CONNECTED)
    state_machine.apply(Event.TRIP, FaultName.DEVICE_ESTOP, "pressed")
    state_machine.apply(Event.TRIP, FaultName.DEVICE_LEASE, "later")
    assert (state_machine.fault, state_machine.detail) == (FaultName.DEVICE_ESTOP, "pressed")
    state_machine.apply(Event.REARM)
    assert (state_machine.state, state_machine.fault) == (State.READY, None)
    assert [(t.event, t.fault) for t in transitions] == [
        (Event.CONNECTED, None),
        (Event.TRIP, FaultName.DEVICE_ESTOP),
        (Event.REARM, None),
    ]


def test_an_impossible_event_is_a_program_fault_that_names_it() -> None:
    state_machine, transitions = machine()
    assert state_machine.apply(Event.AT_START) == (Action.DISARM,)
    assert (state_machine.state, state_machine.fault) == (State.FAULT, FaultName.PROGRAM)
    assert transitions[-1].detail == "'at_start' cannot happen while disconnected"


def test_a_transition_is_reported_with_cause_and_hint() -> None:
    state_machine, transitions = machine()
    state_machine.apply(Event.CONNECTED)
    state_machine.apply(Event.TRIP, FaultName.DEVICE_SENSOR, "angle")
    entry = FAULTS[FaultName.DEVICE_SENSOR]
    assert describe(transitions[-1]) == {
        "before": "ready",
        "event": "trip",
        "state": "fault",
        "fault": "device_sensor",
        "cause": entry.cause,
        "hint": entry.hint,
        "detail": "angle",
    }


def test_a_closed_line_requires_an_operator_whatever_the_run_could_have_rearmed_itself() -> None:
    state_machine, _ = machine()
    state_machine.apply(Event.CONNECTED)
    state_machine.apply(Event.TRIP, FaultName.DEVICE_LEASE)
    state_machine.apply(Event.UNPLUGGED, FaultName.LINK_UNPLUGGED)
    assert (state_machine.state, state_machine.fault) == (State.DISCONNECTED, FaultName.LINK_UNPLUGGED)
    assert state_machine.apply(Event.PLUGGED_IN) == ()
    assert (state_machine.state, state_machine.fault) == (State.FAULT, FaultName.LINK_UNPLUGGED)


def test_a_closed_line_leaves_a_fault_that_requires_an_operator_unchanged() -> None:
    state_machine, _ = machine()
    state_machine.apply(Event.CONNECTED)
    state_machine.apply(Event.TRIP, FaultName.DEVICE_ESTOP)
    state_machine.apply(Event.UNPLUGGED, FaultName.LINK_UNPLUGGED)
    assert state_machine.fault is FaultName.DEVICE_ESTOP


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_the_device_is_only_ever_armed_in_the_armed_states(events: list[Event]) -> None:
    state_machine, _ = machine()
    is_armed = False
    for event in events:
        for action in state_machine.apply(event, FaultName.DEVICE_LEASE if event is Event.TRIP else None):
            is_armed = action is Action.ARM or (is_armed and action is not Action.DISARM)
        if event in LINE_LOST_EVENTS:
            is_armed = False  # through the device's own lease
        assert is_armed == (state_machine.state in ARMED_STATES)
