"""Board: words of shared state between the processes of a run.

Every word has a single writer and is written in one aligned 8-byte store.  A word for external requests may have
several writers, but simultaneous requests write the same value.
"""

from __future__ import annotations

import enum
from typing import Final

from onrig.runtime.shm.latest import LOOP_STATE_BYTES
from onrig.runtime.shm.segment import Segment

BOARD_SCHEMA: Final = "board-6"


class Word(enum.IntEnum):
    """Words of the board, by writer."""

    STOP = 0
    """supervisor: 1 asks the loop to fade the command out and end, 2 to disarm at once."""
    BARRIER = 1
    """replay: one more than the last training episode that is fully processed (lockstep)."""
    REPLAY_PID = 2
    """replay: pid of the process that drains the ring."""
    STATE = 3
    """control: a ``onrig.runtime.run_state.states.State``."""
    EPISODE = 4
    """control: training episode in progress."""
    TICK = 5
    """control: ticks so far."""
    MISSED = 6
    """control: missed ticks so far."""
    POLICY = 7
    """control: id of the acting policy."""
    FAULT = 8
    """control: the device's latest latched fault, or 0."""
    CLOSED = 9
    """control: training episodes closed (their last record is in the ring)."""
    ENDED = 10
    """control: 1 when the last record of the run is in the ring."""
    REALTIME = 11
    """control: 1 when the loop runs under SCHED_FIFO."""
    SAFE_NS = 12
    """control: time of receipt (monotonic) of the newest state frame that shows the device disarmed with its safe
    output in force; cleared before the device is armed."""
    RESUME = 13
    """supervisor: number of requests at the keyboard to resume a paused or faulted run."""
    STOP_OUTSIDE = 14
    """``onrig stop`` in another terminal: 1 once requested; the loop obeys it even if the supervisor hangs."""
    RESUME_OUTSIDE = 15
    """``onrig resume`` in another terminal: counted like RESUME."""
    POLLS = 16
    """control: number of polls for requests; increases in every state unless the loop is stuck."""
    SAFE_SINCE_NS = 17
    """control: time of receipt of the first frame, of the kind described for SAFE_NS, since the device was last armed;
    0 whenever SAFE_NS is 0."""
    ANSWERED_NS = 18
    """control: time of receipt of the frame that the last command answers, written before that command is sent; 0
    before the first command."""
    HOLD_NS = 19
    """control: maximum time after ANSWERED_NS for which the lease keeps that command in force; 0 if no lease runs
    (lockstep)."""
    ROLLED_BACK = 20
    """control: one more than the id of the policy that was rolled back last; 0 before the first."""
    LEARNER_NS = 21
    """replay: monotonic time of the last message from the pushing learner; 0 before the first."""
    STOP_VIEW = 22
    """live view: 1 once a stop was requested there; the request itself is written to STOP_OUTSIDE."""
    STOP_NOW_OUTSIDE = 23
    """``onrig stop --now``: 1 once requested.  A separate word, so that a simultaneous gentle stop cannot undo it."""

    PROMISE_WITHDRAWN = 24
    """replay: 1 once the rig's own data have contradicted the shield's promise."""
    PLANT_DEPARTED = 25
    """``onrig run --sharpen`` or ``onrig identify RUN --sharpen``: 1 once the plant contradicts its identification."""

    SESSION_ID = 30
    """supervisor: a random number that identifies this session of the run, and its ring."""
    RESTARTS = 31
    """supervisor: number of process restarts; timeouts for a process start again when it changes."""
    REPLAY_HEARTBEATS = 32
    """replay: counter that increases as long as the process makes progress."""
    FIRST_UNREPORTED = 33
    """replay: number of the first record of the ring not yet reported."""
    ROWS = 34
    """control: training and evaluation episodes closed in this session, each of which must have a row."""
    ROWS_BEFORE = 35
    """replay: rows of ``episodes.csv`` at the start of this session of the run."""
    FIRST_UNLOGGED = 36
    """replay: number of the first record that is not in the log on the disk."""
    LEARNER_DONE = 37
    """replay: one more than the last training episode that the learner has concluded (lockstep); decreases when
    episodes are repeated."""
    FEEDBACK_BATCHES = 38
    """replay: number of batches of feedback applied in this session; timeouts for the learner start again when it
    changes."""


BOARD_BYTES: Final = 8 * 64 + LOOP_STATE_BYTES
"""Size of the words, followed by the loop's state (``onrig.runtime.shm.latest``)."""


_NOW_OUTSIDE, _OUTSIDE = Word.STOP_NOW_OUTSIDE, Word.STOP_OUTSIDE


class Board:
    """View of the words; ``board[Word.X]`` reads, ``board[Word.X] = n`` writes."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.body.cast("Q")

    def __getitem__(self, word: Word) -> int:
        return self._words[word]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[word] = value

    @property
    def stop_outside(self) -> int:
        """Stop requested from another terminal, with the values of STOP."""
        return 2 if self._words[_NOW_OUTSIDE] else self._words[_OUTSIDE]

    def close(self) -> None:
        """Release the view, so that the segment can be unmapped."""
        self._words.release()
