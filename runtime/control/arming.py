"""Arming, disarming, re-arming and pauses: the actions of the state table, executed on the device.

The table itself is ``onrig.runtime.run_state.states``; this module uses the device, the board and the clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from math import inf, isinf
from typing import Final

from onrig.hw.messages import Op, fault_text
from onrig.hw.messages import State as Frame
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LineClosed
from onrig.runtime.control.connection import Reconnection
from onrig.runtime.control.contradictions import Contradiction
from onrig.runtime.control.episode import Fade
from onrig.runtime.control.frames import Stopped, latched_frame
from onrig.runtime.control.outside import IMMEDIATE_STOP, Confirmation, Requests, TransitionReports, report_fault
from onrig.runtime.control.pace import Pace
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import (
    FAULTS,
    FaultName,
    Halted,
    LinkFault,
    Rearm,
    device_fault,
    is_harder_to_release,
    is_unfit,
    most_severe,
    reported_fault,
)
from onrig.runtime.run_state.report import report
from onrig.runtime.run_state.states import Action, Event, State, StateMachine
from onrig.runtime.shm.board import Board, Word

_SOURCE: Final = "control"
_MAX_AUTOMATIC_RECOVERIES: Final = 10
"""Number of faults from which a run re-arms automatically; the next such fault ends the run."""
_RESUME_HINT: Final = "continue with the r key, or with `onrig resume` in another terminal"


class Arming:
    """State machine of a run, together with the execution of its actions on the device."""

    def __init__(
        self,
        config: RunConfig,
        session: DeviceSession,
        board: Board,
        requests: Requests,
        pace: Pace,
        reconnection: Reconnection | None = None,
    ) -> None:
        """Without ``reconnection``, the run ends when the connection to the device closes."""
        self._config, self._session, self._board, self._requests = config, session, board, requests
        self._pace, self._reconnection = pace, reconnection
        self._recoveries = 0
        self._is_device_responding = True
        self.confirmation = Confirmation(config, session, board)
        self.reports = TransitionReports(board, _SOURCE)
        self.machine = StateMachine(self.reports.note)
        self.fade = Fade(config.supervision.fade_s, config.rate_hz, tuple(a.safe for a in config.rig.actuators))

    @property
    def is_stop_requested(self) -> bool:
        """Whether a stop of either kind has been requested."""
        return self._requests.is_stop_requested

    @property
    def state(self) -> State:
        """Current state of the run."""
        return self.machine.state

    def handle(self, event: Event, fault: FaultName | None = None, detail: str = "") -> None:
        """Apply an event and execute its actions, except RESET and END, which belong to the loop."""
        for action in self.machine.apply(event, fault, detail):
            if action is Action.ARM:
                self.confirmation.withdraw()
                self._session.arm()
                self.confirmation.on_armed()
            elif action is Action.DISARM:
                self._disarm()
            elif action is Action.CLEAR_FAULT:
                self._session.clear_fault()
            elif action is Action.FADE:
                self.fade.begin()

    def _disarm(self) -> None:
        self._is_device_responding = False
        self._session.disarm()
        self._is_device_responding = True

    def advance_stop(self) -> bool:
        """Carry out a requested stop, either immediately or by fading out; return True once the episode must end."""
        if self._requests.stop >= IMMEDIATE_STOP:
            return True
        if not self.fade.has_started:
            self.handle(Event.STOP)
        if self.fade.is_finished:
            self.handle(Event.FADED)
        return self.fade.is_finished

    # -- beginning and ending ----------------------------------------------------------------------------------------

    def begin_episode(self) -> None:
        """Arm for an episode; if the device refuses because of a latched fault, recover first."""
        while True:
            if self._requests.is_stop_requested:
                raise Stopped
            try:
                self.handle(Event.EPISODE)
            except RequestRefused as refusal:
                latched_state = self._latched_frame()
                if refusal.op is not Op.ARM or latched_state is None:
                    raise
                self.trip(latched_state)
                self.recover()
            else:
                return

    def _latched_frame(self) -> Frame | None:
        return latched_frame(self._session, self._pace.request_frame, self._config.wall_period_ns)

    def end_run(self) -> None:
        """End the run by the shortest path from the current state."""
        if self.state is State.DISCONNECTED:
            return
        is_moving = self.state in (State.RUNNING, State.FALLBACK, State.FADING)
        self.handle(Event.STOP_NOW if is_moving or self._requests.stop >= IMMEDIATE_STOP else Event.STOP)

    def make_safe(self) -> None:
        """Disarm in any state, then wait for a state frame in which the device confirms that its outputs are safe.

        If the link is down, the end of the device's lease has the same effect as disarming.
        """
        previous = self._session.last_frame
        # After an error the lease makes the device safe, and only the first error is reported.
        with contextlib.suppress(Exception):
            if self._is_device_responding:  # otherwise another request would time out as well
                self._disarm()
        with contextlib.suppress(Exception):
            if self._is_device_responding:
                self._pace.request_frame()
            self.confirmation.wait(previous, disarmed=self._is_device_responding)
        self.reports.send()

    def check_confirmation(self) -> None:
        """Latch a contradiction found in a disarmed device's frame and raise Halted, unless a fault is already
        latched."""
        contradiction = self.confirmation.contradiction
        if contradiction is not None and self.machine.fault is None:
            self.fail(*contradiction)
            raise Halted(contradiction.fault)

    # -- faults ------------------------------------------------------------------------------------------------------

    def fault(self, state: Frame, contradiction: Contradiction | None) -> None:
        """Latch the fault that ended an episode: the one the device reports, or a contradiction in its frames if that
        is harder to release."""
        device_fault = reported_fault(state) if is_unfit(state) else None
        if contradiction is None or (
            device_fault is not None and not is_harder_to_release(contradiction.fault, device_fault)
        ):
            self.trip(state)
        else:
            self.fail(*contradiction)

    def trip(self, state: Frame) -> None:
        """Latch the fault that a state frame reports; if it reports none, the fault for a device found disarmed."""
        self._board[Word.FAULT] = state.fault
        self.confirmation.process(state)
        self.fail(reported_fault(state), fault_text(state.fault) if state.fault else "")

    def fail(self, fault: FaultName, detail: str = "", event: Event = Event.TRIP) -> None:
        """Latch a fault and report its cause and remedy."""
        self.handle(event, fault, detail)
        report_fault(_SOURCE, fault, detail)
        self.reports.send()

    @property
    def can_reconnect(self) -> bool:
        """Whether the run would wait for the device if the connection closed now; False once the run has ended."""
        waits_for_device = self._reconnection is not None and self._reconnection.limit_s > 0
        return waits_for_device and self.state is not State.DISCONNECTED and not self._requests.is_stop_requested

    def reconnect(self, error: LineClosed) -> None:
        """Wait for the device to return, then for a person to re-arm.

        Raises ``error`` if the run does not wait for devices, and otherwise whatever ``Reconnection.wait`` or
        ``recover`` raises.
        """
        self._await_reconnection(error)
        self.recover()

    def _await_reconnection(self, error: LineClosed) -> None:
        if self._reconnection is None or not self.can_reconnect:
            raise error
        self.fail(
            FaultName.LINK_UNPLUGGED,
            f"waiting {self._reconnection.limit_s:g} s for {self._reconnection.port}",
            Event.UNPLUGGED,
        )
        restarted = self._reconnection.wait()
        self._is_device_responding = True
        self.confirmation.restart()
        self.handle(Event.PLUGGED_IN)
        self.reports.send()
        description = "restarted, reconnected" if restarted else "reconnected"
        report(_SOURCE, "warning", f"the device is {description} and disarmed", restarted=restarted)

    def recover(self) -> None:
        """Re-arm after a latched fault, automatically if allowed, otherwise on request; raises Halted if the run is not
        re-armed."""
        while True:
            try:
                self._recover()
            except LineClosed as error:
                self._await_reconnection(error)
            else:
                return

    def _recover(self) -> None:
        latched_fault, detail = self.machine.fault, self.machine.detail
        if latched_fault is None:
            return
        fault = self._most_severe_fault(latched_fault)
        entry = FAULTS[fault]
        if entry.rearm is Rearm.RUN:
            self._recoveries += 1
            if self._recoveries > _MAX_AUTOMATIC_RECOVERIES:
                raise Halted(fault, f"too many device faults in this run: {detail or entry.cause}")
            try:
                self.handle(Event.REARM)
            except RequestRefused as refusal:  # the e-stop was pressed in between, for example
                refusing_frame = self._latched_frame()
                if refusal.op is not Op.CLEAR_FAULT or refusing_frame is None:
                    raise
                self.trip(refusing_frame)
                self._recover()
            return
        limit = time.monotonic() + self._config.supervision.resume_timeout_s
        while True:
            self._requests.forget_resumes()
            report(_SOURCE, "warning", f"stopped: {entry.cause}; {entry.hint}: {_RESUME_HINT}")
            while not self._requests.is_resume_requested:
                if time.monotonic() >= limit:
                    self.handle(Event.EXPIRED)
                    raise Halted(fault)
                self._poll()
            self._most_severe_fault(fault)
            try:
                self.handle(Event.REARM)
                return
            except RequestRefused as refusal:
                code = self._session.fault  # may differ from the fault that was latched first
                fault = device_fault(code) if code else fault
                self.handle(Event.TRIP, fault, str(refusal))
                entry = FAULTS[self._most_severe_fault(fault)]

    def _most_severe_fault(self, latched_fault: FaultName) -> FaultName:
        """Return the latched fault, or a more severe one reported since then; raises Halted if it may not be
        cleared."""
        code = self._session.fault
        fault = most_severe(latched_fault, code)
        if fault is not latched_fault:
            report_fault(_SOURCE, fault, fault_text(code))
        if FAULTS[fault].rearm is Rearm.NEVER:
            raise Halted(fault)
        return fault

    def pause(self, cause: str, hint: str, wait_s: float = inf) -> float:
        """Pause with the device disarmed for ``wait_s`` of device time or, if that is infinite, until a person resumes.

        To be called between episodes only.  Returns the length of the pause in device time (s).  Raises Halted if an
        unbounded pause exceeds ``resume_timeout_s``.  In lockstep a bounded pause takes no time, because time is
        virtual.
        """
        if wait_s <= 0:
            return 0.0
        start_s = time.monotonic()
        deadline_s = start_s + self._pace.wall_s(wait_s)
        duration = "until resumed" if isinf(wait_s) else f"for {wait_s:.0f} s"
        self._pause(
            lambda: time.monotonic() >= deadline_s, f"paused {duration}", "", cause, hint, is_bounded=not isinf(wait_s)
        )
        return self._pace.paused_s(wait_s, time.monotonic() - start_s)

    def pause_until(self, condition: Callable[[], bool], cause: str, hint: str) -> None:
        """Pause with the device disarmed until ``condition`` holds or a person resumes.

        To be called between episodes only.  Raises Halted if neither happens within ``resume_timeout_s``.
        """
        self._pause(condition, "paused", "or ", cause, hint, is_bounded=False)

    def _pause(
        self, has_ended: Callable[[], bool], heading: str, alternative: str, cause: str, hint: str, *, is_bounded: bool
    ) -> None:
        try:
            self.handle(Event.PAUSE, detail=f"{cause}; {hint}")
            self.reports.send()
            self._requests.forget_resumes()
            continuation = "the run continues by itself" if is_bounded else f"{alternative}{_RESUME_HINT}"
            report(_SOURCE, "warning", f"{heading}: {cause}; {hint}; {continuation}", cause=cause, hint=hint)
            deadline_s = inf if is_bounded else time.monotonic() + self._config.supervision.resume_timeout_s
            while not (has_ended() or (self._requests.is_resume_requested and not is_bounded)):
                if time.monotonic() >= deadline_s:
                    self.handle(Event.EXPIRED)
                    raise Halted(FaultName.NOT_RESUMED, f"paused and not resumed: {cause}; {hint}")
                self._poll()
            self.handle(Event.RESUME)
        except LineClosed as error:
            self.reconnect(error)  # re-arming by a person also ends an unbounded pause

    # -- waiting -----------------------------------------------------------------------------------------------------

    @property
    def _progress(self) -> tuple[int, ...]:
        return tuple(self._board[word] for word in (Word.RESTARTS, Word.LEARNER_DONE, Word.FEEDBACK_BATCHES))

    def wait_for(
        self, condition: Callable[[], bool], description: str, fault: FaultName, limit_s: float | None = None
    ) -> None:
        """Wait with the device disarmed until ``condition`` holds; raises Halted with ``fault`` after ``limit_s``.

        ``limit_s``: ``barrier_timeout_s`` by default.  The timeout restarts whenever another process of the run has
        been restarted, the learner has finished an episode that it repeats after a restart, or the learner has learned
        from more experiences (the first updates after ``learning_starts`` may take minutes).
        """
        self.reports.send()
        limit_s = self._config.barrier_timeout_s if limit_s is None else limit_s
        progress = self._progress
        start_s = time.monotonic()
        limit = start_s + limit_s
        while not condition():
            if progress != self._progress:
                progress = self._progress
                limit = time.monotonic() + limit_s
            if time.monotonic() > limit:
                detail = f"waited {limit_s:g} s for {description}"
                self.handle(Event.TRIP, fault, detail)
                raise Halted(fault, detail)
            try:
                self._poll(time.monotonic() - start_s)
            except LineClosed as error:
                self.reconnect(error)
                limit = time.monotonic() + limit_s

    def _poll(self, wait_s: float = 0.0) -> None:
        """Wait briefly; in lockstep the interval grows with ``wait_s``, the time waited so far.

        Raises Stopped, LinkFault if the device has rebooted, or Halted for a contradiction in a received frame.
        """
        if self._requests.is_stop_requested:
            raise Stopped
        if self._session.has_rebooted:
            raise LinkFault(FaultName.DEVICE_REBOOTED, "")
        state = self._pace.poll(wait_s)
        if state is not None:
            self.confirmation.process(state)
            self.check_confirmation()
