"""Live-page connections: a bounded number of watchers, and the distribution of messages to them.

All users of one machine share an address. When all connections are taken, the oldest one without a complete request is
closed first, followed by one whose client does not read its answer, so that no one can block the page and its STOP
button by holding connections open. A watcher that cannot keep up is disconnected, and reconnects.
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

_MAX_QUEUED_MESSAGES: Final = 400
"""Size of a watcher's queue: about 15 seconds of messages."""
_STALLED_MESSAGES: Final = 40
"""Number of queued messages at which a watcher counts as stalled and may be replaced."""
_END: Final = b""


class Message(msgspec.Struct, frozen=True):
    """One event for the page."""

    kind: str
    data: object


def frame(message: Message) -> bytes:
    """Encode a message as a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (message.kind.encode(), msgspec.json.encode(message.data))


class Watcher:
    """Message queue of one open page."""

    def __init__(self) -> None:
        self._frames: queue.Queue[bytes] = queue.Queue(_MAX_QUEUED_MESSAGES)

    @property
    def backlog(self) -> int:
        """Number of queued messages."""
        return self._frames.qsize()

    def put(self, data: bytes) -> bool:
        """Queue a message, and return whether there was room for it."""
        try:
            self._frames.put_nowait(data)
        except queue.Full:
            return False
        return True

    def next(self, timeout_s: float) -> bytes | None:
        """Wait for the next message and return it; None if none arrives within ``timeout_s``, empty after ``end``."""
        try:
            return self._frames.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def end(self) -> None:
        """Queue the end of the stream, discarding unread messages if the queue is full."""
        while not self.put(_END):
            try:
                self._frames.get_nowait()
            except queue.Empty:
                continue


class Hub:
    """Queues of all open pages."""

    def __init__(self, limit: int = 8) -> None:
        self._limit: Final = limit
        self._watchers: list[Watcher] = []
        self._lock = threading.Lock()
        self.occupied = threading.Event()
        """Set while at least one page is open."""
        self._ended = False

    def join(self, snapshot: Callable[[], Iterable[Message]]) -> Watcher | None:
        """Add a watcher, which receives ``snapshot`` first.

        Returns None if the limit is reached and no watcher is stalled.
        """
        with self._lock:
            if len(self._watchers) >= self._limit and not self._drop_stalled():
                return None
            watcher = Watcher()
            for message in snapshot():
                watcher.put(frame(message))
            if self._ended:
                watcher.end()
            self._watchers.append(watcher)
            self.occupied.set()
            return watcher

    def _drop_stalled(self) -> bool:
        slowest = max(self._watchers, key=lambda w: w.backlog, default=None)
        if slowest is None or slowest.backlog < _STALLED_MESSAGES:
            return False
        slowest.end()
        self._watchers.remove(slowest)
        return True

    def leave(self, watcher: Watcher) -> None:
        with self._lock:
            if watcher in self._watchers:
                self._watchers.remove(watcher)
            if not self._watchers:
                self.occupied.clear()

    def publish(self, messages: Callable[[], Iterable[Message]]) -> None:
        """Send ``messages()`` to all watchers; no watcher can join in the meantime."""
        with self._lock:
            for message in messages():
                data = frame(message)
                for watcher in [w for w in self._watchers if not w.put(data)]:
                    watcher.end()
                    self._watchers.remove(watcher)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for watcher in self._watchers:
                watcher.end()


MAX_CONNECTIONS: Final = 32
MAX_CONNECTIONS_PER_ADDRESS: Final = 16
"""Maximum number of connections per address; it exceeds the hub's limit, so that one can always be closed."""
_TIMEOUT_S: Final = 10.0
"""Timeout for the completion of a request, and for a watcher that does not accept data."""
_DRAIN_BYTES: Final = 1 << 18
_DRAIN_S: Final = 0.5
"""Limits on reading the remaining input before a connection is closed. Closing it with unread input would reset the
connection and lose the answer."""
_BUSY_RESPONSE: Final = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\n"
_TIMEOUT_RESPONSE: Final = b"HTTP/1.0 408 Request Timeout\r\nConnection: close\r\n\r\n"

T = TypeVar("T")


class Stage(enum.IntEnum):
    """Stage of a connection; the least advanced connection is closed first."""

    RECEIVING = 0
    """The request is incomplete."""
    ANSWERING = 1
    STREAMING = 2
    """The client is a watcher; the hub limits their number."""


@dataclass(eq=False)
class Slot(Generic[T]):
    """One of the limited connections."""

    host: str
    connection: T
    stage: Stage = Stage.RECEIVING


