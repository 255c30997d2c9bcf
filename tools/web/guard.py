"""Who may see the page and who may stop the rig: pure checks of a request's headers."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import urlsplit

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
    """Why a request is turned away, in a line for whoever asked."""

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
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("Cookie", ""))
        except CookieError:
            return None
        morsel = cookies.get(self.cookie)
        return None if morsel is None else morsel.value


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.netloc.lower() == host.lower() and not parts.path and not parts.query
