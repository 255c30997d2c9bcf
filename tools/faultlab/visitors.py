"""Visitors that wish the page no good: requests that are none, and readers that do not read.  Loopback only.

Those that only hold on to connections are a ``onrig.tools.faultlab.peers.Crowd``.
"""

from __future__ import annotations

import contextlib
import socket
from types import TracebackType
from typing import Final

MOST: Final = 1000
_PATIENCE_S: Final = 30.0
_HERE: Final = "127.0.0.1"
_SMALL: Final = 2048


def bad_requests(port: int) -> dict[str, bytes]:
    """Requests that are none, by what is wrong with them; each must get an answer (4xx or 5xx)."""
    origin = f"http://{_HERE}:{port}"
    order = (
        f"POST /api/stop HTTP/1.1\r\nHost: {_HERE}:{port}\r\nOrigin: {origin}\r\nContent-Type: application/json\r\n"
    ).encode()
    body = b'{"how":"now"}'
    get = f"GET / HTTP/1.1\r\nHost: {_HERE}:{port}\r\n".encode()
    return {
        "a length of 5000 digits": order + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n" + body,
        "a negative length": order + b"Content-Length: -13\r\n\r\n" + body,
        "a length with a sign": order + b"Content-Length: +13\r\n\r\n" + body,
        "a length with an underscore": order + b"Content-Length: 1_3\r\n\r\n" + body,
        "a length of other digits": order + "Content-Length: \u00b9\u00b3\r\n\r\n".encode("latin-1") + body,
        "two lengths": order + b"Content-Length: 13\r\nContent-Length: 12\r\n\r\n" + body,
        "no length": order + b"\r\n" + body,
        "chunked": order + b"Transfer-Encoding: chunked\r\n\r\nd\r\n" + body + b"\r\n0\r\n\r\n",
        "chunked with a length": order + b"Transfer-Encoding: chunked\r\nContent-Length: 13\r\n\r\n" + body,
        "a long body": order + b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000,
        "a long line": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        "a long header": get + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        "many headers": get + b"X: a\r\n" * 200 + b"\r\n",
        "a header without a colon": b"GET / HTTP/1.1\r\nnonsense\r\n\r\n",
        "a method that is none": b"\xff\xfe / HTTP/1.1\r\n\r\n",
        "a long method": b"A" * 5000 + b" / HTTP/1.1\r\n\r\n",
        "another version": b"GET / HTTP/9.9\r\n\r\n",
        "a version of 5000 digits": b"GET / HTTP/" + b"1" * 5000 + b".1\r\n\r\n",
        "a word": b"GET\r\n\r\n",
        "four words": b"GET / / HTTP/1.1\r\n\r\n",
        "an empty line": b"\r\n\r\n",
        "zeros": bytes(100) + b"\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\n",
    }


def answer(port: int, data: bytes) -> bytes:
    """Send a request as it is and read what comes back, to the end."""
    with socket.create_connection((_HERE, port), timeout=_PATIENCE_S) as line:
        with contextlib.suppress(OSError):
            line.sendall(data)
        got = b""
        with contextlib.suppress(OSError):
            while data := line.recv(65536):
                got += data
        return got


class StalledReaders:
    """Up to MOST connections that ask for ``path`` and read nothing; a context."""

    def __init__(self, port: int, count: int, path: str, *, source: str = _HERE) -> None:
        if count > MOST:
            raise ValueError(f"there are at most {MOST} of them")
        self._lines: list[socket.socket] = []
        for _ in range(count):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
            line.bind((source, 0))
            line.settimeout(_PATIENCE_S)
            line.connect((_HERE, port))
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: {_HERE}:{port}\r\n\r\n".encode())
            self._lines.append(line)

    def __enter__(self) -> StalledReaders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines:
            line.close()
