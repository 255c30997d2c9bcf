"""Operator requests to a run: by signal, by key, or from a different terminal."""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import sys
from types import FrameType, TracebackType
from typing import Final, Protocol

from onrig.runtime.shm.board import Board, Word

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
LIVE_VIEW: Final = "live view"
"""Source of a request from the button of the live view."""
TRAINER: Final = "end of the trainer"
"""Source of the stop request made when the trainer ends."""


class Request(enum.Enum):
    """Kind of request."""

    STOP = "stop"
    STOP_NOW = "stop now"
    RESUME = "resume"


def _may_interrupt(signum: int) -> bool:
    """Return whether a signal requests a stop: any except a hang-up that is ignored (nohup)."""
    return signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN


class Requests:
    """Requests and their source; each is forwarded to the loop immediately, through a word of the board.

    The first signal (SIGINT, SIGTERM, SIGHUP) requests a fade-out and the second an immediate stop; SIGQUIT always
    requests an immediate stop.
    """

    def __init__(self, *, signals: bool = True) -> None:
        """``signals``: whether to treat signals to this process as requests, which is possible only in its main
        thread."""
        self._board: Board | None = None
        self._signals = 0
        self.level = 0
        """Stop level requested through this object: 0, 1 (fade out) or 2 (immediate)."""
        self.has_repeated_request = False
        """Whether a stop was requested more than once, which cuts short all waits that do not protect actuators."""
        self.source = ""
        """Source of the first request."""
        handled_signals = [s for s in _SIGNALS if signals and _may_interrupt(s)]
        self._previous = {s: signal.signal(s, self._on_signal) for s in handled_signals}

    def restore(self) -> None:
        """Restore the signal handlers."""
        for s, handler in self._previous.items():
            signal.signal(s, handler)

    def attach_board(self, board: Board) -> None:
        """Forward requests to the loop through this board from now on."""
        self._board = board
        self.forward(0)

    def forward(self, min_level: int) -> None:
        """Forward the requested level to the loop, or ``min_level`` if that is higher."""
        if self._board is not None:
            self._board[Word.STOP] = max(min_level, self.level)
            if self._board[Word.STOP] < self.level:  # a signal raised the level between read and write
                self._board[Word.STOP] = self.level

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals += 1
        is_immediate = signum == signal.SIGQUIT or self._signals > 1
        self.add(Request.STOP_NOW if is_immediate else Request.STOP, signal.Signals(signum).name)

    def add(self, request: Request, source: str) -> None:
        """Forward one request."""
        board = self._board
        if request is Request.RESUME:
            if board is not None:
                board[Word.RESUME] += 1
            return
        self.has_repeated_request = self.level > 0
        self.level = max(self.level, 2 if request is Request.STOP_NOW else 1)
        self.source = self.source or source
        self.forward(0)

    @property
    def stop_level(self) -> int:
        """Highest stop level requested, including requests from other terminals."""
        external_level = self._board.stop_outside if self._board is not None else 0
        if external_level and not self.source:
            self.source = LIVE_VIEW if self._board is not None and self._board[Word.STOP_VIEW] else "onrig stop"
        return max(self.level, external_level)

    @property
    def reason(self) -> str:
        """Reason the run was stopped."""
        reasons = {
            LIVE_VIEW: "stopped from the live view",
            TRAINER: "the program that chose the actions has ended",
            "onrig stop": "stopped by `onrig stop`",
        }
        return reasons.get(self.source, "interrupted")


class Operator(Protocol):
    """Source of requests other than signals, such as the keyboard."""

    name: str
    """Name of the source in the events of a run."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is a request."""

    @property
    def is_listening(self) -> bool:
        """Whether the source can currently make requests."""

    def requests(self) -> list[Request]:
        """Return the requests since the last call."""


KEYS: Final = {" ": Request.STOP_NOW, "q": Request.STOP, "r": Request.RESUME}
HELP: Final = "keys: space stops at once, q fades out and stops, r resumes or re-arms"
_CONTROL_CHARACTERS: Final = 6


class Keyboard:
    """Keyboard read key by key; a context manager that restores the terminal.

    Ctrl-C and Ctrl-\\ remain signals; Ctrl-Z is disabled, because a suspended supervisor would not watch its run.
    """

    name: str = "keyboard"

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._initial_attributes: list[int | list[bytes | int]] = []
        self._is_at_eof = False

    def __enter__(self) -> Keyboard:
        import termios  # imported only here and below, because a run without a keyboard does not need it

        self._initial_attributes = termios.tcgetattr(self._fd)
        attributes = termios.tcgetattr(self._fd)
        attributes[3] &= ~(termios.ICANON | termios.ECHO)
        characters = attributes[_CONTROL_CHARACTERS]
        characters[termios.VMIN], characters[termios.VTIME] = 0, 0
        characters[termios.VSUSP] = b"\0"
        termios.tcsetattr(self._fd, termios.TCSADRAIN, attributes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import termios

        with contextlib.suppress(termios.error):  # the terminal has closed
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._initial_attributes)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a key is pressed."""
        return self._fd

    @property
    def is_listening(self) -> bool:
        """Whether keys can be read: the terminal exists, and this process is in its foreground."""
        try:
            return not self._is_at_eof and os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    def requests(self) -> list[Request]:
        """Return the requests made by key since the last call; empty if this process is in the background."""
        return [KEYS[key] for key in self.read_keys() if key in KEYS]

    def read_keys(self) -> str:
        """Return the keys pressed since the last call, in lower case; empty if this process is in the background."""
        if not self.is_listening or not select.select((self._fd,), (), (), 0)[0]:
            return ""
        try:
            data = os.read(self._fd, 256)
        except OSError:
            data = b""
        self._is_at_eof = not data  # readable but empty: the other end has closed
        return data.decode("ascii", "ignore").lower()


def open_keyboard() -> Keyboard | None:
    """Return the keyboard of this process; None if standard input is not a terminal or this is a background job."""
    try:
        fd = sys.stdin.fileno()
        if os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp():
            return Keyboard(fd)
    except (OSError, ValueError, AttributeError):
        pass
    return None
