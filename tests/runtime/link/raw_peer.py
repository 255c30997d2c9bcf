"""A learner without ZeroMQ, which can violate the protocol."""

from __future__ import annotations

import select
import socket
import time

from onrig.runtime.link.endpoint import TcpEndpoint
from onrig.runtime.link.messages import RequestMessage, encode
from tests.lab.mutants.peers import CONNECT_TIMEOUT_S, READY, frame, greeting, on_loopback

_PIECE = 65_536


class RawPeer:
    """One connection over tcp without keys; a context.  OSError where the rig is silent."""

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self._line = socket.create_connection(on_loopback(endpoint), CONNECT_TIMEOUT_S)
        self._line.sendall(greeting() + READY)
        answer = b""
        while b"READY" not in answer and (data := self._line.recv(_PIECE)):  # ZeroMQ takes no message before that
            answer += data
        self._line.setblocking(False)
        self._asked = 0

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *error: object) -> None:
        self._line.close()

    def ask(self, request: RequestMessage) -> None:
        """Send a request; its answer is not read."""
        self._asked += 1
        number = self._asked.to_bytes(8, "little")
        self._line.settimeout(CONNECT_TIMEOUT_S)
        self._line.sendall(frame(number, more=True) + frame(encode(request)))
        self._line.setblocking(False)

    def flood(self, size: int, most_bytes: int, seconds: float) -> int:
        """Send frames of ``size`` bytes of one message that never ends; how many bytes were taken.

        Stops at ``most_bytes``, after ``seconds``, or where the rig hangs up.
        """
        piece = frame(bytes(size), more=True)
        piece *= max(1, _PIECE // len(piece))
        limit, sent, rest = time.monotonic() + seconds, 0, b""
        while sent < most_bytes and time.monotonic() < limit:
            rest = rest or piece
            if not select.select((), (self._line,), (), 0.05)[1]:
                continue
            try:
                n = self._line.send(rest)
            except BlockingIOError:
                continue
            except OSError:
                break
            sent, rest = sent + n, rest[n:]
        return sent
