"""Address of the page, and access control: who may see it and who may stop the rig."""

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
"""Environment variable (a command line is for all to see) with the token of a page that is started again."""
FIRST_PORT: Final = 8089
_TRIED: Final = 20
_BACKLOG: Final = 128
_ANY: Final = ("", "*", "0.0.0.0", "::")
APPLICATIONS: Final = ("https://app.foxglove.dev",)
"""Origins of viewers that run in a browser."""
_NOWHERE: Final = "192.0.2.1"
"""An address for documentation: asking for a route to it sends nothing and names this machine's own address."""


class Address(NamedTuple):
    """What was asked for."""

    host: str
    port: int | None
    """None: the first free one."""

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


def parse_address(text: str) -> Address:
    """Read ``""`` (loopback), ``PORT``, ``HOST:PORT`` or ``[HOST]:PORT``; raises ValueError with what is wrong."""
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
    """Bind and listen, unless a port is given at the first free one; raises OSError with a message of its own."""
    ports = [address.port] if address.port is not None else list(range(first_port, first_port + _TRIED))
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    failure: OSError | None = None
    for port in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address.host, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            failure = error
            continue
        return listening
    why = failure.strerror if failure is not None else "no port"
    where = f"{address.host}:{ports[0]}" if len(ports) == 1 else f"{address.host}, ports {ports[0]} to {ports[-1]}"
    raise OSError(f"{where}: {why}; choose another port")


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(24)


def url_of(address: Address, port: int, token: str | None, scheme: str = "http") -> str:
    """What a person opens."""
    host = own_address() if address.host in _ANY else address.host
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}/" + (f"?token={token}" if token else "")


def own_address() -> str:
    """This machine's address as others see it; its name where it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_NOWHERE, 9))
        return str(probe.getsockname()[0])
    return socket.gethostname()


_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")

JUDGED: Final = ("Host", "Origin", "Cookie", "Content-Type", "Sec-Fetch-Site")
"""Headers that the rules look at."""
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
    """One-line reason for a refused request."""

    status: HTTPStatus
    reason: str


class Guard:
    """The rules for one server.

    A page of another site may make a browser send requests here, but can set neither Host (which it resolves itself;
    DNS rebinding: it names that site) nor Origin (which names that site), and does not have the token's cookie.
    """

    def __init__(self, port: int, token: str | None, names: Iterable[str] = ()) -> None:
        """``names``: host names by which this machine may be called, beside addresses and localhost."""
        self._port, self._token = port, token
        self._names = {"localhost", *(n.lower() for n in names if n)}

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds the token: one for each port, since cookies do not tell ports apart."""
        return f"onrig_{self._port}"

    @property
    def set_cookie(self) -> str | None:
        """Header value that hands the token to a browser; None where none is needed."""
        if self._token is None:
            return None
        return f"{self.cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"

    def refuse(self, headers: Mapping[str, str], query_token: str | None = None) -> Refusal | None:
        """Judge any request; ``query_token`` is what its address says."""
        if not self._knows(headers.get("Host", "")):
            return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "this server is not known by that name")
        if self._token is None or self._matches(query_token) or self._matches(self._cookie_of(headers)):
            return None
        return Refusal(HTTPStatus.UNAUTHORIZED, "open the address that onrig printed: it ends with ?token=...")

    def refuse_order(self, headers: Mapping[str, str]) -> Refusal | None:
        """Judge a request that does something: it must come from our own page, or from no page at all."""
        origin, host = headers.get("Origin"), headers.get("Host", "")
        if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return Refusal(HTTPStatus.FORBIDDEN, "orders are taken from this page alone")
        if origin is None or not _same(origin, host):
            return Refusal(HTTPStatus.FORBIDDEN, "orders are taken from this page alone (Origin)")
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        return None

    def refuse_viewer(self, headers: Mapping[str, str]) -> Refusal | None:
        """Judge a WebSocket request, which a browser lets the pages of every site make.

        Programs, pages of this machine and Foxglove's own are taken; with a token, which `refuse` has checked, all.
        """
        origin = headers.get("Origin")
        if self._token is not None or origin is None or origin == "file://" or origin in APPLICATIONS:
            return None
        with contextlib.suppress(ValueError):
            if Address(urlsplit(origin).hostname or "", None).is_loopback:
                return None
        return Refusal(HTTPStatus.FORBIDDEN, f"pages of {origin} may not watch; give an address with a token to those")

    def _knows(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None or int(found["port"] or 80) != self._port:
            return False
        name = found["name"].lower()
        if name in self._names:
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.strip("[]"))
            return True  # no other site can make its own name an address
        return False

    def _matches(self, offered: str | None) -> bool:
        if self._token is None or offered is None:
            return False
        return hmac.compare_digest(offered.encode(), self._token.encode())

    def _cookie_of(self, headers: Mapping[str, str]) -> str | None:
        # Not http.cookies: cookies of this host's other ports come along, and one that it cannot read hides the rest.
        for part in headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie:
                return value
        return None


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.netloc.lower() == host.lower() and not parts.path and not parts.query


class Door(NamedTuple):
    """A listening socket with the rules for who may come in."""

    listening: socket.socket
    guard: Guard
    url: str


def open_door(text: str, scheme: str = "http", first_port: int = FIRST_PORT) -> Door:
    """Listen at an address (see `parse_address`); raises ValueError or OSError.

    Off loopback a token is needed: that of the environment, so that a restarted server keeps it, or a new one.
    """
    address = parse_address(text)
    listening = listen_at(address, first_port)
    port = int(listening.getsockname()[1])
    if address.is_loopback:
        return Door(listening, Guard(port, None), url_of(address, port, None, scheme))
    token = os.environ.get(TOKEN) or new_token()
    names = (address.host, socket.gethostname(), f"{socket.gethostname()}.local")
    return Door(listening, Guard(port, token, names), url_of(address, port, token, scheme))
