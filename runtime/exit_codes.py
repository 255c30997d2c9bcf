"""Exit codes of every Onrig command and process."""

from __future__ import annotations

import enum
from typing import Final


class ExitCode(enum.IntEnum):
    """Exit codes, stable for scripts; see the README."""

    OK = 0
    CONFIGURATION = 2
    """Invalid usage or configuration."""
    PREFLIGHT = 3
    HARDWARE = 4
    """Failure of the hardware or the link."""
    SAFETY = 5
    """Safety trip."""
    INCOMPLETE = 6
    """The run ended, but data are missing (section ``whole`` of ``summary.json``)."""
    INTERNAL = 70
    INTERRUPTED = 130


def run_exit_code(code: int) -> int:
    """Map a process's exit code to the run's exit code; an unknown code means a crash."""
    return code if code in set(ExitCode) else ExitCode.INTERNAL


class Failure(Exception):
    """Failure of a command; the message gives the reason and the remedy in one line."""

    def __init__(self, message: str, code: ExitCode = ExitCode.CONFIGURATION) -> None:
        super().__init__(message)
        self.code: Final = code
        """Exit code of the command."""
