"""The page's server: files, a stream of events, and one order (stop)."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from onrig.tools.web.assets import Asset
from onrig.tools.web.guard import JUDGED, SECURITY_HEADERS, Guard, Refusal
from onrig.tools.web.hub import Hub, Message
from onrig.tools.web.places import Places, Stage

_PATIENCE_S: Final = 10.0
"""For a request to arrive whole, and for a watcher to take what it is sent."""
_PULSE_S: Final = 5.0
"""A comment goes out after so long a silence: it shows a browser that is gone."""
_ORDER_BYTES: Final = 256
_LENGTH: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_UNREAD_BYTES: Final = 1 << 18
_UNREAD_S: Final = 0.5
"""What came and was not read is taken in so far before a connection is closed: else its answer would be lost."""
_BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\n"
_TOO_SLOW: Final = b"HTTP/1.0 408 Request Timeout\r\nConnection: close\r\n\r\n"
STOP_LEVELS: Final = {"fade": 1, "now": 2}


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a POST to /api/stop."""

    how: str


class Site(NamedTuple):
    """What is served."""

    guard: Guard
    assets: dict[str, Asset]
    hub: Hub
    story_so_far: Callable[[], list[Message]]
    surface: Callable[[int, int, int], dict[str, object] | None]
    """(policy id, x, y) to the surface."""
    stop: Callable[[int], bool]
    """Level (1 fades out, 2 at once); False where nothing runs."""


