"""Verbs and the terminal: their arguments, what is wrong with them in one line, tables, and text made printable.

All that verbs print is made printable here, once.  Only those that draw (progress bars, `onrig watch`) write control
characters on purpose; they take `drawing_stream`, and make what they show of others printable themselves.  Imports
nothing that takes time: `onrig stop` and `onrig doctor` begin here.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn, TextIO, cast

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.printable import printable_lines


class PrintableStream:
    """A text stream that passes on what is printable, and the rest as escapes."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        clean = printable_lines(text)
        try:
            self.beneath.write(clean)
        except UnicodeEncodeError:  # a terminal that knows ASCII alone
            encoding = self.beneath.encoding or "ascii"
            self.beneath.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.beneath, name)


@contextlib.contextmanager
def printable_streams() -> Iterator[None]:
    """Let nothing but printable text through to standard output and standard error."""
    out, err = sys.stdout, sys.stderr
    mine = (cast(TextIO, PrintableStream(out)), cast(TextIO, PrintableStream(err)))
    sys.stdout, sys.stderr = mine
    try:
        yield
    finally:
        if (sys.stdout, sys.stderr) == mine:
            sys.stdout, sys.stderr = out, err


def drawing_stream(stream: TextIO) -> TextIO:
    """The stream beneath, for who moves the cursor on purpose."""
    return cast(TextIO, getattr(stream, "beneath", stream))


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


class Table(NamedTuple):
    """A title, column heads, and rows of text; ``str()`` aligns them."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = [(self.title, *self.heads), *((f"  {row[0]}", *row[1:]) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(max(map(len, lines)))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=False)).rstrip() for line in lines)
