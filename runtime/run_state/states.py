"""States of a run, and the transition table.

`next_move` maps (state, event) to the next state and its actions, which the caller executes. A pair missing from
the table is a program error: the rig is disarmed with the fault ``PROGRAM``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from onrig.runtime.run_state.faults import FAULTS, FaultName, Rearm


class State(enum.IntEnum):
    """State of a run; outside ``RESETTING``, ``RUNNING``, ``FALLBACK`` and ``FADING`` the device is disarmed."""

    DISCONNECTED = 0
    """No connection to the device, which applies its safe output when its lease expires."""
    READY = 1
    """Connected and disarmed: between episodes, or waiting for a policy or the barrier."""
    RESETTING = 2
    """Driving to the start of an episode."""
    RUNNING = 3
    FALLBACK = 4
    """Running, with the shield's fallback controller in place of the policy."""
    FADING = 5
    """Stopping: the policy's command is faded to the safe output."""
    PAUSED = 6
    """Disarmed until an operator resumes the run."""
    FAULT = 7
    """Disarmed with a latched fault until it is re-armed."""


class Event(enum.Enum):
    """Events of a run."""

    CONNECTED = "connected"
    EPISODE = "episode"
    """The next episode should begin."""
    AT_START = "at_start"
    SHIELD_ACTS = "shield_acts"
    """The fallback controller took over."""
    SHIELD_RELEASES = "shield_releases"
    EPISODE_OVER = "episode_over"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    """First Ctrl-C, SIGTERM, key q, ``onrig stop``."""
    STOP_NOW = "stop_now"
    """Second Ctrl-C, SIGQUIT, space bar, ``onrig stop --now``."""
    FADED = "faded"
    TRIP = "trip"
    """A fault occurred; the event carries its name."""
    REARM = "rearm"
    EXPIRED = "expired"
    """A paused or faulted run was not resumed in time."""
    COMPLETED = "completed"
    LINK_LOST = "link_lost"
    UNPLUGGED = "unplugged"
    """The connection has closed, and the run waits for the device to return; the event carries a fault."""
    PLUGGED_IN = "plugged_in"
    """The device has returned; it has been checked and configured, and is disarmed."""


class Action(enum.Enum):
    """Actions that a transition requires of the loop."""

    ARM = "arm"
    RESET = "reset"
    FADE = "fade"
    DISARM = "disarm"
    CLEAR_FAULT = "clear_fault"
    END = "end"


class Move(NamedTuple):
    """Next state after an event, and the actions to execute."""

    state: State
    actions: tuple[Action, ...] = ()
    is_possible: bool = True
    """Whether the table contains the pair of state and event."""


S, E, A = State, Event, Action
_LEAVE_MOVE: Final = Move(S.DISCONNECTED, (A.DISARM, A.END))
_LINK_LOST_MOVE: Final = Move(S.DISCONNECTED, (A.END,))
_TRIP_MOVE: Final = Move(S.FAULT, (A.DISARM,))
_IMPOSSIBLE_MOVE: Final = Move(S.FAULT, (A.DISARM,), is_possible=False)
_UNPLUGGED_MOVE: Final = Move(S.DISCONNECTED)
_MOVES_FROM_ANY_STATE: Final = {
    E.STOP_NOW: _LEAVE_MOVE,
    E.LINK_LOST: _LINK_LOST_MOVE,
    E.UNPLUGGED: _UNPLUGGED_MOVE,
    E.TRIP: _TRIP_MOVE,
}

