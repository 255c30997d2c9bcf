"""Commands of the laboratory: ``python -m tests.lab.NAME``, run in a checkout."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.python_files import trust_everything
from onrig.tools.terminal import VerbParser, missing_library_text, printable_streams


def program(name: str) -> str:
    """Return the command line of ``name``."""
    return f"python -m tests.lab.{name}"


def parser_of(name: str, description: str | None, quick: str | None = None) -> VerbParser:
    """Return a parser with the options that every benchmark has."""
    p = VerbParser(prog=program(name), description=description)
    p.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    if quick is not None:
        p.add_argument("--quick", action="store_true", help=quick)
    return p


class _Trust(argparse.Action):
    def __call__(self, parser: object, namespace: argparse.Namespace, *_: object) -> None:
        trust_everything()
        namespace.trust = True


def add_overrides(p: VerbParser) -> None:
    """Add ``--set`` and ``--trust``, which takes effect when it is parsed."""
    p.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a value")
    p.add_argument("--trust", action=_Trust, nargs=0, default=False, help="run the Python files that it names")


def complain(name: str, message: str, code: int = ExitCode.CONFIGURATION) -> int:
    """Print a one-line error about a command; returns the exit code."""
    sys.stderr.write(f"{program(name)}: {message}\n")
    return code


def execute(main: Callable[[list[str]], int]) -> None:
    """Run a command with the process's arguments and exit with its code."""
    os.environ["MPLBACKEND"] = "agg"  # plots are written to files
    if missing := missing_library_text():
        sys.stderr.write(f"{missing}\n")
    try:
        with printable_streams():
            sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
