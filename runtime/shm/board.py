"""The board: one word each for the few facts the processes of a run tell each other without messages.

Every word has a single writer and is written in one aligned 8-byte store.
"""

from __future__ import annotations

import enum
from typing import Final

from runtime.shm.segment import Segment

BOARD_SCHEMA: Final = "board-1"


class Word(enum.IntEnum):
    """Words of the board, by who writes them."""

    STOP = 0
    """supervisor: 1 asks the loop to end with the actuators safe."""
    BARRIER = 1
    """replay: one more than the training episode after which everything is done (lockstep)."""
    REPLAY_PID = 2
    """replay: pid of the process that drains the ring."""
    STATE = 3
    """control: a ``ControlState``."""
    EPISODE = 4
    """control: training episode in progress."""
    TICK = 5
    """control: ticks so far."""
    MISSED = 6
    """control: missed ticks so far."""
    POLICY = 7
    """control: id of the policy that acts."""
    FAULT = 8
    """control: latched device fault, or 0."""
    CLOSED = 9
    """control: training episodes closed (their last record is in the ring)."""
    ENDED = 10
    """control: 1 when the last record of the run is in the ring."""
    REALTIME = 11
    """control: 1 when the loop runs under SCHED_FIFO."""


class ControlState(enum.IntEnum):
    """What the control process is doing."""

    STARTING = 0
    WAITING = 1
    RESETTING = 2
    RUNNING = 3
    ENDED = 4


BOARD_BYTES: Final = 8 * 64


class Board:
    """A view of the words; ``board[Word.X]`` reads, ``board[Word.X] = n`` writes."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.body.cast("Q")

    def __getitem__(self, word: Word) -> int:
        return self._words[word]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[word] = value

    def close(self) -> None:
        """Release the view, so that the segment can be unmapped."""
        self._words.release()
