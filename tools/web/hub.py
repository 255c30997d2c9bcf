"""Hands what happens to everybody who watches; who cannot keep up is let go, and comes back by himself."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

_QUEUED: Final = 400
"""Messages that wait for a watcher: some 15 seconds' worth."""
_STALLED: Final = 40
"""Messages that wait for a watcher who does not read; he gives way where there are too many."""
_END: Final = b""


class Message(msgspec.Struct, frozen=True):
    """One event for the page."""

    kind: str
    data: object


def frame(message: Message) -> bytes:
    """Write it as the page's EventSource reads it."""
    return b"event: %s\ndata: %s\n\n" % (message.kind.encode(), msgspec.json.encode(message.data))


class Watcher:
    """One open page."""

    def __init__(self) -> None:
        self._frames: queue.Queue[bytes] = queue.Queue(_QUEUED)

    @property
    def behind(self) -> int:
        """Messages that wait for it."""
        return self._frames.qsize()

    def put(self, data: bytes) -> bool:
        """Add a message; False when it cannot keep up."""
        try:
            self._frames.put_nowait(data)
        except queue.Full:
            return False
        return True

    def next(self, timeout_s: float) -> bytes | None:
        """Wait for the next message; None after ``timeout_s`` without one, empty once there will be none any more."""
        try:
            return self._frames.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def end(self) -> None:
        """Let it know that nothing more comes, whatever it has not read yet."""
        while not self.put(_END):
            try:
                self._frames.get_nowait()
            except queue.Empty:
                continue


class Hub:
    """All open pages."""

    def __init__(self, limit: int = 8) -> None:
        self._limit: Final = limit
        self._watchers: list[Watcher] = []
        self._lock = threading.Lock()
        self.somebody = threading.Event()
        """Set while anybody watches."""
        self._ended = False

    def join(self, story_so_far: Callable[[], Iterable[Message]]) -> Watcher | None:
        """Add a watcher, who first hears the story so far; None where there are too many already who read."""
        with self._lock:
            if len(self._watchers) >= self._limit and not self._let_go_a_stalled_one():
                return None
            watcher = Watcher()
            for message in story_so_far():
                watcher.put(frame(message))
            if self._ended:
                watcher.end()
            self._watchers.append(watcher)
            self.somebody.set()
            return watcher

    def _let_go_a_stalled_one(self) -> bool:
        slowest = max(self._watchers, key=lambda w: w.behind, default=None)
        if slowest is None or slowest.behind < _STALLED:
            return False
        slowest.end()
        self._watchers.remove(slowest)
        return True

    def leave(self, watcher: Watcher) -> None:
        """Take a watcher out."""
        with self._lock:
            if watcher in self._watchers:
                self._watchers.remove(watcher)
            if not self._watchers:
                self.somebody.clear()

    def tell(self, turn: Callable[[], Iterable[Message]]) -> None:
        """Let ``turn`` find out what is new, and pass it on; nobody joins in between."""
        with self._lock:
            for message in turn():
                data = frame(message)
                for watcher in [w for w in self._watchers if not w.put(data)]:
                    watcher.end()
                    self._watchers.remove(watcher)

    def end(self) -> None:
        """Nothing more will come."""
        with self._lock:
            self._ended = True
            for watcher in self._watchers:
                watcher.end()
