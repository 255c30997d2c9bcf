"""Arguments of a verb: what is wrong with them is said in one line, and the help is a word away."""

from __future__ import annotations

import argparse
from typing import NoReturn

from onrig.runtime.exit_codes import ExitCode


class VerbParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        """Say it and leave with exit code 2."""
        self.exit(ExitCode.CONFIGURATION, f"{self.prog}: {message}; see {self.prog} --help\n")
