"""``events.jsonl``: admissions, interventions, misses and faults, one JSON object per line, as they happen.

One table defines the kinds of events: who can cause them, and by which fields they are aggregated.  The file's length
is bounded.  Repeated events are aggregated: the first is written at once, the following ones as a single line at the
end of a window, which starts short and doubles while they continue.  Events caused by outsiders may fill only part of
the file. Events that no longer fit are dropped and counted.
"""

from __future__ import annotations

import enum
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

Value = int | float | str | bool | None
Fields = Mapping[str, Value]

MAX_FILE_BYTES: Final = 64 << 20
"""Size limit of ``events.jsonl``; vital events are written even beyond it."""
COUNT_FIELD: Final = "count"
"""Field with the number of events in an aggregated line."""


class Origin(enum.Enum):
    """Origin of an event, which determines its share of the file."""

    PEER = enum.auto()
    """Caused by a peer or an outsider, possibly at a high rate."""
    RUN = enum.auto()
    """Caused by the run itself."""
    VITAL = enum.auto()
    """Essential: always written."""

    @property
    def max_file_bytes(self) -> int | None:
        """Size of the file, in bytes, up to which events of this origin are written; None: unlimited."""
        return {Origin.PEER: MAX_FILE_BYTES // 4, Origin.RUN: MAX_FILE_BYTES * 3 // 4, Origin.VITAL: None}[self]

    @property
    def max_text_length(self) -> int:
        """Maximum number of characters per field."""
        return 300 if self is Origin.PEER else 1000


class Kind(NamedTuple):
    """Properties of one kind of event."""

    origin: Origin = Origin.RUN
    grouped_by: tuple[str, ...] | None = None
    """Fields by which events are aggregated into one line (each takes few values); None: no aggregation."""
    summed: tuple[str, ...] = ()
    """Fields summed in an aggregated line; the other fields are those of the last event."""


_KINDS: Final = {
    "learner_attached": Kind(Origin.PEER, ("learner", "pushes")),
    "learner_resumed": Kind(Origin.PEER, ("learner", "pushes")),
    "push_passed": Kind(Origin.PEER, ("learner",)),
    "learner_turned_away": Kind(Origin.PEER, ()),
    "connections_ended": Kind(Origin.PEER, ("why",), ("connections",)),
    "policy_refused": Kind(Origin.PEER, ("learner", "stage")),
    "policy_warning": Kind(Origin.PEER, ("reason",)),
    "policy_admitted": Kind(Origin.PEER),
    "policy_rolled_back": Kind(Origin.PEER),
    "policy_probation_failed": Kind(Origin.PEER),
    "policy_probation_passed": Kind(Origin.PEER),
    "policy_not_filed": Kind(Origin.PEER, ("reason",)),
    "rolled_back_not_filed": Kind(Origin.PEER, ("reason",)),
    "mirror_differs": Kind(Origin.PEER, ()),
    "tick": Kind(Origin.RUN, ("episode", "rule", "cause"), ("missed",)),
    "error": Kind(Origin.RUN, ("source", "message")),
    "warning": Kind(Origin.RUN, ("source", "message")),
    "fault": Kind(Origin.VITAL),
    "stop": Kind(Origin.VITAL),
    "ended": Kind(Origin.VITAL),
    "not_reproducible": Kind(Origin.VITAL),
    "log_stopped": Kind(Origin.VITAL),
    "log_goes_on": Kind(Origin.VITAL),
    "resumed": Kind(Origin.VITAL),
    "events_dropped": Kind(Origin.VITAL),
}
_DEFAULT_KIND: Final = Kind()
_ESSENTIAL_KIND: Final = Kind(Origin.VITAL)


def kind_of(kind: str, fields: Fields) -> Kind:
    """Return the kind of an event; any event with a fault is vital."""
    return _ESSENTIAL_KIND if fields.get("fault") else _KINDS.get(kind, _DEFAULT_KIND)


def shorten_texts(fields: Fields, max_length: int) -> dict[str, Value]:
    """Return the fields with texts cut to ``max_length`` characters."""
    return {
        name: f"{value[: max_length - 3]}..." if isinstance(value, str) and len(value) > max_length else value
        for name, value in fields.items()
    }


def n_occurrences(fields: Mapping[str, object]) -> int:
    """Return the number of events in a line of ``events.jsonl``."""
    count = fields.get(COUNT_FIELD, 1)
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 1


MIN_WINDOW_S: Final = 1.0
MAX_WINDOW_S: Final = 64.0
MAX_WINDOWS: Final = 64
"""Maximum number of open windows; if it is exceeded, the oldest window is closed."""
_Key = tuple[Value, ...]


class PendingEvent(NamedTuple):
    """An event to be written."""

    kind: str
    fields: dict[str, Value]
    t_unix_s: float


@dataclass
class _Window:
    kind: str
    end_s: float
    duration_s: float
    count: int = 0
    last: PendingEvent | None = None


class EventAggregator:
    """Aggregator that combines repeated events into one line per window."""

    def __init__(self) -> None:
        self._windows: dict[_Key, _Window] = {}

    def add(self, kind: str, fields: Fields, now_s: float, t_unix_s: float) -> list[PendingEvent]:
        """Add one event; return the events to write now, in order (``now_s``: monotonic)."""
        properties = kind_of(kind, fields)
        pending = self.due(now_s)
        if properties.grouped_by is None:
            return [*pending, PendingEvent(kind, dict(fields), t_unix_s)]
        key: _Key = (kind, *(fields.get(name) for name in properties.grouped_by))
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = _Window(kind, now_s + MIN_WINDOW_S, MIN_WINDOW_S)
            if len(self._windows) > MAX_WINDOWS:
                pending += self._close_window(self._windows.pop(next(iter(self._windows))))
            return [*pending, PendingEvent(kind, dict(fields), t_unix_s)]
        window.count += 1
        window.last = PendingEvent(kind, _sum_fields(properties, window.last, fields), t_unix_s)
        return pending

    def due(self, now_s: float) -> list[PendingEvent]:
        """Return the aggregated events of windows that have closed."""
        pending: list[PendingEvent] = []
        for key in [key for key, window in self._windows.items() if now_s >= window.end_s]:
            window = self._windows.pop(key)
            pending += self._close_window(window)
            if window.count:
                duration_s = min(2 * window.duration_s, MAX_WINDOW_S)
                self._windows[key] = _Window(window.kind, now_s + duration_s, duration_s)
        return pending

    def remaining(self) -> list[PendingEvent]:
        """Return the remaining aggregated events, at the end of the run."""
        windows, self._windows = self._windows, {}
        return [event for window in windows.values() for event in self._close_window(window)]

    @staticmethod
    def _close_window(window: _Window) -> list[PendingEvent]:
        if window.last is None:
            return []
        kind, fields, t_unix_s = window.last
        return [PendingEvent(kind, fields if window.count == 1 else {**fields, COUNT_FIELD: window.count}, t_unix_s)]


def _sum_fields(kind: Kind, previous: PendingEvent | None, fields: Fields) -> dict[str, Value]:
    summed_fields = dict(fields)
    for name in kind.summed:
        next_value, previous_value = fields.get(name), None if previous is None else previous.fields.get(name)
        if isinstance(next_value, int) and isinstance(previous_value, int):
            summed_fields[name] = next_value + previous_value
    return summed_fields


_MAX_PENDING_LINES: Final = 1000
"""Maximum number of lines buffered while the disk is full; beyond it, the oldest are dropped, essential ones last."""
_ENCODER = msgspec.json.Encoder()


class EventFile:
    """Writer of ``events.jsonl``; ``t_unix_s`` is the wall clock, for display only.

    Several processes append to one file; its length is checked before every line, so that resumed runs and restarted
    processes respect the limit.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._unwritten_lines: deque[tuple[bytes, bool]] = deque()
        """Lines, and whether newer ones may replace them."""
        self._aggregator = EventAggregator()
        self._dropped_counts: Counter[str] = Counter()
        self._n_reported_drops = 0

    def write(self, kind: str, **fields: Value) -> None:
        """Append one event, or count it if it is aggregated or dropped; never raises.  If the disk is full, the write
        is retried later."""
        now_s = time.monotonic()
        for event in self._aggregator.add(kind, fields, now_s, time.time()):
            self._put(event)
        self._flush()

    def poll(self) -> None:
        """Write the aggregated events that are due; call this periodically."""
        due = self._aggregator.due(time.monotonic())
        for event in due:
            self._put(event)
        if due or self._unwritten_lines:
            self._flush()

    def _put(self, event: PendingEvent) -> None:
        origin = kind_of(event.kind, event.fields).origin
        max_bytes = origin.max_file_bytes
        line = _encode_line(event._replace(fields=shorten_texts(event.fields, origin.max_text_length)))
        if max_bytes is not None and self._length() + len(line) > max_bytes:
            self._drop(event.kind)
            return
        if len(self._unwritten_lines) >= _MAX_PENDING_LINES:
            del self._unwritten_lines[
                next((index for index, (_, is_droppable) in enumerate(self._unwritten_lines) if is_droppable), 0)
            ]
            self._drop("unwritten")
        self._unwritten_lines.append((line, origin is not Origin.VITAL))

    def _length(self) -> int:
        try:
            n_bytes = os.fstat(self._file.fileno()).st_size
        except OSError:
            n_bytes = 0
        return n_bytes + sum(len(line) for line, _ in self._unwritten_lines)

    def _drop(self, kind: str) -> None:
        """Count a dropped event; report the counts at the 1st, 2nd, 4th, ... dropped event and at the end."""
        self._dropped_counts[kind] += 1
        if self._dropped_counts.total() >= 2 * self._n_reported_drops:
            self._report_dropped()

    def _report_dropped(self) -> None:
        total = self._dropped_counts.total()
        if total == self._n_reported_drops:
            return
        self._n_reported_drops = total
        description = ", ".join(f"{n} {kind}" for kind, n in sorted(self._dropped_counts.items()))
        self._unwritten_lines.append(
            (_encode_line(PendingEvent("events_dropped", {"events": total, "which": description}, time.time())), True)
        )

    def _flush(self) -> None:
        while self._unwritten_lines:
            line, _ = self._unwritten_lines[0]
            try:
                n_written = self._file.write(line) or 0
                if n_written < len(line):
                    self._truncate_partial(n_written)
                    return
            except OSError:
                return
            self._unwritten_lines.popleft()

    def _truncate_partial(self, n_written: int) -> None:
        """Remove a partially written line (full disk), because another process may append."""
        end = self._file.tell()
        if self._file.seek(0, os.SEEK_END) == end:
            self._file.truncate(end - n_written)

    def close(self) -> None:
        """Write the aggregated events, and close the file."""
        for event in self._aggregator.remaining():
            self._put(event)
        self._report_dropped()
        self._flush()
        self._file.close()


def _encode_line(event: PendingEvent) -> bytes:
    return _ENCODER.encode({"t_unix_s": round(event.t_unix_s, 3), "kind": event.kind, **event.fields}) + b"\n"
