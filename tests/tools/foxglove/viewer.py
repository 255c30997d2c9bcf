"""A viewer: the client's side of a WebSocket (RFC 6455) and of Foxglove's protocol, as far as the tests need it."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

TEXT, BINARY, CLOSE = 1, 2, 8
MESSAGE_DATA = 1


class Viewer:
    """A connection; a context manager."""

    def __init__(self, url: str, origin: str | None = None, timeout_s: float = 60.0) -> None:
        """Raises PermissionError with the first line of the reply if the server refuses."""
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout_s)
        self._stream = self._socket.makefile("rb")
        lines = [f"GET {parts.path}?{parts.query} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade"]
        lines += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: foxglove.sdk.v1"]
        lines += [f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        lines += [f"Origin: {origin}"] if origin else []
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        status = self._stream.readline().decode()
        while self._stream.readline().strip():
            pass
        if " 101 " not in status:
            self.close()
            raise PermissionError(status.strip())

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, kind: int, data: bytes) -> None:
        mask = os.urandom(4)
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        self._socket.sendall(bytes([0x80 | kind]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def ask(self, **fields: Any) -> None:
        self.send(TEXT, json.dumps(fields).encode())

    def frame(self) -> tuple[int, bytes]:
        """The next frame: kind and content, which is empty once the server has closed."""
        header = self._stream.read(2)
        if len(header) < 2:
            return CLOSE, b""
        size = header[1] & 0x7F
        if size > 125:
            code, n = (">H", 2) if size == 126 else (">Q", 8)
            (size,) = struct.unpack(code, self._stream.read(n))
        return header[0] & 0x0F, self._stream.read(size)

    def text(self, op: str) -> dict[str, Any]:
        """The next message in JSON of one kind."""
        while True:
            kind, data = self.frame()
            assert kind != CLOSE, "the server has gone"
            if kind == TEXT and (message := json.loads(data))["op"] == op:
                decoded: dict[str, Any] = message
                return decoded

    def message(self) -> tuple[int, int, bytes]:
        """The next message of a subscription: its number, time in ns, and content."""
        while True:
            kind, data = self.frame()
            assert kind != CLOSE, "the server has gone"
            if kind == BINARY and data[0] == MESSAGE_DATA:
                subscription, t_ns = struct.unpack("<IQ", data[1:13])
                return subscription, t_ns, data[13:]
