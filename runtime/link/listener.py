"""A listening tcp socket for an endpoint as ZeroMQ writes it: an address, ``*``, or the name of a network interface."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Final

from onrig.runtime.link.endpoint import Tcp

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
