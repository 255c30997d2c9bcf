"""Terminal input and output of the verbs: argument parser, one-line errors, tables, printable text.

All output of the verbs is made printable here.  Only those that draw (progress bars, `onrig watch`) write control
characters; they use `drawing_stream` and escape foreign text themselves.  Imports nothing slow, since `onrig stop` and
`onrig doctor` start here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, TextIO, TypeVar, cast

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import replace_file
from onrig.runtime.printable import printable_lines

T = TypeVar("T")

PICTURES: Final = (".png", ".svg", ".pdf")


class StreamLost(Exception):
    """Standard output takes no more; the message says why.  No OSError, which callers would blame on their files."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.reader_left = isinstance(error, BrokenPipeError)
        """Whether it was a pipe whose reader has what it wanted, such as ``head``."""


class PrintableStream:
    """Text stream that escapes unprintable characters; raises StreamLost where the one beneath raises OSError."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        """Write text; returns its length."""
        clean = printable_lines(text)
        try:
            try:
                self.beneath.write(clean)
            except UnicodeEncodeError:  # an ASCII-only terminal
                encoding = self.beneath.encoding or "ascii"
                self.beneath.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            raise StreamLost(error) from None
        return len(text)

    def flush(self) -> None:
        """Flush."""
        try:
            self.beneath.flush()
        except OSError as error:
            raise StreamLost(error) from None

    def writelines(self, lines: list[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.beneath, name)


@contextlib.contextmanager
def printable_streams() -> Iterator[None]:
    """Context in which standard output and standard error escape unprintable characters."""
    out, err = sys.stdout, sys.stderr
    mine = (cast(TextIO, PrintableStream(out)), cast(TextIO, PrintableStream(err)))
    sys.stdout, sys.stderr = mine
    try:
        yield
    finally:
        if (sys.stdout, sys.stderr) == mine:
            sys.stdout, sys.stderr = out, err


def drawing_stream(stream: TextIO) -> TextIO:
    """Underlying stream, for callers that move the cursor."""
    return cast(TextIO, getattr(stream, "beneath", stream))


_CHOICE: Final = re.compile(r"(.*invalid choice: '(?P<given>[^']*)')(?P<rest> \(choose from (?P<known>.*)\))")
_UNKNOWN: Final = "unrecognized arguments: "
_NAME: Final = r"[\w.+-]+"
_REWORDED: Final = (
    (re.compile(r"the following arguments are required: (.*)"), r"required: \1"),
    (re.compile(r"argument (\S+): expected one argument"), r"\1 needs a value"),
    (re.compile(r"argument (\S+): ignored explicit argument (.*)"), r"\1 takes no value, got \2"),
    (re.compile(r"argument (\S+): (.*)"), r"\1: \2"),
)
"""Messages of argparse in the form of all other messages."""
_SETTINGS: Final = ("rig", "task", "rate_hz", "episodes", "seed", "policy", "recipe", "identified", "evaluate_every")
"""Settings of a run that new users take for options; a test compares them with the configuration."""


class VerbParser(argparse.ArgumentParser):
    """Argument parser with one-line errors, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        if choice := _CHOICE.fullmatch(message):
            from onrig.runtime.config.problem import hint

            message = f"{choice[1]}{hint(choice['given'], re.findall(_NAME, choice['known']))}{choice['rest']}"
        if message.startswith(_UNKNOWN):
            message = self._unknown(message.removeprefix(_UNKNOWN))
        for pattern, words in _REWORDED:
            message = pattern.sub(words, message)
        self.exit(ExitCode.CONFIGURATION, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _unknown(self, words: str) -> str:
        """Message for arguments that are no option, or one too many."""
        from onrig.runtime.config.problem import hint

        first, *rest = sorted(words.split(" "), key=lambda word: not word.startswith("-"))
        option, _, value = first.partition("=")
        setting = option.strip("-").replace("-", "_")
        if not option.startswith("-"):
            as_setting = f"; a setting is given as --set {first}" if value and self._takes_settings else ""
            return f"too many arguments: {words}{as_setting}"
        if self._takes_settings and setting in _SETTINGS:
            return f"unknown option {option}; a setting is given as --set {setting}={value or (rest or ['VALUE'])[0]}"
        return f"unknown option {option}{hint(option, self._option_string_actions)}"

    @property
    def _takes_settings(self) -> bool:
        return "--set" in self._option_string_actions


def picture_problem(option: str, path: Path | None) -> str | None:
    """Why a picture cannot be drawn into this file: its suffix; None if it can."""
    if path is None or path.suffix.lower() in PICTURES:
        return None
    return f"--{option}: expected a file that ends in {', '.join(PICTURES)}, got '{path}'"


def drawn(picture: str, draw: Callable[[], T], say: Callable[[str], object]) -> T | None:
    """Draw what illustrates a result; a failure of whatever kind costs the picture, and one line to ``say``.

    None, and nothing said, without matplotlib.
    """
    try:
        return draw()
    except ImportError:
        return None
    except Exception as error:  # matplotlib's back ends, fonts and extensions have no common base
        say(f"{picture} was not drawn: {reason(error)}")
        return None


def reason(error: Exception) -> str:
    """What an error says, in one line."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return said.splitlines()[0]


def unwritable(option: str, path: Path | None) -> str | None:
    """Why an output file cannot be written, before hours are spent on what goes into it; None if it can."""
    if path is None:
        return None
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"--{option}: there is no folder '{path.parent}'"
    if path.is_dir():
        return f"--{option}: '{path}' is a folder"
    # A link is followed, and what is no file (a pipe, a terminal) is written to as it is.
    whole = not path.exists() or path.is_file()
    able = os.access(path.resolve().parent if whole else path, os.W_OK)
    return None if able else f"--{option}: '{path}' cannot be written: Permission denied"


def unwritable_folder(option: str, path: Path | None) -> str | None:
    """Why an output folder cannot be made or written to, before hours are spent on its content; None if it can."""
    if path is None:
        return None
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder))
    if not there.is_dir():
        return f"--{option}: '{there}' is not a folder"
    able = os.access(there, os.W_OK | os.X_OK)
    return None if able else f"--{option}: '{path}' cannot be written: Permission denied"


def write_json(verb: str, text: str, file: str) -> int:
    """Write a document of JSON to a file (``-``: standard output); returns the exit code."""
    text += "\n"
    try:
        sys.stdout.write(text) if file == "-" else replace_file(Path(file), text.encode())
    except OSError as error:
        return complain(verb, f"--json: '{file}' cannot be written: {error.strerror or error}")
    return ExitCode.OK


def complain(verb: str, message: str, code: int = ExitCode.CONFIGURATION) -> int:
    """Print a one-line error about a command; returns the exit code."""
    sys.stderr.write(f"onrig {verb}: {message}\n")
    return code


def missing_library() -> str | None:
    """Return why there is no C library and what that costs; None where there is one."""
    from onrig.hw.native import COST, state

    found = state()
    if found.library is not None:
        return None
    return f"no C library ({found.reason}): {COST}; `onrig doctor` says how to get it"


def tell_missing_library(verb: str) -> None:
    """Print a line where the C library is missing."""
    if missing := missing_library():
        complain(verb, missing)


def refer_to_laboratory(command: str, name: str) -> int:
    """Print where a command went that only a checkout has; returns the exit code."""
    sys.stderr.write(f"{command}: run `python -m tests.lab.{name}` in a checkout of Onrig\n")
    return ExitCode.CONFIGURATION


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Rows in columns, the first to the left, the others to the right unless they are words (not ``numbers``)."""
    widths = [max(len(row[k]) for row in rows if k < len(row)) for k in range(max(map(len, rows)))]
    lines = [
        (
            cell.rjust(w) if numbers and k else cell.ljust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=False))
        )
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


class Table(NamedTuple):
    """A title, column heads, and rows of text; ``str()`` aligns them."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        rows = [(self.title, *self.heads), *((f"  {row[0]}", *row[1:]) for row in self.rows)]
        return aligned(rows, numbers=False)
