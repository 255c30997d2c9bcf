"""Terminal output of the verbs, and their argument parser: one-line errors, tables, printable text.

All output of the verbs is made printable here. Verbs that move the cursor (progress bars, `onrig watch`) write through
`drawing_stream`, and escape untrusted text themselves. The module avoids slow imports for the sake of `onrig stop` and
`onrig doctor`.
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

PLOT_SUFFIXES: Final = (".png", ".svg", ".pdf")


class StreamLost(Exception):
    """Standard output is closed; the message gives the reason. It is not an OSError, since callers would attribute an
    OSError to their own files.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.reader_left = isinstance(error, BrokenPipeError)
        """Whether the output is a pipe whose reader, such as ``head``, has ended."""


class PrintableStream:
    """Text stream that escapes unprintable characters. Raises StreamLost if the underlying stream raises OSError."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text and return its length."""
        clean = printable_lines(text)
        try:
            try:
                self.stream.write(clean)
            except UnicodeEncodeError:  # for an ASCII-only terminal
                encoding = self.stream.encoding or "ascii"
                self.stream.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            raise StreamLost(error) from None
        return len(text)

    def flush(self) -> None:
        """Flush the underlying stream."""
        try:
            self.stream.flush()
        except OSError as error:
            raise StreamLost(error) from None

    def writelines(self, lines: list[str]) -> None:
        """Write all lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


@contextlib.contextmanager
def printable_streams() -> Iterator[None]:
    """Context manager in which standard output and standard error escape unprintable characters."""
    out, err = sys.stdout, sys.stderr
    printable = (cast(TextIO, PrintableStream(out)), cast(TextIO, PrintableStream(err)))
    sys.stdout, sys.stderr = printable
    try:
        yield
    finally:
        if (sys.stdout, sys.stderr) == printable:
            sys.stdout, sys.stderr = out, err


def drawing_stream(stream: TextIO) -> TextIO:
    """Return the underlying stream without escaping, for callers that move the cursor."""
    return cast(TextIO, getattr(stream, "stream", stream))


_INVALID_CHOICE: Final = re.compile(r"(.*invalid choice: '(?P<given>[^']*)')(?P<rest> \(choose from (?P<known>.*)\))")
_UNKNOWN_ARGUMENTS: Final = "unrecognized arguments: "
_NAME_PATTERN: Final = r"[\w.+-]+"
_REWORDINGS: Final = (
    (re.compile(r"the following arguments are required: (.*)"), r"required: \1"),
    (re.compile(r"argument (\S+): expected one argument"), r"\1 needs a value"),
    (re.compile(r"argument (\S+): ignored explicit argument (.*)"), r"\1 takes no value, got \2"),
    (re.compile(r"argument (\S+): (.*)"), r"\1: \2"),
)
"""Patterns of argparse's messages, and their replacements in the style of Onrig's other messages."""
_SETTING_NAMES: Final = (
    "rig",
    "task",
    "rate_hz",
    "episodes",
    "seed",
    "policy",
    "recipe",
    "identified",
    "evaluate_every",
)
"""Settings of a run that users may expect to be options; a test compares them with the configuration."""


class VerbParser(argparse.ArgumentParser):
    """Argument parser with one-line errors, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        if choice := _INVALID_CHOICE.fullmatch(message):
            from onrig.runtime.config.problem import hint

            message = f"{choice[1]}{hint(choice['given'], re.findall(_NAME_PATTERN, choice['known']))}{choice['rest']}"
        if message.startswith(_UNKNOWN_ARGUMENTS):
            message = self._unknown(message.removeprefix(_UNKNOWN_ARGUMENTS))
        for pattern, replacement in _REWORDINGS:
            message = pattern.sub(replacement, message)
        self.exit(ExitCode.CONFIGURATION, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _unknown(self, arguments: str) -> str:
        """Return a message about unknown options or too many arguments."""
        from onrig.runtime.config.problem import hint

        first_argument, *other_arguments = sorted(
            arguments.split(" "), key=lambda argument: not argument.startswith("-")
        )
        option, _, value = first_argument.partition("=")
        setting = option.strip("-").replace("-", "_")
        if not option.startswith("-"):
            setting_hint = f"; a setting is given as --set {first_argument}" if value and self._takes_settings else ""
            return f"too many arguments: {arguments}{setting_hint}"
        if self._takes_settings and setting in _SETTING_NAMES:
            value = value or (other_arguments or ["VALUE"])[0]
            return f"unknown option {option}; a setting is given as --set {setting}={value}"
        return f"unknown option {option}{hint(option, self._option_string_actions)}"

    @property
    def _takes_settings(self) -> bool:
        return "--set" in self._option_string_actions


def plot_problem(option: str, path: Path | None) -> str | None:
    """Return a message if the suffix of a plot file is not supported, otherwise None."""
    if path is None or path.suffix.lower() in PLOT_SUFFIXES:
        return None
    return f"--{option}: expected a file that ends in {', '.join(PLOT_SUFFIXES)}, got '{path}'"


def draw_or_report(name: str, draw: Callable[[], T], report_failure: Callable[[str], object]) -> T | None:
    """Call ``draw`` to plot a result, and return its value. A failure is passed to ``report_failure`` as one line and
    has no other effect. Return None after a failure and also, without a message, if matplotlib is missing.
    """
    try:
        return draw()
    except ImportError:
        return None
    except Exception as error:  # exceptions of matplotlib's back ends, fonts and extensions share no base class
        report_failure(f"{name} was not drawn: {reason(error)}")
        return None


def reason(error: Exception) -> str:
    """Format an error as one line."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.splitlines()[0]


def file_problem(option: str, path: Path | None) -> str | None:
    """Return a message if an output file cannot be written, otherwise None. For checks before long computations."""
    if path is None:
        return None
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"--{option}: no such folder '{path.parent}'"
    if path.is_dir():
        return f"--{option}: '{path}' is a folder"
    # links are followed; pipes and terminals are not replaced
    is_replaceable = not path.exists() or path.is_file()
    is_writable = os.access(path.resolve().parent if is_replaceable else path, os.W_OK)
    return None if is_writable else f"--{option}: '{path}' cannot be written: Permission denied"


def folder_problem(option: str, path: Path | None) -> str | None:
    """Return a message if an output folder cannot be written, otherwise None. For checks before long computations."""
    if path is None:
        return None
    existing_folder = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder))
    if not existing_folder.is_dir():
        return f"--{option}: '{existing_folder}' is not a folder"
    is_writable = os.access(existing_folder, os.W_OK | os.X_OK)
    return None if is_writable else f"--{option}: '{path}' cannot be written: Permission denied"


def write_json(verb: str, text: str, file: str) -> int:
    """Write a JSON document to a file (``-``: standard output), and return the exit code."""
    text += "\n"
    try:
        sys.stdout.write(text) if file == "-" else replace_file(Path(file), text.encode())
    except OSError as error:
        return complain(verb, f"--json: '{file}' cannot be written: {error.strerror or error}")
    return ExitCode.OK


def complain(verb: str, message: str, code: int = ExitCode.CONFIGURATION) -> int:
    """Print a one-line error about a command, and return the exit code."""
    sys.stderr.write(f"onrig {verb}: {message}\n")
    return code


def missing_library_text() -> str | None:
    """Return a message with the consequences if the C library is missing, otherwise None."""
    from onrig.hw.native import COST_WITHOUT_LIBRARY, library_state

    library = library_state()
    if library.library is not None:
        return None
    return f"no C library ({library.reason}): {COST_WITHOUT_LIBRARY}; `onrig doctor` shows how to install it"


def warn_missing_library(verb: str) -> None:
    """Print a warning if the C library is missing."""
    if missing := missing_library_text():
        complain(verb, missing)


def refer_to_laboratory(command: str, name: str) -> int:
    """Print how to run a former verb that is now available only in a checkout, and return the exit code."""
    sys.stderr.write(f"{command}: run `python -m tests.lab.{name}` in a checkout of Onrig\n")
    return ExitCode.CONFIGURATION


def align(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Align rows in columns: the first column to the left, and the others to the right if ``numbers``, otherwise to the
    left.
    """
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
        return align(rows, numbers=False)
