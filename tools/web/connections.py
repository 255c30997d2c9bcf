"""Connections of the live page: a bounded number of watchers, with messages distributed to each.

All users of one machine share an address.  When full, the oldest connection without a complete request is closed first,
then one that does not read its answer: holding connections open cannot block the page and its STOP for others.  A
watcher that cannot keep up is disconnected, and reconnects.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Generic, TypeVar

import msgspec

_QUEUED: Final = 400
"""Messages queued for a watcher: about 15 seconds' worth."""
_STALLED: Final = 40
"""Queued messages above which a watcher counts as not reading, and may be replaced."""
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
        """Tell it that nothing more follows, even if it has unread messages."""
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
        """Set while there are watchers."""
        self._ended = False

    def join(self, story_so_far: Callable[[], Iterable[Message]]) -> Watcher | None:
        """Add a watcher, which first receives the story so far; None if there are too many watchers that read."""
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
        """Distribute the messages of ``turn``; no watcher joins in between."""
        with self._lock:
            for message in turn():
                data = frame(message)
                for watcher in [w for w in self._watchers if not w.put(data)]:
                    watcher.end()
                    self._watchers.remove(watcher)

    def end(self) -> None:
        """End all watchers."""
        with self._lock:
            self._ended = True
            for watcher in self._watchers:
                watcher.end()


CONNECTIONS: Final = 32
PER_ADDRESS: Final = 16
"""More than the hub's streams, so that some connection can always be closed."""
_PATIENCE_S: Final = 10.0
"""Time-out for a complete request, and for a watcher to accept data."""
_UNREAD_BYTES: Final = 1 << 18
_UNREAD_S: Final = 0.5
"""Unread input is drained so far before a connection is closed: closing on it would lose the answer."""
_BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\n"
_TOO_SLOW: Final = b"HTTP/1.0 408 Request Timeout\r\nConnection: close\r\n\r\n"

T = TypeVar("T")


class Stage(enum.IntEnum):
    """Progress of a connection; the least advanced is closed first."""

    ARRIVING = 0
    """Its request is incomplete."""
    ANSWERING = 1
    STREAMING = 2
    """A watcher; the hub limits their number."""


@dataclass(eq=False)
class Place(Generic[T]):
    """One connection's place."""

    host: str
    who: T
    stage: Stage = Stage.ARRIVING


class Places(Generic[T]):
    """All places, the oldest first; the caller holds a lock."""

    def __init__(self) -> None:
        self._taken: list[Place[T]] = []

    def take(self, host: str, who: T) -> tuple[Place[T] | None, Place[T] | None]:
        """Give a place to ``who`` from ``host``: (it or None, the one that gave way or None)."""
        of_host = [place for place in self._taken if place.host == host]
        left = None
        if len(of_host) >= PER_ADDRESS or len(self._taken) >= CONNECTIONS:
            crowd = of_host if len(of_host) >= PER_ADDRESS else self._taken
            waiting = [place for place in crowd if place.stage is not Stage.STREAMING]
            if not waiting:
                return None, None
            left = min(waiting, key=lambda place: place.stage)  # among equals the first, which is the oldest
            self._taken.remove(left)
        place = Place(host, who)
        self._taken.append(place)
        return place, left

    def give(self, place: Place[T]) -> None:
        """Give a place back."""
        if place in self._taken:
            self._taken.remove(place)

    def of(self, who: T) -> Place[T] | None:
        """The place of a connection that has not given way."""
        return next((place for place in self._taken if place.who is who), None)


class BoundedServer(ThreadingHTTPServer):
    """An HTTP server on a listening socket, with a thread for each of a bounded number of connections."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = listening.family
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._lock = threading.Lock()
        self._places: Places[socket.socket] = Places()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve a connection in its own thread; when full, close another one or reject this one."""
        if not isinstance(request, socket.socket):
            raise TypeError("a stream socket was expected")
        with self._lock:
            place, left = self._places.take(_host_of(client_address), request)
            if left is not None:
                hang_up(left.who, _BUSY if left.stage is Stage.ARRIVING else b"")
        if place is None:
            with contextlib.suppress(OSError):
                request.settimeout(0.2)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread left
            self._leave(request)
            raise

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Give the place back when the connection is done."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            if isinstance(request, socket.socket):
                self._leave(request)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection, its place first: by then the descriptor may be another connection's."""
        if isinstance(request, socket.socket):
            self._leave(request)
        super().shutdown_request(request)

    def _leave(self, request: socket.socket) -> None:
        with self._lock:
            place = self._places.of(request)
            if place is not None:
                self._places.give(place)

    def come_to(self, request: socket.socket, stage: Stage) -> None:
        """Note how far a connection has come."""
        with self._lock:
            place = self._places.of(request)
            if place is not None:
                place.stage = stage

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: a closed browser is not an error, and the terminal belongs to the run."""


class PatientHandler(BaseHTTPRequestHandler):
    """One connection, with time-outs for a complete request and for its answer."""

    server: BoundedServer
    server_version = "onrig"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # a request without a version is answered, too
    timeout = _PATIENCE_S
    raw_requestline: bytes

    def setup(self) -> None:
        """Start the timer, so that a slow request cannot hold the connection forever."""
        super().setup()
        self._arrival = threading.Timer(_PATIENCE_S, lambda: hang_up(self.connection, _TOO_SLOW))
        self._arrival.daemon = True
        self._arrival.start()

    def arrived(self, stage: Stage = Stage.ANSWERING) -> None:
        """Note that the request is complete."""
        self._arrival.cancel()
        self.server.come_to(self.connection, stage)

    def parse_request(self) -> bool:
        """Read the request's head; an empty line is answered, too."""
        if not self.raw_requestline.strip():
            self.requestline, self.request_version, self.command = "", self.default_request_version, ""
            self.close_connection = True
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return super().parse_request()

    def finish(self) -> None:
        """End the connection; drain unread input for a moment first, or the answer would be lost."""
        self._arrival.cancel()
        super().finish()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            limit, unread = time.monotonic() + _UNREAD_S, _UNREAD_BYTES
            while unread > 0 and (left_s := limit - time.monotonic()) > 0:
                self.connection.settimeout(left_s)
                if not (data := self.connection.recv(65536)):
                    return
                unread -= len(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to the run."""


def hang_up(line: socket.socket, word: bytes) -> None:
    """End a connection from another thread, with a last word if the peer takes it at once."""
    with contextlib.suppress(OSError):
        if word:
            line.send(word, socket.MSG_DONTWAIT)
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _host_of(client_address: object) -> str:
    return str(client_address[0]) if isinstance(client_address, tuple) else ""
