"""HTTP server of the page: files, event stream, surfaces and one command (stop)."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from onrig.tools.web.connections import BoundedServer, Hub, Message, Stage, TimedHandler
from onrig.tools.web.guard import CHECKED_HEADERS, SECURITY_HEADERS, Guard, Refusal

_KEEPALIVE_S: Final = 5.0
"""Interval between comments on an idle stream, which are written to detect closed browsers."""
_MAX_BODY_BYTES: Final = 256
_CONTENT_LENGTH: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
STOP_LEVELS: Final = {"fade": 1, "now": 2}
_CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """One file of the page."""

    content_type: str
    body: bytes


def load_assets() -> dict[str, Asset]:
    """Read all files in ``static`` and ``uplot``, keyed by URL path; ``/`` is the page.

    Requests are served from this dictionary, never from a path in the file system.
    """
    assets = {}
    package = files("onrig.tools.web")
    for file in (*package.joinpath("static").iterdir(), *package.joinpath("uplot").iterdir()):
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix in _CONTENT_TYPES:
            assets[f"/{file.name}"] = Asset(_CONTENT_TYPES[suffix], file.read_bytes())
    assets["/"] = assets["/index.html"]
    return assets


class StopRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a POST to /api/stop."""

    how: str


class Site(NamedTuple):
    """Contents and commands that a server offers."""

    guard: Guard
    assets: dict[str, Asset]
    hub: Hub
    snapshot: Callable[[], list[Message]]
    surface: Callable[[int, int, int], dict[str, object] | None]
    """Function that maps (policy id, x, y) to a surface."""
    stop: Callable[[int], bool]
    """Function that stops the run at a level (1: fade out, 2: disarm now) and returns False if no run is active."""


class PageServer(BoundedServer):
    """Server of a site on a listening socket."""

    def __init__(self, listening: socket.socket, site: Site) -> None:
        super().__init__(listening, Handler)
        self.site = site


class ReplyHandler(TimedHandler):
    """Handler of one request, with the replies that all servers here share."""

    def checked_headers(self) -> dict[str, str]:
        """Return the headers that the guard checks; a repeated header counts as missing."""
        values_by_name = {name: self.headers.get_all(name, []) for name in CHECKED_HEADERS}
        return {name: values[0] for name, values in values_by_name.items() if len(values) == 1}

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors of the standard library (malformed HTTP, unknown method) in this server's format."""
        self.refuse(Refusal(HTTPStatus(code), message or HTTPStatus(code).phrase))

    def refuse(self, refusal: Refusal) -> None:
        body = msgspec.json.encode({"error": refusal.reason})
        self.respond(refusal.status, body, "application/json")

    def respond(self, status: HTTPStatus, body: bytes, content_type: str, cookie: str | None = None) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.common_headers(content_type)
            if cookie is not None:
                self.send_header("Set-Cookie", cookie)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def common_headers(self, content_type: str) -> None:
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", "close")
        for name, value in SECURITY_HEADERS.items():
            self.send_header(name, value)


class Handler(ReplyHandler):
    """Handler of one request."""

    server: PageServer

    def do_GET(self) -> None:  # noqa: N802  (the standard library names it)
        """Serve a file, the stream or a surface."""
        self.request_complete()
        site = self.server.site
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=8)
        except ValueError:
            self.refuse(Refusal(HTTPStatus.BAD_REQUEST, "malformed URL"))
            return
        query_token = query.get("token", [None])[0]
        refusal = site.guard.refuse(self.checked_headers(), query_token)
        if refusal is not None:
            self.refuse(refusal)
        elif url.path == "/api/stream":
            self._stream()
        elif url.path == "/api/surface":
            self._surface(query)
        elif url.path in site.assets:
            asset = site.assets[url.path]
            cookie = site.guard.set_cookie if query_token is not None else None
            self.respond(HTTPStatus.OK, asset.body, asset.content_type, cookie)
        else:
            self.refuse(Refusal(HTTPStatus.NOT_FOUND, "unknown path"))

    def do_POST(self) -> None:  # noqa: N802
        """Stop the run, the only command."""
        site = self.server.site
        headers = self.checked_headers()
        refusal = site.guard.refuse(headers) or site.guard.refuse_command(headers)
        if refusal is None and self.path != "/api/stop":
            refusal = Refusal(HTTPStatus.NOT_FOUND, "unknown path")
        if refusal is not None:
            self.refuse(refusal)
            return
        level = self._level()
        self.request_complete()
        if level is None:
            self.refuse(Refusal(HTTPStatus.BAD_REQUEST, 'expected {"how": "fade"} or {"how": "now"}'))
        elif not site.stop(level):
            self.refuse(Refusal(HTTPStatus.CONFLICT, "no run is active"))
        else:
            self.respond(HTTPStatus.OK, b'{"stopping":true}', "application/json")

    def _level(self) -> int | None:
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or not _CONTENT_LENGTH.fullmatch(lengths[0]) or "Transfer-Encoding" in self.headers:
            return None
        if (length := int(lengths[0])) > _MAX_BODY_BYTES:
            return None
        try:
            return STOP_LEVELS.get(msgspec.json.decode(self.rfile.read(length), type=StopRequest).how)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            return None

    def _surface(self, query: dict[str, list[str]]) -> None:
        try:
            policy_id, x, y = (int(query[name][0]) for name in ("policy", "x", "y"))
        except (KeyError, ValueError):
            self.refuse(Refusal(HTTPStatus.BAD_REQUEST, "expected ?policy=ID&x=I&y=J"))
            return
        surface = self.server.site.surface(policy_id, x, y)
        if surface is None:
            self.refuse(Refusal(HTTPStatus.NOT_FOUND, "unknown policy or observation"))
        else:
            self.respond(HTTPStatus.OK, msgspec.json.encode(surface), "application/json")

    def _stream(self) -> None:
        site = self.server.site
        watcher = site.hub.join(site.snapshot)
        if watcher is None:
            self.refuse(Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open"))
            return
        self.request_complete(Stage.STREAMING)
        try:
            self.send_response(HTTPStatus.OK)
            self.common_headers("text/event-stream; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"retry: 2000\n\n")
            while (data := watcher.next(_KEEPALIVE_S)) != b"":
                self.wfile.write(b": keepalive\n\n" if data is None else data)
                self.wfile.flush()
        except OSError:
            pass
        finally:
            site.hub.leave(watcher)
