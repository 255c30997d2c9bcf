"""What people ask of a run, by whatever way: signals, keys, another terminal."""

from __future__ import annotations

import enum
import signal
from types import FrameType
from typing import Final

from onrig.runtime.shm.board import Board, Word

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LIVE_VIEW: Final = "live view"
"""Who asked, where it was the button of the page."""


class Request(enum.Enum):
    """One of them."""

    STOP = "stop"
    STOP_NOW = "stop now"
    RESUME = "resume"


def _may_interrupt(signum: int) -> bool:
    """Whether a signal asks for the end: not a hang-up that was set to be ignored (nohup)."""
    return signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN


class Requests:
    """Passes them on to the loop in the moment they come, by one word of the board, and remembers who asked.

    The first signal (SIGINT, SIGTERM, SIGHUP) fades out, the second stops at once; SIGQUIT stops at once.
    """

    def __init__(self) -> None:
        self._board: Board | None = None
        self._signals = 0
        self.level = 0
        """0, 1 (fade out) or 2 (at once), as asked here."""
        self.impatient = False
        """Somebody asked more than once: waits that guard no actuator are to be cut short."""
        self.by = ""
        """Who asked first."""
        self._previous = {s: signal.signal(s, self._heard) for s in _SIGNALS if _may_interrupt(s)}

    def restore(self) -> None:
        """Give the signals back."""
        for s, handler in self._previous.items():
            signal.signal(s, handler)

    def show(self, board: Board) -> None:
        """From now on the loop can be told."""
        self._board = board
        board[Word.STOP] = self.level

    def _heard(self, signum: int, frame: FrameType | None) -> None:
        self._signals += 1
        now = signum == signal.SIGQUIT or self._signals > 1
        self.take(Request.STOP_NOW if now else Request.STOP, signal.Signals(signum).name)

    def take(self, request: Request, by: str) -> None:
        """Pass one on."""
        board = self._board
        if request is Request.RESUME:
            if board is not None:
                board[Word.RESUME] += 1
            return
        self.impatient = self.level > 0
        self.level = max(self.level, 2 if request is Request.STOP_NOW else 1)
        self.by = self.by or by
        if board is not None:
            board[Word.STOP] = self.level

    @property
    def stop(self) -> int:
        """Level asked for by anybody, another terminal included."""
        outside = self._board.stop_outside if self._board is not None else 0
        if outside and not self.by:
            self.by = LIVE_VIEW if self._board is not None and self._board[Word.STOP_VIEW] else "onrig stop"
        return max(self.level, outside)
