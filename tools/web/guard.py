"""Address of the page and access control: who may see the page and stop the rig."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

TOKEN: Final = "ONRIG_WEB_TOKEN"
"""Environment variable that contains a restarted page's token; on a command line, all users could see the token."""
FIRST_PORT: Final = 8089
_PORTS_TRIED: Final = 20
_BACKLOG: Final = 128
_ALL_INTERFACES: Final = ("", "*", "0.0.0.0", "::")
VIEWER_ORIGINS: Final = ("https://app.foxglove.dev",)
"""Origins of third-party viewers that run in a browser."""
_DOCUMENTATION_HOST: Final = "192.0.2.1"
"""Address reserved for documentation (RFC 5737). Connecting a UDP socket to it sends nothing, and selects the default
route's local address."""


class Address(NamedTuple):
    """Requested address."""

    host: str
    port: int | None
    """Port, or None for the first free one."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


def parse_address(text: str) -> Address:
    """Parse ``""`` (loopback), ``PORT``, ``HOST:PORT`` or ``[HOST]:PORT``. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not text:
        return Address("127.0.0.1", None)
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"expected PORT or HOST:PORT with a port from 1 to 65535, got '{text}'")
    if not host:
        return Address("0.0.0.0" if text.startswith(":") else "127.0.0.1", int(port))
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"write an IPv6 address in brackets: [{host}]:{port}")
    return Address("0.0.0.0" if host == "*" else host, int(port))


def listen_at(address: Address, first_port: int = FIRST_PORT) -> socket.socket:
    """Bind and listen, at the first free port from ``first_port`` if the address has no port. Raises OSError."""
    ports = [address.port] if address.port is not None else list(range(first_port, first_port + _PORTS_TRIED))
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    failure: OSError | None = None
    for port in ports:
        listening_socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening_socket.bind((address.host, port))
            listening_socket.listen(_BACKLOG)
        except OSError as error:
            listening_socket.close()
            failure = error
            continue
        return listening_socket
    reason = failure.strerror if failure is not None else "no port"
    location = f"{address.host}:{ports[0]}" if len(ports) == 1 else f"{address.host}, ports {ports[0]} to {ports[-1]}"
    raise OSError(f"{location}: {reason}; choose another port")


def new_token() -> str:
    """Return a random access token."""
    return secrets.token_urlsafe(24)


def format_url(address: Address, port: int, token: str | None, scheme: str = "http") -> str:
    """Return the URL to open in a browser, with the token if any."""
    host = local_address() if address.host in _ALL_INTERFACES else address.host
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}/" + (f"?token={token}" if token else "")


def local_address() -> str:
    """Return this machine's address on the local network, or its host name if there is no network."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_DOCUMENTATION_HOST, 9))
        return str(probe.getsockname()[0])
    return socket.gethostname()


_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")

CHECKED_HEADERS: Final = ("Host", "Origin", "Cookie", "Content-Type", "Sec-Fetch-Site")
"""Headers that the access rules use."""
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refusal(NamedTuple):
    """HTTP status of a refused request, with the reason in one line."""

    status: HTTPStatus
    reason: str


class Guard:
    """Access rules of one server.

    A page from another site can make a browser send requests to this server. But it cannot set Host or Origin, which
    then contain that site's name (even after DNS rebinding), and it does not have the cookie with the token.
    """

    def __init__(self, port: int, token: str | None, names: Iterable[str] = ()) -> None:
        """Accept ``names``, this machine's host names, in addition to addresses and localhost."""
        self._port, self._token = port, token
        self._names = {"localhost", *(n.lower() for n in names if n)}

    @property
    def cookie(self) -> str:
        """Name of the token's cookie, which contains the port because a host's cookies are sent to all of its ports."""
        return f"onrig_{self._port}"

    @property
    def set_cookie(self) -> str | None:
        """Value of the Set-Cookie header with the token; None if there is no token."""
        if self._token is None:
            return None
        return f"{self.cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"

    def refuse(self, headers: Mapping[str, str], query_token: str | None = None) -> Refusal | None:
        """Return why a request is refused, or None; ``query_token`` is the token in the request's URL."""
        if not self._is_own_host(headers.get("Host", "")):
            return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "this server is not known by that name")
        if self._token is None or self._matches_token(query_token) or self._matches_token(self._cookie_of(headers)):
            return None
        return Refusal(HTTPStatus.UNAUTHORIZED, "open the address printed by onrig, which ends with ?token=...")

    def refuse_command(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request that changes something is refused, or None: it must come from this server's own page."""
        origin, host = headers.get("Origin"), headers.get("Host", "")
        if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return Refusal(HTTPStatus.FORBIDDEN, "commands are accepted from this page only")
        if origin is None or not _is_same_site(origin, host):
            return Refusal(HTTPStatus.FORBIDDEN, "commands are accepted from this page only (Origin)")
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        return None

    def refuse_viewer(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a WebSocket request, which browsers allow any site to send, is refused, or None.

        Programs, pages from this machine and Foxglove's pages are accepted. If there is a token (which `refuse`
        checks), any origin is accepted.
        """
        origin = headers.get("Origin")
        if self._token is not None or origin is None or origin == "file://" or origin in VIEWER_ORIGINS:
            return None
        with contextlib.suppress(ValueError):
            if Address(urlsplit(origin).hostname or "", None).is_loopback:
                return None
        return Refusal(HTTPStatus.FORBIDDEN, f"pages of {origin} may not connect; use the address with the token")

    def _is_own_host(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None or int(match["port"] or 80) != self._port:
            return False
        name = match["name"].lower()
        if name in self._names:
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.strip("[]"))
            return True  # DNS rebinding needs a host name; an address cannot be rebound
        return False

    def _matches_token(self, given_token: str | None) -> bool:
        if self._token is None or given_token is None:
            return False
        return hmac.compare_digest(given_token.encode(), self._token.encode())

    def _cookie_of(self, headers: Mapping[str, str]) -> str | None:
        # In http.cookies, one malformed cookie, perhaps set by another port, would discard all the others.
        for part in headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie:
                return value
        return None


def _is_same_site(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.netloc.lower() == host.lower() and not parts.path and not parts.query


class Listener(NamedTuple):
    """Listening socket with its access rules and URL."""

    listening_socket: socket.socket
    guard: Guard
    url: str


def listen(text: str, scheme: str = "http", first_port: int = FIRST_PORT) -> Listener:
    """Listen at an address (see `parse_address`). Raises ValueError or OSError.

    Except on loopback, clients need a token: the one in the environment, so that a restarted server keeps its token, or
    a new one.
    """
    address = parse_address(text)
    listening_socket = listen_at(address, first_port)
    port = int(listening_socket.getsockname()[1])
    if address.is_loopback:
        return Listener(listening_socket, Guard(port, None), format_url(address, port, None, scheme))
    token = os.environ.get(TOKEN) or new_token()
    names = (address.host, socket.gethostname(), f"{socket.gethostname()}.local")
    return Listener(listening_socket, Guard(port, token, names), format_url(address, port, token, scheme))
