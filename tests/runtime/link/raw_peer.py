"""A learner without ZeroMQ, which can violate the protocol."""

from __future__ import annotations

import select
import socket
import time

from onrig.runtime.link.endpoint import TcpEndpoint
from onrig.runtime.link.messages import RequestMessage, encode
from tests.lab.mutants.peers import CONNECT_TIMEOUT_S, READY, frame, greeting, on_loopback

_CHUNK_BYTES = 65_536


class RawPeer:
    """One connection over tcp without keys; context manager.  OSError if the rig is silent."""

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self._line = socket.create_connection(on_loopback(endpoint), CONNECT_TIMEOUT_S)
        self._line.sendall(greeting() + READY)
        answer = b""
        while b"READY" not in answer and (data := self._line.recv(_CHUNK_BYTES)):  # ZeroMQ accepts no earlier message
            answer += data
        self._line.setblocking(False)
        self._n_requests = 0

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *error: object) -> None:
        self._line.close()

    def ask(self, request: RequestMessage) -> None:
        """Send a request; its answer is not read."""
        self._n_requests += 1
        number = self._n_requests.to_bytes(8, "little")
        self._line.settimeout(CONNECT_TIMEOUT_S)
        self._line.sendall(frame(number, more=True) + frame(encode(request)))
        self._line.setblocking(False)

    def flood(self, size: int, max_bytes: int, seconds: float) -> int:
        """Send frames of ``size`` bytes of one endless message; returns the number of bytes accepted.

        Stops at ``max_bytes``, after ``seconds``, or where the rig hangs up.
        """
        chunk = frame(bytes(size), more=True)
        chunk *= max(1, _CHUNK_BYTES // len(chunk))
        deadline_s, sent, unsent = time.monotonic() + seconds, 0, b""
        while sent < max_bytes and time.monotonic() < deadline_s:
            unsent = unsent or chunk
            if not select.select((), (self._line,), (), 0.05)[1]:
                continue
            try:
                n = self._line.send(unsent)
            except BlockingIOError:
                continue
            except OSError:
                break
            sent, unsent = sent + n, unsent[n:]
        return sent