class Slots(Generic[T]):
    """Slots in use, oldest first; the caller holds a lock."""

    def __init__(self) -> None:
        self._occupied: list[Slot[T]] = []

    def acquire(self, host: str, connection: T) -> tuple[Slot[T] | None, Slot[T] | None]:
        """Assign a slot to a connection, and return this slot and the evicted one, each None if absent."""
        slots_of_host = [slot for slot in self._occupied if slot.host == host]
        evicted = None
        if len(slots_of_host) >= MAX_CONNECTIONS_PER_ADDRESS or len(self._occupied) >= MAX_CONNECTIONS:
            candidates = slots_of_host if len(slots_of_host) >= MAX_CONNECTIONS_PER_ADDRESS else self._occupied
            evictable = [slot for slot in candidates if slot.stage is not Stage.STREAMING]
            if not evictable:
                return None, None
            evicted = min(evictable, key=lambda slot: slot.stage)  # the first minimum, which is the oldest
            self._occupied.remove(evicted)
        slot = Slot(host, connection)
        self._occupied.append(slot)
        return slot, evicted

    def release(self, slot: Slot[T]) -> None:
        if slot in self._occupied:
            self._occupied.remove(slot)

    def find(self, connection: T) -> Slot[T] | None:
        return next((slot for slot in self._occupied if slot.connection is connection), None)


class BoundedServer(ThreadingHTTPServer):
    """HTTP server on a listening socket, with a thread for each of a bounded number of connections."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = listening.family
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._lock = threading.Lock()
        self._slots: Slots[socket.socket] = Slots()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve a connection in its own thread; if no slot is free, close an older connection or reject this one."""
        if not isinstance(request, socket.socket):
            raise TypeError("a stream socket was expected")
        with self._lock:
            slot, evicted = self._slots.acquire(_host_of(client_address), request)
            if evicted is not None:
                disconnect(evicted.connection, _BUSY_RESPONSE if evicted.stage is Stage.RECEIVING else b"")
        if slot is None:
            with contextlib.suppress(OSError):
                request.settimeout(0.2)
                request.sendall(_BUSY_RESPONSE)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            self._release(request)
            raise

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Serve a connection and release its slot when it is done."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            if isinstance(request, socket.socket):
                self._release(request)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Release the slot, then close the connection, whose descriptor may afterwards belong to a different one."""
        if isinstance(request, socket.socket):
            self._release(request)
        super().shutdown_request(request)

    def _release(self, request: socket.socket) -> None:
        with self._lock:
            slot = self._slots.find(request)
            if slot is not None:
                self._slots.release(slot)

    def set_stage(self, request: socket.socket, stage: Stage) -> None:
        with self._lock:
            slot = self._slots.find(request)
            if slot is not None:
                slot.stage = stage

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing, because a closed browser is not an error, and the terminal belongs to the run."""


class TimedHandler(BaseHTTPRequestHandler):
    """One connection, with timeouts for the completion of the request and for its answer."""

    server: BoundedServer
    server_version = "onrig"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # used to answer a request without a version
    timeout = _TIMEOUT_S
    raw_requestline: bytes

    def setup(self) -> None:
        """Start the timer, so that a slow request cannot hold the connection forever."""
        super().setup()
        self._request_timer = threading.Timer(_TIMEOUT_S, lambda: disconnect(self.connection, _TIMEOUT_RESPONSE))
        self._request_timer.daemon = True
        self._request_timer.start()

    def request_complete(self, stage: Stage = Stage.ANSWERING) -> None:
        """Cancel the request's timeout because the request is complete."""
        self._request_timer.cancel()
        self.server.set_stage(self.connection, stage)

    def parse_request(self) -> bool:
        """Read the request's head, and answer an empty line with 400."""
        if not self.raw_requestline.strip():
            self.requestline, self.request_version, self.command = "", self.default_request_version, ""
            self.close_connection = True
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return super().parse_request()

    def finish(self) -> None:
        """Close the connection after draining unread input (`_DRAIN_S`)."""
        self._request_timer.cancel()
        super().finish()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            deadline, budget = time.monotonic() + _DRAIN_S, _DRAIN_BYTES
            while budget > 0 and (remaining_s := deadline - time.monotonic()) > 0:
                self.connection.settimeout(remaining_s)
                if not (data := self.connection.recv(65536)):
                    return
                budget -= len(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the terminal belongs to the run."""


def disconnect(connection: socket.socket, response: bytes) -> None:
    """Shut a connection down from another thread, first sending ``response`` if that does not block."""
    with contextlib.suppress(OSError):
        if response:
            connection.send(response, socket.MSG_DONTWAIT)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _host_of(client_address: object) -> str:
    return str(client_address[0]) if isinstance(client_address, tuple) else ""
