"""``events.jsonl``: admissions, interventions, misses and faults, one JSON object per line, as they happen.

Its length is bounded, whoever wishes it were not: what repeats itself is counted (``repeats``), and what others can
bring about fills a part of the file at most (``event_kinds``).  What no longer fits is dropped and counted.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime.run_state.event_kinds import Repeats, Told, Value, kind_of, shortened

_WAITING: Final = 1000
"""Lines that wait for a full disk to have room again; the oldest go first."""
_ENCODER = msgspec.json.Encoder()


class EventFile:
    """Appends events; ``t_unix_s`` is the wall clock, for people (nothing reproducible depends on it).

    Several processes append to one file; its length is looked at before every line, so that a run that is resumed, or
    a process that is started anew, goes on with what room there is left.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._waiting: deque[bytes] = deque()
        self._repeats = Repeats()
        self._dropped: Counter[str] = Counter()
        self._told_dropped = 0

    def write(self, kind: str, **fields: Value) -> None:
        """Append one event, or count it; never raises.  What a full disk does not take is tried again later."""
        now_s = time.monotonic()
        for told in self._repeats.take(kind, fields, now_s, time.time()):
            self._put(told)
        self._flush()

    def look(self) -> None:
        """Write what was counted in the meantime, if it is time; to be called now and then."""
        told = self._repeats.due(time.monotonic())
        for event in told:
            self._put(event)
        if told or self._waiting:
            self._flush()

    def _put(self, told: Told) -> None:
        weight = kind_of(told.kind, told.fields).weight
        room = weight.room
        line = _line(told._replace(fields=shortened(told.fields, weight.longest_text)))
        if room is not None and self._length() + len(line) > room:
            self._drop(told.kind)
            return
        if len(self._waiting) >= _WAITING:
            self._waiting.popleft()
            self._drop("unwritten")
        self._waiting.append(line)

    def _length(self) -> int:
        try:
            written = os.fstat(self._file.fileno()).st_size
        except OSError:
            written = 0
        return written + sum(map(len, self._waiting))

    def _drop(self, kind: str) -> None:
        """Count it; say so at the first, the second, the fourth, ... and at the end."""
        self._dropped[kind] += 1
        if self._dropped.total() >= 2 * self._told_dropped:
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        total = self._dropped.total()
        if total == self._told_dropped:
            return
        self._told_dropped = total
        which = ", ".join(f"{n} {kind}" for kind, n in sorted(self._dropped.items()))
        self._waiting.append(_line(Told("events_dropped", {"events": total, "which": which}, time.time())))

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
        """Write what has been counted, and close the file."""
        for told in self._repeats.rest():
            self._put(told)
        self._tell_dropped()
        self._flush()
        self._file.close()


def _line(told: Told) -> bytes:
    return _ENCODER.encode({"t_unix_s": round(told.t_unix_s, 3), "kind": told.kind, **told.fields}) + b"\n"
