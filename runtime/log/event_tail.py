"""Follows ``events.jsonl`` while several processes append to it: each whole line once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_AT_ONCE: Final = 1 << 16
"""Bytes read at one look, so that no backlog is taken in one go."""
_LONGEST: Final = 1 << 20
"""A line that is longer is none of ours."""


class EventTail:
    """Reads on from where the file ended when it was opened; a file that is not there yet counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._at = path.stat().st_size if path.exists() else 0
        self._part = b""

    def lines(self) -> list[bytes]:
        """Return the lines that are whole by now, without their ends; none where the file cannot be read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(self._fd).st_size <= self._at:
                return []
            read = os.pread(self._fd, _AT_ONCE, self._at)
        except OSError:
            return []
        self._at += len(read)
        *whole, self._part = (self._part + read).split(b"\n")
        if len(self._part) > _LONGEST:
            self._part = b""
        return [line for line in whole if line]

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
