"""``events.jsonl``: admissions, interventions, misses and faults, one JSON object per line, as they happen."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

_ENCODER = msgspec.json.Encoder()


class EventFile:
    """Appends events; ``t_unix_s`` is the wall clock, for people (nothing reproducible depends on it)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: int | float | str | bool | None) -> None:
        """Append one event; a full disk loses it, and nothing else."""
        line = _ENCODER.encode({"t_unix_s": round(time.time(), 3), "kind": kind, **fields}) + b"\n"
        try:
            self._file.write(line)
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        self._file.close()
