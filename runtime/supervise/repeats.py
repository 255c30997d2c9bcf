"""Events that repeat themselves, counted: the first is told at once, those like it in one line when a window closes.

The window is short at first and doubles while they go on.  Pure: the time is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from onrig.runtime.supervise.event_kinds import COUNT, Fields, Kind, Value, kind_of

FIRST_S: Final = 1.0
LONGEST_S: Final = 64.0
MAX_WINDOWS: Final = 64
"""Open at a time; beyond that the oldest closes."""
_Key = tuple[Value, ...]


class Told(NamedTuple):
    """An event that is to be written."""

    kind: str
    fields: dict[str, Value]
    t_unix_s: float


@dataclass
class _Window:
    kind: str
    closes_s: float
    lasts_s: float
    count: int = 0
    last: Told | None = None


class Repeats:
    """Turns events into those that are to be written."""

    def __init__(self) -> None:
        self._windows: dict[_Key, _Window] = {}

    def take(self, kind: str, fields: Fields, now_s: float, t_unix_s: float) -> list[Told]:
        """Take one event; what is to be written now, in order (``now_s``: monotonic)."""
        known = kind_of(kind, fields)
        told = self.due(now_s)
        if known.same is None:
            return [*told, Told(kind, dict(fields), t_unix_s)]
        key: _Key = (kind, *(fields.get(name) for name in known.same))
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = _Window(kind, now_s + FIRST_S, FIRST_S)
            if len(self._windows) > MAX_WINDOWS:
                told += self._closed(self._windows.pop(next(iter(self._windows))))
            return [*told, Told(kind, dict(fields), t_unix_s)]
        window.count += 1
        window.last = Told(kind, _added(known, window.last, fields), t_unix_s)
        return told

    def due(self, now_s: float) -> list[Told]:
        """What windows that have closed by now counted."""
        told: list[Told] = []
        for key in [key for key, window in self._windows.items() if now_s >= window.closes_s]:
            window = self._windows.pop(key)
            told += self._closed(window)
            if window.count:
                lasts_s = min(2 * window.lasts_s, LONGEST_S)
                self._windows[key] = _Window(window.kind, now_s + lasts_s, lasts_s)
        return told

    def rest(self) -> list[Told]:
        """What has been counted and not told, at the end."""
        windows, self._windows = self._windows, {}
        return [told for window in windows.values() for told in self._closed(window)]

    @staticmethod
    def _closed(window: _Window) -> list[Told]:
        if window.last is None:
            return []
        kind, fields, t_unix_s = window.last
        return [Told(kind, fields if window.count == 1 else {**fields, COUNT: window.count}, t_unix_s)]


def _added(kind: Kind, before: Told | None, fields: Fields) -> dict[str, Value]:
    added = dict(fields)
    for name in kind.adds:
        more, so_far = fields.get(name), None if before is None else before.fields.get(name)
        if isinstance(more, int) and isinstance(so_far, int):
            added[name] = more + so_far
    return added
