"""Communication between the loop and other processes through the board: requests, transitions, safe outputs."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from onrig.hw.intake import is_before
from onrig.hw.messages import State, shows_safe
from onrig.hw.session import DeviceSession
from onrig.runtime.control.contradictions import Contradiction, SafeOutputCheck
from onrig.runtime.lease import longest_hold_ns
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import report
from onrig.runtime.run_state.states import Transition, describe
from onrig.runtime.shm.board import Board, Word

_POLLS, _STOP = Word.POLLS, Word.STOP
GRACEFUL_STOP: Final = 1
IMMEDIATE_STOP: Final = 2


class Requests:
    """Stop and resume requests, from the board and from signals to this process; a poll takes a few hundred ns."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._signalled_stop = 0
        self._forgotten_resumes = 0
        self._polls = 0

    def signal(self) -> None:
        """Request an immediate stop because this process received a signal, as it does only if its supervisor is
        gone."""
        self._signalled_stop = IMMEDIATE_STOP

    @property
    def stop(self) -> int:
        """Requested stop: 0, GRACEFUL_STOP or IMMEDIATE_STOP.  Each read is also counted on the board, as a
        heartbeat."""
        board = self._board
        self._polls += 1
        board[_POLLS] = self._polls
        return max(board[_STOP], board.stop_outside, self._signalled_stop)

    @property
    def is_stop_requested(self) -> bool:
        """Whether a stop of either kind has been requested."""
        return self.stop > 0

    def forget_resumes(self) -> None:
        """Discard earlier resume requests."""
        self._forgotten_resumes = self._resumes

    @property
    def is_resume_requested(self) -> bool:
        """Whether a resume has been requested since ``forget_resumes``."""
        return self._resumes > self._forgotten_resumes

    @property
    def _resumes(self) -> int:
        return self._board[Word.RESUME] + self._board[Word.RESUME_OUTSIDE]


_MAX_QUEUED_TRANSITIONS: Final = 4096
"""Maximum number of transitions queued while the supervisor does not read; far more than occur in an episode."""


class TransitionReports:
    """Reporter of the state machine's transitions, to the board's state word and to the supervisor."""

    def __init__(self, board: Board, source: str) -> None:
        self._board, self._source = board, source
        self._queue: deque[Transition] = deque(maxlen=_MAX_QUEUED_TRANSITIONS)

    def note(self, transition: Transition) -> None:
        """Write the new state to the board and queue the transition, without I/O."""
        self._board[Word.STATE] = transition.state
        self._queue.append(transition)

    def send(self, limit: int = _MAX_QUEUED_TRANSITIONS) -> None:
        """Send queued transitions, up to ``limit`` and as many as fit into the pipe."""
        while self._queue and limit > 0:
            t = self._queue[0]
            message = f"{t.before.name.lower()} -> {t.state.name.lower()}"
            if not report(self._source, "transition", message, **describe(t)):
                return
            self._queue.popleft()
            limit -= 1


def report_fault(source: str, fault: FaultName, detail: str) -> None:
    """Report a fault with its cause and remedy to the supervisor."""
    entry = FAULTS[fault]
    fields = {"fault": fault.value, "cause": entry.cause, "hint": entry.hint}
    report(source, "fault", f"{entry.cause}{f' ({detail})' if detail else ''}; {entry.hint}", **fields)


_CONFIRMATION_PERIODS: Final = 3
"""Number of periods after an acknowledged DISARM within which a frame must show safe outputs; otherwise the run ends
without confirmation."""
_MIN_CONFIRMATION_S: Final = 0.3
_LEASE_END_TIMEOUT_S: Final = 0.8
"""Time to wait for the lease to end after an unanswered DISARM.  Together with that request's timeout of one second, it
is less than the supervisor's grace period for an immediate stop."""


class Confirmation:
    """Status words that report whether the outputs are safe; written only by the control process.

    An acknowledged DISARM is not a confirmation: only a state frame shows which command is in force.
    """

    def __init__(self, config: RunConfig, session: DeviceSession, board: Board) -> None:
        self._session, self._board = session, board
        self._confirmation_s = _CONFIRMATION_PERIODS * config.wall_period_ns * 1e-9
        self._safe_counts = config.rig.safe_counts
        self._output_check = SafeOutputCheck(config.rig)
        self._armed_frame: int | None = None
        self._safe_frame: int | None = None
        self.contradiction: Contradiction | None = None
        """First contradiction found in a frame that reported safe outputs."""
        board[Word.HOLD_NS] = longest_hold_ns(config)

    def restart(self) -> None:
        """Discard the frames received so far, because frame numbers restart when the device reboots."""
        self.withdraw()
        self._armed_frame = self._safe_frame = None

    def withdraw(self) -> None:
        """Withdraw the confirmation: the device is about to be armed."""
        self._board[Word.SAFE_NS] = 0
        self._board[Word.SAFE_SINCE_NS] = 0
        self._output_check.reset()

    def on_armed(self) -> None:
        """Note that ARM was acknowledged: frames received so far were sampled earlier, so they confirm nothing."""
        self._armed_frame = self._session.last_frame

    def process(self, state: State) -> None:
        """Process a frame received while the device should be disarmed."""
        board = self._board
        if self.contradiction is None:
            self.contradiction = self._output_check.check(state)
        if not shows_safe(state, self._safe_counts):
            board[Word.SAFE_NS] = 0
            board[Word.SAFE_SINCE_NS] = 0
        elif self._armed_frame is None or is_before(self._armed_frame, state.frame):
            received_ns = self._session.received_ns
            if not board[Word.SAFE_SINCE_NS]:
                board[Word.SAFE_SINCE_NS] = received_ns
            board[Word.SAFE_NS] = received_ns
            self._safe_frame = state.frame

    def is_confirmed_after(self, frame: int | None) -> bool:
        """Return whether a frame newer than ``frame`` (None: any frame) has shown the outputs to be safe, and no later
        frame has shown them to be unsafe."""
        if not self._board[Word.SAFE_NS] or self._safe_frame is None:
            return False
        return frame is None or is_before(frame, self._safe_frame)

    def wait(self, frame: int | None, *, disarmed: bool) -> None:
        """Read frames until one newer than ``frame`` shows the outputs to be safe, or until a timeout.

        ``disarmed``: whether the device acknowledged DISARM; otherwise only the end of its lease makes it safe.
        """
        session = self._session
        deadline_ns = time.monotonic_ns() + round(
            max(_MIN_CONFIRMATION_S if disarmed else _LEASE_END_TIMEOUT_S, self._confirmation_s) * 1e9
        )
        state = session.wait_state(0)  # a frame received during the request; it may report an expired lease
        if state is not None:
            self.process(state)
        while not self.is_confirmed_after(frame) and time.monotonic_ns() < deadline_ns:
            state = session.wait_state(deadline_ns)
            if state is not None:
                self.process(state)
