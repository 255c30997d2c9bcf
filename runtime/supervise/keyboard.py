"""Single keys of the terminal that a run was started from: an e-stop within reach."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from types import TracebackType
from typing import Final

from onrig.runtime.supervise.requests import Request

KEYS: Final = {" ": Request.STOP_NOW, "q": Request.STOP, "r": Request.RESUME}
HELP: Final = "keys: space stops at once, q fades out and stops, r resumes or re-arms"
_CONTROL_CHARACTERS: Final = 6


class Keyboard:
    """Reads keys as they are pressed; a context that leaves the terminal as it was.

    Ctrl-C and Ctrl-\\ stay signals; Ctrl-Z does nothing, for a suspended supervisor would watch nobody.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[int | list[bytes | int]] = []
        self._gone = False

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self._fd)
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
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def fileno(self) -> int:
        """Descriptor that becomes readable when a key is pressed."""
        return self._fd

    @property
    def listening(self) -> bool:
        """Whether keys can come: the terminal is still there, and this process in its foreground."""
        try:
            return not self._gone and os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    def requests(self) -> list[Request]:
        """What the keys pressed since the last look ask for; empty, too, where the terminal is somebody else's now."""
        return [KEYS[key] for key in self.pressed() if key in KEYS]

    def pressed(self) -> str:
        """Keys pressed since the last look, in lower case; empty, too, where the terminal is somebody else's now."""
        if not self.listening or not select.select((self._fd,), (), (), 0)[0]:
            return ""
        try:
            pressed = os.read(self._fd, 256)
        except OSError:
            pressed = b""
        self._gone = not pressed  # readable, and yet nothing there: the other end has hung up
        return pressed.decode("ascii", "ignore").lower()


def keyboard() -> Keyboard | None:
    """Return the keyboard of this process; None where standard input is no terminal, or a job in its background."""
    try:
        fd = sys.stdin.fileno()
        if os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp():
            return Keyboard(fd)
    except (OSError, ValueError, AttributeError):
        pass
    return None
