"""Record of an identification that a run has sharpened (``sharpening.jsonl``)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from onrig.runtime.files import MAX_JSON_BYTES, read_file

FITTINGS_FILE: Final = "sharpening.jsonl"


class Fitting(msgspec.Struct, frozen=True):
    """One fit of a run in progress, a line of ``sharpening.jsonl``."""

    ticks: int
    problem: str = ""
    """Reason why nothing was written; empty if something was."""
    widths: dict[str, tuple[float, float]] = {}
    """Relative half-widths of the 95 % intervals of the plant's parameters, by name: at the run's start, and now."""
    has_departed: bool = False
    """Whether the plant has left the identification so clearly that a run in progress is notified."""
    number: int = 0
    """Number of the fit in its run, from 1."""

    def line(self) -> str:
        """Describe the fit in one line."""
        widths = (f"{name} ±{previous:.1%} to ±{current:.1%}" for name, (previous, current) in self.widths.items())
        return f"{self.ticks} ticks: {self.problem or ', '.join(widths) or 'no parameter is determined'}"


def read_fittings(folder: Path) -> list[Fitting]:
    """Read the fits of a run, skipping damaged lines. Return an empty list if there is no file."""
    lines, fittings = [], []
    with contextlib.suppress(OSError):
        lines = read_file(folder / FITTINGS_FILE, MAX_JSON_BYTES).splitlines()
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            fittings.append(msgspec.json.decode(line, type=Fitting))
    return fittings


def write_fitting(file: BinaryIO, fitting: Fitting) -> None:
    """Append a fit to an open ``sharpening.jsonl``. Raises OSError."""
    file.write(msgspec.json.encode(fitting) + b"\n")
    file.flush()
