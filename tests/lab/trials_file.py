"""CSV files of finished trials, to which concurrent benchmarks append rows and from which they resume."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from onrig.runtime.files import MAX_TABLE_BYTES, open_file

T = TypeVar("T")


def append_lines(path: Path, lines: bytes) -> None:
    """Append complete lines, durably, after a line that a power failure may have truncated; raises OSError."""
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            lines = b"\n" + lines
        while lines:
            lines = lines[file.write(lines) or 0 :]
        os.fsync(file.fileno())


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Append the rows of a finished trial at once, after complete lines; raises OSError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists() or not path.stat().st_size:
        writer.writerow(columns)
    writer.writerows(rows)
    append_lines(path, text.getvalue().encode())


def read_rows(path: Path, columns: Sequence[str], parse: Callable[[Sequence[str]], T]) -> list[T]:
    """Read the rows; returns none if the file is missing.

    ``parse`` raises ValueError for a damaged row.  Raises ValueError for a damaged row and for other files, and
    OSError.
    """
    if not path.exists():
        return []
    head = list(columns)
    with io.TextIOWrapper(open_file(path, MAX_TABLE_BYTES), newline="") as file:
        lines = csv.reader(file)
        try:
            known = next(lines, None) == head
            # Two runs that create the file at the same time both write the header.
            found = [parse(row) for row in lines if row != head] if known else []
        except (ValueError, csv.Error):
            raise ValueError(f"line {lines.line_num} is damaged: delete it, and its trial is run again") from None
    if not known:
        raise ValueError(f"expected a file with the columns {', '.join(columns)}")
    return found
