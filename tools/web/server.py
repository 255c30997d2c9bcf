"""The page's server: files, a stream of events, and one order (stop)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from tools.web.assets import Asset
from tools.web.guard import JUDGED, SECURITY_HEADERS, Guard, Refusal
from tools.web.hub import Hub, Message

_CONNECTIONS: Final = 32
_PER_ADDRESS: Final = 16
"""Of them, for one address: a neighbour that holds on to all it gets leaves places for who wants to stop the rig."""
_PATIENCE_S: Final = 10.0
"""For a request to arrive whole, and for a watcher to take what it is sent."""
_PULSE_S: Final = 5.0
"""A comment goes out after so long a silence: it shows a browser that is gone."""
_ORDER_BYTES: Final = 256
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
        self._places = threading.Lock()
        self._taken: Counter[str] = Counter()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve a connection in a thread of its own, or turn it away where there are too many."""
        if not isinstance(request, socket.socket):
            raise TypeError("a stream socket was expected")
        if self._take_place(_host_of(client_address)):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread to be had
                self._give_place(_host_of(client_address))
                raise
            return
        with contextlib.suppress(OSError):
            request.settimeout(0.2)
            request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Give the place back when the connection is done."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._give_place(_host_of(client_address))

    def _take_place(self, host: str) -> bool:
        with self._places:
            free = self._taken.total() < _CONNECTIONS and self._taken[host] < _PER_ADDRESS
            self._taken[host] += free
            return free

    def _give_place(self, host: str) -> None:
        with self._places:
            self._taken[host] -= 1
            self._taken += Counter()  # addresses without a place are forgotten

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has gone is no error; nothing a page does is worth a line on the terminal."""


def _host_of(client_address: object) -> str:
    return str(client_address[0]) if isinstance(client_address, tuple) else ""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: PageServer
    server_version = "onrig"
    sys_version = ""
    timeout = _PATIENCE_S

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

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the run."""

    def do_GET(self) -> None:
        """Files, the stream, surfaces."""
        self._arrival.cancel()
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
        self._arrival.cancel()
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
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _ORDER_BYTES:
            return None
        try:
            return STOP_LEVELS.get(msgspec.json.decode(self.rfile.read(int(length)), type=Order).how)
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
