"""One TCP connection: the learner's socket, the socket to ZeroMQ, and the buffers in between."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Final

from onrig.runtime.link.pending import PendingConnection, Stage
from onrig.runtime.link.zmtp import GREETING_BYTES, FrameMeter

_MAX_UPWARD_READ_BYTES: Final = 65_536
_MAX_DOWNWARD_READ_BYTES: Final = 262_144
_TCP_ESTABLISHED: Final = 1
"""State of a TCP connection that neither end has closed (Linux)."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Relay:
    """Byte relay with back-pressure.

    The relay connects to ZeroMQ once the learner has sent a greeting and has a seat; until then it reads no more than a
    greeting.
    """

    def __init__(self, outer: socket.socket, connection: PendingConnection, max_frame_bytes: int) -> None:
        self.outer, self.connection = outer, connection
        self.inner: socket.socket | None = None
        self.name = b""
        """Name of the socket to ZeroMQ, as seen by its peer."""
        self.is_blocked = False
        """Whether reading is suspended because too much is in flight."""
        self._meter = FrameMeter(max_frame_bytes)
        self._upward_data = self._downward_data = b""
        self._has_upward_ended = self._has_downward_ended = False
        self._masks = [0, 0]

    @property
    def is_finished(self) -> bool:
        """Whether one end is closed and all its bytes have been forwarded."""
        return (self._has_upward_ended and (not self._upward_data or self.inner is None)) or (
            self._has_downward_ended and not self._downward_data
        )

    @property
    def _wants_data(self) -> bool:
        """Whether to read more from the learner."""
        if self._has_upward_ended:
            return False
        return not self.connection.greeting_received if self.inner is None else not self._upward_data

    @property
    def has_hung_up(self) -> bool:
        """Whether the learner has closed its end, even while reading is suspended."""
        return self.outer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _TCP_ESTABLISHED

    def forward_upwards(self, now_s: float, may_read: Callable[[PendingConnection], bool], inner_path: str) -> None:
        """Forward bytes to ZeroMQ at the Unix socket ``inner_path``; raises ZmtpError for invalid bytes, OSError if an
        end is closed."""
        if self._wants_data:
            self.is_blocked = not may_read(self.connection)
            max_bytes = GREETING_BYTES if self.inner is None else _MAX_UPWARD_READ_BYTES
            if not self.is_blocked and (data := _receive(self.outer, max_bytes)) is not None:
                self._has_upward_ended = not data
                self.connection.add_forwarded(self._meter.feed(data), now_s)
                self.connection.greeting_received = self._meter.greeting_received
                self._upward_data += data
        if self.inner is None and self.connection.stage is Stage.SEATED:
            self._connect(inner_path)
        if self._upward_data and self.inner is not None:
            self._upward_data = self._upward_data[_send(self.inner, self._upward_data) :]

    def forward_downwards(self) -> None:
        """Forward bytes to the learner; raises OSError if an end is closed."""
        if self.inner is None:
            return
        if (
            not self._downward_data
            and not self._has_downward_ended
            and (data := _receive(self.inner, _MAX_DOWNWARD_READ_BYTES)) is not None
        ):
            self._has_downward_ended = not data
            self._downward_data = data
        if self._downward_data:
            n_sent = _send(self.outer, self._downward_data)
            self.connection.sent_reply_bytes += n_sent
            self._downward_data = self._downward_data[n_sent:]

    def _connect(self, inner_path: str) -> None:
        self.inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.inner.setblocking(False)
        self.inner.bind("")  # Linux chooses an unused name
        self.name = self.inner.getsockname()
        self.inner.connect(inner_path)

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register both sockets for the events that allow forwarding."""
        events = [
            (_READ if self._wants_data and not self.is_blocked else 0) | (_WRITE if self._downward_data else 0),
            0,
        ]
        if self.inner is not None:
            events[1] = (_READ if not self._downward_data and not self._has_downward_ended else 0) | (
                _WRITE if self._upward_data else 0
            )
        for n, stream in enumerate((self.outer, self.inner)):
            if stream is None or events[n] == self._masks[n]:
                continue
            if not self._masks[n]:
                selector.register(stream, events[n], self)
            elif events[n]:
                selector.modify(stream, events[n], self)
            else:
                selector.unregister(stream)
            self._masks[n] = events[n]

    def close(self, selector: selectors.BaseSelector) -> None:
        """Close both ends."""
        for n, stream in enumerate((self.outer, self.inner)):
            if stream is not None:
                if self._masks[n]:
                    selector.unregister(stream)
                stream.close()


def _receive(source: socket.socket, max_bytes: int) -> bytes | None:
    try:
        return source.recv(max_bytes)
    except BlockingIOError:
        return None


def _send(target: socket.socket, data: bytes) -> int:
    try:
        return target.send(data)
    except BlockingIOError:
        return 0
