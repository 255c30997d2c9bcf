"""Gate in front of the Foxglove server, which has no access control of its own: it joins who may watch to it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlsplit

from onrig.tools.web.connections import BoundedServer, Stage
from onrig.tools.web.guard import Door, Refusal
from onrig.tools.web.server import AnsweringHandler

VIEWERS: Final = 8
_PASSED_ON: Final = (
    *("Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol"),
    "Sec-WebSocket-Extensions",
)
_BYTES: Final = 1 << 16
_HOW: Final = (
    "this is for viewers: in Foxglove or Lichtblick, open the connection 'Foxglove WebSocket' with this address"
)


class Gate(BoundedServer):
    """Takes connections at a door and passes them on to ``behind``, an address of this machine."""

    def __init__(self, door: Door, behind: tuple[str, int]) -> None:
        super().__init__(door.listening, Handler)
        self.guard, self.behind = door.guard, behind
        self.places = threading.BoundedSemaphore(VIEWERS)


class Handler(AnsweringHandler):
    """One viewer."""

    server: Gate
    _token: str | None = None

    def do_GET(self) -> None:  # noqa: N802  (the standard library names it)
        """Judge the request and join it to the server."""
        headers = self.judged_headers()
        with contextlib.suppress(ValueError):
            self._token = parse_qs(urlsplit(self.path).query, max_num_fields=8).get("token", [None])[0]
        guard = self.server.guard
        refusal = guard.refuse(headers, self._token) or guard.refuse_viewer(headers)
        if refusal is None and self.headers.get("Upgrade", "").lower() != "websocket":
            refusal = Refusal(HTTPStatus.UPGRADE_REQUIRED, _HOW)
        if refusal is None and not self.server.places.acquire(blocking=False):
            refusal = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers")
        if refusal is not None:
            self.arrived()
            self.refuse(refusal)
            return
        try:
            self.arrived(Stage.STREAMING)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # or a vanished one keeps its place
            with contextlib.suppress(OSError), socket.create_connection(self.server.behind, self.timeout) as server:
                server.sendall(self._request())
                _join(self.connection, server)
        finally:
            self.server.places.release()

    def _request(self) -> bytes:
        host, port = self.server.behind
        lines = ["GET / HTTP/1.1", f"Host: {host}:{port}"]
        for name in _PASSED_ON:
            lines += [f"{name}: {' '.join(value.split())}" for value in self.headers.get_all(name, [])]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def _join(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until one side ends, or does not read for its time-out, which raises OSError."""
    poll = select.poll()
    ends = {one.fileno(): (one, other), other.fileno(): (other, one)}
    for descriptor in ends:
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            source, sink = ends[descriptor]
            data = source.recv(_BYTES)
            if not data:
                return
            sink.sendall(data)
