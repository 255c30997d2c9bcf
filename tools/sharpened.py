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
    """Why nothing was written."""
    widths: dict[str, tuple[float, float]] = {}
    """Half-widths of the plant's 95 % intervals as shares of the values, by parameter: at the run's start, and now."""
    has_departed: bool = False
    """Whether the run was notified that its plant has left the identification."""

    def line(self) -> str:
        """Describe the fit in one line."""
        widths = (f"{name} ±{previous:.1%} to ±{current:.1%}" for name, (previous, current) in self.widths.items())
        return f"{self.ticks} ticks: {self.problem or ', '.join(widths) or 'no parameter is determined'}"


def read_fittings(folder: Path) -> list[Fitting]:
    """Read the fits of a run, without damaged lines; empty without the file."""
    lines, fittings = [], []
    with contextlib.suppress(OSError):
        lines = read_file(folder / FITTINGS_FILE, MAX_JSON_BYTES).splitlines()
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            fittings.append(msgspec.json.decode(line, type=Fitting))
    return fittings


def write_fitting(file: BinaryIO, fitting: Fitting) -> None:
    """Append a fit to an open ``sharpening.jsonl``; raises OSError."""
    file.write(msgspec.json.encode(fitting) + b"\n")
    file.flush()
