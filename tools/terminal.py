"""What stands between the verbs and the terminal: all that they print is made printable here, once, for good.

Only those that draw (progress bars, `onrig watch`) write control characters on purpose; they take `drawing_stream`, and
make what they show of others printable themselves.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO, cast

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
