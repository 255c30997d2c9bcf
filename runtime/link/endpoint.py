"""Endpoints of the link: the section ``link``, and which endpoints are local to the machine."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from onrig.runtime.config.problem import NodePath

_TCP: Final = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.*-]+):(?P<port>\d{1,5})", re.ASCII)


class Tcp(NamedTuple):
    """A tcp endpoint as ZeroMQ writes it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether the endpoint is local to this machine: a literal loopback address, or ``localhost``."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def ipv6(self) -> bool:
        """Whether ZeroMQ needs its IPv6 option for the address."""
        return self.host.startswith("[")


def parse_tcp(text: str) -> Tcp:
    """Read ``tcp://HOST:PORT`` (``*`` for every interface, IPv6 in brackets); ValueError says what is wrong."""
    match = _TCP.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not an endpoint; expected tcp://HOST:PORT, with * for every interface")
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"port {port} is out of range; the highest is 65535")
    return Tcp(match["host"], port)


_BACKLOG: Final = 512
_SIOCGIFADDR: Final = 0x8915


def listening_at(endpoint: Tcp) -> socket.socket:
    """Bind a non-blocking listening socket; raises OSError."""
    family = socket.AF_INET6 if endpoint.ipv6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if endpoint.ipv6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((_host(listener, endpoint), endpoint.port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def endpoint_of(listener: socket.socket) -> str:
    """Endpoint of a listening socket, with its actual port."""
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _host(listener: socket.socket, endpoint: Tcp) -> str:
    host = endpoint.host.strip("[]")
    if host == "*":
        return "0.0.0.0"
    if not endpoint.ipv6 and host in {name for _, name in socket.if_nameindex()}:
        found = fcntl.ioctl(listener.fileno(), _SIOCGIFADDR, struct.pack("256s", host.encode()))
        return socket.inet_ntoa(found[20:24])
    return host


_REMEDY: Final = "make keys with `onrig keys DIR` and name their folder in link.keys"


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Access for learners on other machines; local ones use a separate socket."""

    listen: str | None = None
    """``tcp://HOST:PORT``, ``*`` for every interface; null: no remote learners."""
    keys: str | None = None
    """The rig's folder of keys (`onrig keys`)."""
    allow_plain_loopback: bool = False
    """Without keys: accept unencrypted connections to a loopback address, from any user of this machine."""
    admissions_per_s: Annotated[float, msgspec.Meta(ge=0.01, le=1000.0)] | msgspec.UnsetType = msgspec.UNSET
    """Policies judged per second of device time (default 1); unused in lockstep, where it is one at each barrier."""


def link_findings(link: Link) -> Iterator[tuple[NodePath, str]]:
    """List (path, message) for a link that would be open to others, or cannot work."""
    at = ("link", "listen")
    if link.listen is None:
        if link.keys is not None:
            yield ("link", "keys"), "keys have no effect without link.listen; give it as well, at link.keys"
        return
    try:
        tcp = parse_tcp(link.listen)
    except ValueError as error:
        yield at, f"{error} at link.listen"
        return
    if link.keys is not None:
        return
    if not tcp.loopback:
        yield at, f"{link.listen} is open to other machines without keys; {_REMEDY} at link.listen"
    elif not link.allow_plain_loopback:
        yield (
            at,
            f"plain tcp, without keys, needs link.allow_plain_loopback: true, or {_REMEDY} at link.listen",
        )
