"""Commands of the laboratory: ``python -m tests.lab.NAME``, run in a checkout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.terminal import missing_library, printable_streams


def program(name: str) -> str:
    """Return what a user types for the command ``name``."""
    return f"python -m tests.lab.{name}"


def complain(name: str, message: str, code: int = ExitCode.CONFIGURATION) -> int:
    """Print a one-line error about a command; returns the exit code."""
    sys.stderr.write(f"{program(name)}: {message}\n")
    return code


def execute(main: Callable[[list[str]], int]) -> None:
    """Run a command with the process's arguments and exit with its code."""
    os.environ["MPLBACKEND"] = "agg"  # pictures go to files
    if missing := missing_library():
        sys.stderr.write(f"{missing}\n")
    try:
        with printable_streams():
            sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
