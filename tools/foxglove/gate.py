"""Proxy that adds access control to the Foxglove server."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlsplit

from onrig.tools.web.connections import BoundedServer, Stage
from onrig.tools.web.guard import Listener, Refusal
from onrig.tools.web.server import ReplyHandler

MAX_VIEWERS: Final = 8
_FORWARDED_HEADERS: Final = (
    *("Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol"),
    "Sec-WebSocket-Extensions",
)
_CHUNK_BYTES: Final = 1 << 16
_UPGRADE_HINT: Final = (
    "this address is for viewers: in Foxglove or Lichtblick, open a 'Foxglove WebSocket' connection to it"
)


class Gate(BoundedServer):
    """Proxy that forwards a listener's connections to ``upstream``, an address on this machine."""

    def __init__(self, listener: Listener, upstream: tuple[str, int]) -> None:
        super().__init__(listener.listening_socket, Handler)
        self.guard, self.upstream = listener.guard, upstream
        self.viewer_slots = threading.BoundedSemaphore(MAX_VIEWERS)


class Handler(ReplyHandler):
    """Handler of one viewer."""

    server: Gate
    _token: str | None = None

    def do_GET(self) -> None:  # noqa: N802  (the standard library names it)
        """Check the request and connect the client to the server."""
        headers = self.checked_headers()
        with contextlib.suppress(ValueError):
            self._token = parse_qs(urlsplit(self.path).query, max_num_fields=8).get("token", [None])[0]
        guard = self.server.guard
        refusal = guard.refuse(headers, self._token) or guard.refuse_viewer(headers)
        if refusal is None and self.headers.get("Upgrade", "").lower() != "websocket":
            refusal = Refusal(HTTPStatus.UPGRADE_REQUIRED, _UPGRADE_HINT)
        if refusal is None and not self.server.viewer_slots.acquire(blocking=False):
            refusal = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers")
        if refusal is not None:
            self.request_complete()
            self.refuse(refusal)
            return
        try:
            self.request_complete(Stage.STREAMING)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # frees a lost viewer's slot
            with contextlib.suppress(OSError), socket.create_connection(self.server.upstream, self.timeout) as server:
                server.sendall(self._upstream_request())
                _relay(self.connection, server)
        finally:
            self.server.viewer_slots.release()

    def _upstream_request(self) -> bytes:
        host, port = self.server.upstream
        lines = ["GET / HTTP/1.1", f"Host: {host}:{port}"]
        for name in _FORWARDED_HEADERS:
            lines += [f"{name}: {' '.join(value.split())}" for value in self.headers.get_all(name, [])]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def _relay(client: socket.socket, server: socket.socket) -> None:
    """Copy data in both directions until one side closes. Raises OSError if a side does not read within its timeout."""
    poll = select.poll()
    directions = {client.fileno(): (client, server), server.fileno(): (server, client)}
    for descriptor in directions:
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            source, sink = directions[descriptor]
            data = source.recv(_CHUNK_BYTES)
            if not data:
                return
            sink.sendall(data)