class PageServer(ThreadingHTTPServer):
    """Serves a site on a listening socket, with a bounded number of connections."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, site: Site) -> None:
        self.address_family = listening.family
        super().__init__(listening.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.site = site
        self._lock = threading.Lock()
        self._places: Places[socket.socket] = Places()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve a connection in a thread of its own; where there are too many, one gives way or it is turned away."""
        if not isinstance(request, socket.socket):
            raise TypeError("a stream socket was expected")
        with self._lock:
            place, left = self._places.take(_host_of(client_address), request)
            if left is not None:
                hang_up(left.who, _BUSY if left.stage is Stage.ARRIVING else b"")
        if place is None:
            with contextlib.suppress(OSError):
                request.settimeout(0.2)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._leave(request)
            raise

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Give the place back when the connection is done."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            if isinstance(request, socket.socket):
                self._leave(request)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection; while it has a place, nobody else hangs up on a descriptor that is another's by then."""
        if isinstance(request, socket.socket):
            self._leave(request)
        super().shutdown_request(request)

    def _leave(self, request: socket.socket) -> None:
        with self._lock:
            place = self._places.of(request)
            if place is not None:
                self._places.give(place)

    def come_to(self, request: socket.socket, stage: Stage) -> None:
        """Note how far a connection has come."""
        with self._lock:
            place = self._places.of(request)
            if place is not None:
                place.stage = stage

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has gone is no error; nothing a page does is worth a line on the terminal."""


def hang_up(line: socket.socket, word: bytes) -> None:
    """End a connection from another thread, with a last word if it takes one at once."""
    with contextlib.suppress(OSError):
        if word:
            line.send(word, socket.MSG_DONTWAIT)
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _host_of(client_address: object) -> str:
    return str(client_address[0]) if isinstance(client_address, tuple) else ""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: PageServer
    server_version = "onrig"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # who names no version gets an answer of today all the same
    timeout = _PATIENCE_S
    raw_requestline: bytes

    def setup(self) -> None:
        """A request that comes a byte at a time is no reason to wait for ever: it must be there whole in good time."""
        super().setup()
        self._arrival = threading.Timer(_PATIENCE_S, self._give_up)
        self._arrival.daemon = True
        self._arrival.start()

    def finish(self) -> None:
        """End of the connection."""
        self._arrival.cancel()
        super().finish()
        self._read_on()

    def _read_on(self) -> None:
        """Take in what has come and nobody has read, for a moment: closing on it would cost the answer."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            limit, unread = time.monotonic() + _UNREAD_S, _UNREAD_BYTES
            while unread > 0 and (left_s := limit - time.monotonic()) > 0:
                self.connection.settimeout(left_s)
                if not (data := self.connection.recv(65536)):
                    return
                unread -= len(data)

    def _give_up(self) -> None:
        hang_up(self.connection, _TOO_SLOW)

    def _arrived(self, stage: Stage = Stage.ANSWERING) -> None:
        self._arrival.cancel()
        self.server.come_to(self.connection, stage)

    def parse_request(self) -> bool:
        """Read the request's head; an empty line is answered, too."""
        if not self.raw_requestline.strip():
            self.requestline, self.request_version, self.command = "", self.default_request_version, ""
            self.close_connection = True
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return super().parse_request()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the run."""

    def do_GET(self) -> None:
        """Files, the stream, surfaces."""
        self._arrived()
        site = self.server.site
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=8)
        except ValueError:
            self._refuse(Refusal(HTTPStatus.BAD_REQUEST, "this is no address"))
            return
        offered = query.get("token", [None])[0]
        refusal = site.guard.refuse(self._named_headers(), offered)
        if refusal is not None:
            self._refuse(refusal)
        elif url.path == "/api/stream":
            self._stream()
        elif url.path == "/api/surface":
            self._surface(query)
        elif url.path in site.assets:
            asset = site.assets[url.path]
            cookie = site.guard.set_cookie if offered is not None else None
            self._answer(HTTPStatus.OK, asset.body, asset.content_type, cookie)
        else:
            self._refuse(Refusal(HTTPStatus.NOT_FOUND, "there is nothing here"))

    def do_POST(self) -> None:
        """The one order."""
        site = self.server.site
        headers = self._named_headers()
        refusal = site.guard.refuse(headers) or site.guard.refuse_order(headers)
        if refusal is None and self.path != "/api/stop":
            refusal = Refusal(HTTPStatus.NOT_FOUND, "there is nothing here")
        if refusal is not None:
            self._refuse(refusal)
            return
        level = self._level()
        self._arrived()
        if level is None:
            self._refuse(Refusal(HTTPStatus.BAD_REQUEST, 'expected {"how": "fade"} or {"how": "now"}'))
        elif not site.stop(level):
            self._refuse(Refusal(HTTPStatus.CONFLICT, "nothing is running"))
        else:
            self._answer(HTTPStatus.OK, b'{"stopping":true}', "application/json")

    def _named_headers(self) -> dict[str, str]:
        """The headers that are judged; one that comes twice is none."""
        found = {name: self.headers.get_all(name, []) for name in JUDGED}
        return {name: values[0] for name, values in found.items() if len(values) == 1}

    def _level(self) -> int | None:
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]) or "Transfer-Encoding" in self.headers:
            return None
        if (length := int(lengths[0])) > _ORDER_BYTES:
            return None
        try:
            return STOP_LEVELS.get(msgspec.json.decode(self.rfile.read(length), type=Order).how)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            return None

    def _surface(self, query: dict[str, list[str]]) -> None:
        try:
            policy_id, x, y = (int(query[name][0]) for name in ("policy", "x", "y"))
        except (KeyError, ValueError):
            self._refuse(Refusal(HTTPStatus.BAD_REQUEST, "expected ?policy=ID&x=I&y=J"))
            return
        surface = self.server.site.surface(policy_id, x, y)
        if surface is None:
            self._refuse(Refusal(HTTPStatus.NOT_FOUND, "there is no such surface"))
        else:
            self._answer(HTTPStatus.OK, msgspec.json.encode(surface), "application/json")

    def _stream(self) -> None:
        site = self.server.site
        watcher = site.hub.join(site.story_so_far)
        if watcher is None:
            self._refuse(Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open"))
            return
        self._arrived(Stage.STREAMING)
        try:
            self.send_response(HTTPStatus.OK)
            self._headers("text/event-stream; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"retry: 2000\n\n")
            while (data := watcher.next(_PULSE_S)) != b"":
                self.wfile.write(b": still here\n\n" if data is None else data)
                self.wfile.flush()
        except OSError:
            pass
        finally:
            site.hub.leave(watcher)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library turns away by itself (no HTTP, an unknown method) is answered as all else is."""
        self._refuse(Refusal(HTTPStatus(code), message or HTTPStatus(code).phrase))

    def _refuse(self, refusal: Refusal) -> None:
        body = msgspec.json.encode({"error": refusal.reason})
        self._answer(refusal.status, body, "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str, cookie: str | None = None) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            self._headers(content_type)
            if cookie is not None:
                self.send_header("Set-Cookie", cookie)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":  # whose answer has no body, not even one that says no
                self.wfile.write(body)

    def _headers(self, content_type: str) -> None:
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", "close")
        for name, value in SECURITY_HEADERS.items():
            self.send_header(name, value)
