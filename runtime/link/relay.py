"""One TCP connection: the learner's socket, the socket to ZeroMQ, and the buffers in between."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Final

from onrig.runtime.link.pending import PendingConnection, Stage
from onrig.runtime.link.zmtp import GREETING_BYTES, FrameMeter

_UP_PIECE: Final = 65_536
_DOWN_PIECE: Final = 262_144
_ESTABLISHED: Final = 1
"""State of a TCP connection that neither end has closed (Linux)."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Relay:
    """Byte relay with back-pressure.

    A connection to ZeroMQ is made once the learner has sent a greeting and has a seat; until then no more than a
    greeting is read.
    """

    def __init__(self, outer: socket.socket, connection: PendingConnection, longest: int) -> None:
        self.outer, self.connection = outer, connection
        self.inner: socket.socket | None = None
        self.name = b""
        """Name of the socket to ZeroMQ, as seen by its peer."""
        self.blocked = False
        """Whether reading is suspended because too much is in flight."""
        self._meter = FrameMeter(longest)
        self._up = self._down = b""
        self._up_ended = self._down_ended = False
        self._masks = [0, 0]

    @property
    def finished(self) -> bool:
        """Whether one end is closed and all its bytes have been forwarded."""
        return (self._up_ended and (not self._up or self.inner is None)) or (self._down_ended and not self._down)

    @property
    def _reads(self) -> bool:
        """Whether to read more from the learner."""
        if self._up_ended:
            return False
        return not self.connection.signed if self.inner is None else not self._up

    @property
    def hung_up(self) -> bool:
        """Whether the learner has closed its end, even while reading is suspended."""
        return self.outer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED

    def upwards(self, now_s: float, may_read: Callable[[PendingConnection], bool], inner: str) -> None:
        """Forward to ZeroMQ, at the Unix socket ``inner``; raises ZmtpError, or OSError if one end is closed."""
        if self._reads:
            self.blocked = not may_read(self.connection)
            maximum = GREETING_BYTES if self.inner is None else _UP_PIECE
            if not self.blocked and (data := _received(self.outer, maximum)) is not None:
                self._up_ended = not data
                self.connection.add_forwarded(self._meter.feed(data), now_s)
                self.connection.signed = self._meter.signed
                self._up += data
        if self.inner is None and self.connection.stage is Stage.SEATED:
            self._connect(inner)
        if self._up and self.inner is not None:
            self._up = self._up[_sent(self.inner, self._up) :]

    def downwards(self) -> None:
        """Forward to the learner; raises OSError if one end is closed."""
        if self.inner is None:
            return
        if not self._down and not self._down_ended and (data := _received(self.inner, _DOWN_PIECE)) is not None:
            self._down_ended = not data
            self._down = data
        if self._down:
            sent = _sent(self.outer, self._down)
            self.connection.left += sent
            self._down = self._down[sent:]

    def _connect(self, inner: str) -> None:
        self.inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.inner.setblocking(False)
        self.inner.bind("")  # Linux picks an unused name
        self.name = self.inner.getsockname()
        self.inner.connect(inner)

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register for the events that allow forwarding."""
        events = [(_READ if self._reads and not self.blocked else 0) | (_WRITE if self._down else 0), 0]
        if self.inner is not None:
            events[1] = (_READ if not self._down and not self._down_ended else 0) | (_WRITE if self._up else 0)
        for n, end in enumerate((self.outer, self.inner)):
            if end is None or events[n] == self._masks[n]:
                continue
            if not self._masks[n]:
                selector.register(end, events[n], self)
            elif events[n]:
                selector.modify(end, events[n], self)
            else:
                selector.unregister(end)
            self._masks[n] = events[n]

    def close(self, selector: selectors.BaseSelector) -> None:
        """Close both ends."""
        for n, end in enumerate((self.outer, self.inner)):
            if end is not None:
                if self._masks[n]:
                    selector.unregister(end)
                end.close()


def _received(end: socket.socket, maximum: int) -> bytes | None:
    try:
        return end.recv(maximum)
    except BlockingIOError:
        return None


def _sent(end: socket.socket, data: bytes) -> int:
    try:
        return end.send(data)
    except BlockingIOError:
        return 0
