"""Files that grow by lines: what is new since the last look, without reading anything twice."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_AT_ONCE: Final = 1 << 20


class Tail:
    """Follows a file of a run folder, which may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Whole lines (without their ends) that have come since the last call; at most 1 MiB of them at once."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._at:  # another file of this name: a run folder that was begun anew
                    self._at, self._rest = 0, b""
                if size == self._at:
                    return []
                file.seek(self._at)
                data = file.read(_AT_ONCE)
        except OSError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
