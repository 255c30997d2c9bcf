"""Who may enter over tcp: the answers to ZeroMQ's authentication requests (ZAP, RFC 27) for CURVE.

The server answers them itself, in its one thread, between requests of learners.  pyzmq's authenticator would be a
second thread: one that dies leaves every handshake hanging, and one that shares the interpreter lock makes the replay
process wait.  Here nothing is asked and nobody enters while the server is busy for some milliseconds; that is all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import zmq

from onrig.runtime.link.keys import fingerprint

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
DOMAIN: Final = b"onrig"
_PER_TURN: Final = 16
_KEPT: Final = 64
_VERSION: Final = b"1.0"
_FRAMES: Final = 7
"""Version, request id, domain, address, identity, mechanism, one credential."""


def verdict(request: Sequence[bytes], allowed: Mapping[bytes, str], domain: bytes = DOMAIN) -> list[bytes]:
    """Answer a ZAP request: version, request id, status, text, user id, metadata.

    ``allowed`` maps public keys (32 bytes) to names.  The user id, which every message then bears, is
    ``NAME:FINGERPRINT``.
    Whatever is not exactly a CURVE request of our domain with an allowed key is refused (status 400).
    """
    request_id = request[1] if len(request) > 1 else b""
    if len(request) != _FRAMES or request[0] != _VERSION:
        return [_VERSION, request_id, b"400", b"malformed request", b"", b""]
    _, _, of_domain, _, _, mechanism, key = request
    if of_domain != domain or mechanism != b"CURVE":
        return [_VERSION, request_id, b"400", b"no CURVE of this domain", b"", b""]
    name = allowed.get(key)
    if name is None:
        return [_VERSION, request_id, b"400", b"unknown key", b"", b""]
    return [_VERSION, request_id, b"200", b"OK", f"{name}:{fingerprint(key)}".encode(), b""]


class Gate:
    """The handler's end of the ZAP channel of one context; it must be there before the guarded socket is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: Mapping[bytes, str]) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)
        self._allowed = allowed
        self.refused: list[str] = []
        """Fingerprints of keys refused since somebody last took note of them, a few at most."""

    def answer(self) -> None:
        """Answer what waits, a bounded number of requests at a time."""
        for _ in range(_PER_TURN):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply = verdict(request, self._allowed)
            if reply[2] != b"200" and len(self.refused) < _KEPT:
                self.refused.append(fingerprint(request[6]) if len(request) == _FRAMES else "?")
            self.socket.send_multipart(reply, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket: from now on nobody enters."""
        self.socket.close()
