"""Arguments of a verb: what is wrong with them is said in one line, and the help is a word away."""

from __future__ import annotations

import argparse
import re
from typing import Final, NoReturn

from onrig.runtime.config.problem import hint
from onrig.runtime.exit_codes import ExitCode

_CHOICE: Final = re.compile(r"(.*invalid choice: '(?P<given>[^']*)')(?P<rest> \(choose from (?P<known>.*)\))")
_NAME: Final = r"[\w.+-]+"


class VerbParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        """Say it and leave with exit code 2."""
        if choice := _CHOICE.fullmatch(message):
            message = f"{choice[1]}{hint(choice['given'], re.findall(_NAME, choice['known']))}{choice['rest']}"
        self.exit(ExitCode.CONFIGURATION, f"{self.prog}: {message}; see {self.prog} --help\n")