MOVES: Final[dict[State, dict[Event, Move]]] = {
    S.DISCONNECTED: {
        E.CONNECTED: Move(S.READY),
        E.STOP: _LINK_LOST_MOVE,
        E.STOP_NOW: _LINK_LOST_MOVE,
        E.LINK_LOST: _LINK_LOST_MOVE,
        E.PLUGGED_IN: Move(S.FAULT),
        E.TRIP: Move(S.FAULT),
    },
    S.READY: {
        **_MOVES_FROM_ANY_STATE,
        E.EPISODE: Move(S.RESETTING, (A.ARM, A.RESET)),
        E.PAUSE: Move(S.PAUSED, (A.DISARM,)),
        E.STOP: _LEAVE_MOVE,
        E.COMPLETED: _LEAVE_MOVE,
    },
    S.RESETTING: {
        **_MOVES_FROM_ANY_STATE,
        E.AT_START: Move(S.RUNNING),
        E.SHIELD_ACTS: Move(S.RESETTING),
        E.SHIELD_RELEASES: Move(S.RESETTING),
        E.PAUSE: Move(S.PAUSED, (A.DISARM,)),  # the reset has used up a budget
        E.STOP: _LEAVE_MOVE,
    },
    S.RUNNING: {
        **_MOVES_FROM_ANY_STATE,
        E.SHIELD_ACTS: Move(S.FALLBACK),
        E.EPISODE_OVER: Move(S.READY, (A.DISARM,)),
        E.STOP: Move(S.FADING, (A.FADE,)),
    },
    S.FALLBACK: {
        **_MOVES_FROM_ANY_STATE,
        E.SHIELD_RELEASES: Move(S.RUNNING),
        E.EPISODE_OVER: Move(S.READY, (A.DISARM,)),
        E.STOP: Move(S.FADING, (A.FADE,)),
    },
    S.FADING: {
        **_MOVES_FROM_ANY_STATE,
        E.SHIELD_ACTS: Move(S.FADING),
        E.SHIELD_RELEASES: Move(S.FADING),
        E.STOP: Move(S.FADING),
        E.FADED: _LEAVE_MOVE,
        E.EPISODE_OVER: _LEAVE_MOVE,
    },
    S.PAUSED: {
        **_MOVES_FROM_ANY_STATE,
        E.RESUME: Move(S.READY),
        E.STOP: _LEAVE_MOVE,
        E.EXPIRED: _LEAVE_MOVE,
    },
    S.FAULT: {
        **_MOVES_FROM_ANY_STATE,
        E.TRIP: Move(S.FAULT),  # the first cause is kept
        E.REARM: Move(S.READY, (A.CLEAR_FAULT,)),
        E.STOP: _LEAVE_MOVE,
        E.EXPIRED: _LEAVE_MOVE,
    },
}


def next_move(state: State, event: Event) -> Move:
    """Look up the result of an event in a state; a pair missing from the table disarms the rig."""
    return MOVES[state].get(event, _IMPOSSIBLE_MOVE)


class Transition(NamedTuple):
    """A transition, as one line of ``events.jsonl``."""

    before: State
    event: Event
    state: State
    fault: FaultName | None
    """Fault latched after the transition."""
    detail: str


class StateMachine:
    """State of a run and its latched fault; each transition is passed to ``on_transition``."""

    def __init__(self, on_transition: Callable[[Transition], None]) -> None:
        self._on_transition = on_transition
        self.state = State.DISCONNECTED
        self.fault: FaultName | None = None
        """Latched fault: the first one since the last re-arming."""
        self.detail = ""
        """One-line detail of the latched fault, or of the last transition."""

    def apply(self, event: Event, fault: FaultName | None = None, detail: str = "") -> tuple[Action, ...]:
        """Apply an event; return the required actions, in order.

        ``fault``: cause of a TRIP, LINK_LOST or UNPLUGGED. A fault latched earlier is kept, unless the event is
        UNPLUGGED and the run would re-arm that fault by itself.
        """
        previous = self.state
        move = next_move(previous, event)
        if not move.is_possible:
            fault = FaultName.PROGRAM
            detail = f"'{event.value}' cannot happen while {previous.name.lower()}"
        if event is Event.REARM and move.is_possible:
            self.fault = None
        previous_fault = self.fault
        if event is Event.UNPLUGGED and previous_fault is not None and FAULTS[previous_fault].rearm is Rearm.RUN:
            self.fault = None
        if self.fault is None:
            self.fault, self.detail = fault, detail
        self.state = move.state
        if move.state is not previous or self.fault is not previous_fault:
            self._on_transition(
                Transition(previous, event, move.state, self.fault, self.detail if self.fault else detail)
            )
        return move.actions


def describe(t: Transition) -> dict[str, str | None]:
    """Return the fields of a transition as written to ``events.jsonl``."""
    entry = FAULTS[t.fault] if t.fault is not None else None
    return {
        "before": t.before.name.lower(),
        "event": t.event.value,
        "state": t.state.name.lower(),
        "fault": t.fault.value if t.fault is not None else None,
        "cause": entry.cause if entry is not None else None,
        "hint": entry.hint if entry is not None else None,
        "detail": t.detail,
    }
