"""``events.jsonl``: admissions, interventions, misses and faults, one JSON object per line, as they happen."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

_WAITING: Final = 1000
"""Lines that wait for a full disk to have room again; the oldest go first."""
_ENCODER = msgspec.json.Encoder()


class EventFile:
    """Appends events; ``t_unix_s`` is the wall clock, for people (nothing reproducible depends on it)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._waiting: deque[bytes] = deque(maxlen=_WAITING)

    def write(self, kind: str, **fields: int | float | str | bool | None) -> None:
        """Append one event; never raises.  What a full disk does not take is tried again with the next event."""
        self._waiting.append(_ENCODER.encode({"t_unix_s": round(time.time(), 3), "kind": kind, **fields}) + b"\n")
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            try:
                taken = self._file.write(line) or 0
            except OSError:
                return
            if taken < len(line):
                self._waiting[0] = line[taken:]
                return
            self._waiting.popleft()

    def close(self) -> None:
        """Close the file."""
        self._flush()
        self._file.close()
