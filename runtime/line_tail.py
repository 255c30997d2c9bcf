"""Tail of a file that grows by lines: each whole line once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_AT_ONCE_BYTES: Final = 1 << 20
_LONGEST_BYTES: Final = 1 << 20
"""A line that is longer is none of ours."""


class LineTail:
    """Follows a file that other processes append to, and that may not be there yet."""

    def __init__(self, path: Path, *, from_end: bool = False, at_once_bytes: int = _AT_ONCE_BYTES) -> None:
        """``from_end``: leave out what is there now.  ``at_once_bytes``: read at one look, so that none takes long."""
        self._path, self._at_once_bytes = path, at_once_bytes
        self._at = path.stat().st_size if from_end and path.exists() else 0
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Return the lines (without their ends) that have come since the last look; none where it cannot be read."""
        try:
            size = self._path.stat().st_size
            if size < self._at:  # another file of this name: a run folder that was begun anew
                self._at, self._rest = 0, b""
            if size == self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(self._at_once_bytes)
        except OSError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_BYTES:
            self._rest = b""
        return lines
