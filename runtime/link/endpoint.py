"""Where a rig listens and a learner connects: which endpoints there may be, and which of them stay on the machine."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from typing import Final, NamedTuple

_TCP: Final = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.*-]+):(?P<port>\d{1,5})", re.ASCII)


class Tcp(NamedTuple):
    """A tcp endpoint as ZeroMQ writes it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether nobody outside this machine can reach it: a literal loopback address, or ``localhost``."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def ipv6(self) -> bool:
        """Whether ZeroMQ must be told that the address is one of IPv6."""
        return self.host.startswith("[")


def parse_tcp(text: str) -> Tcp:
    """Read ``tcp://HOST:PORT`` (``*`` for every interface, IPv6 in brackets); ValueError says what is wrong."""
    match = _TCP.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no endpoint; it reads tcp://HOST:PORT, with * for every interface")
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"there is no port {port}; ports go up to 65535")
    return Tcp(match["host"], port)


_BACKLOG: Final = 512
_SIOCGIFADDR: Final = 0x8915


def listening_at(endpoint: Tcp) -> socket.socket:
    """Bind and listen, without blocking; raises OSError where that cannot be."""
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
    """Where a socket listens, with the port that was found."""
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
