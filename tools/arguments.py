"""Arguments of a verb: what is wrong with them is said in one line, and the help is a word away.

Imports nothing that takes time: `onrig stop` and `onrig doctor` begin here.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final, NoReturn

from onrig.runtime.exit_codes import ExitCode

_CHOICE: Final = re.compile(r"(.*invalid choice: '(?P<given>[^']*)')(?P<rest> \(choose from (?P<known>.*)\))")
_NAME: Final = r"[\w.+-]+"


class VerbParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        """Say it and leave with exit code 2."""
        if choice := _CHOICE.fullmatch(message):
            from onrig.runtime.config.problem import hint

            message = f"{choice[1]}{hint(choice['given'], re.findall(_NAME, choice['known']))}{choice['rest']}"
        self.exit(ExitCode.CONFIGURATION, f"{self.prog}: {message}; see {self.prog} --help\n")

    def add_overrides(self) -> None:
        """Add ``--set``."""
        self.add_argument(
            "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a value"
        )


def complain(verb: str, message: str, code: int = ExitCode.CONFIGURATION) -> int:
    """Print one line on what is wrong with a command (and stands in no file); returns the exit code."""
    sys.stderr.write(f"onrig {verb}: {message}\n")
    return code
