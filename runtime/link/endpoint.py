"""Endpoints of the link: the section ``link``, and which endpoints are local to the machine."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from onrig.runtime.config.problem import NodePath

_LOOPBACK_HOSTS: Final = ("127.0.0.1", "[::1]")
"""Addresses of ``localhost``, independent of the resolver (RFC 6761)."""
_TCP_PATTERN: Final = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.*-]+):(?P<port>\d{1,5})", re.ASCII)


class TcpEndpoint(NamedTuple):
    """A tcp endpoint as ZeroMQ writes it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the endpoint is local to this machine: a literal loopback address, or ``localhost``."""
        if self.host == "localhost":
            return True
        host = self.host.strip("[]")
        return _is_literal(host) and ipaddress.ip_address(host).is_loopback

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is a literal IPv6 address."""
        return self.host.startswith("[")

    @property
    def addresses(self) -> tuple[tuple[str, bool], ...]:
        """Endpoints to try, each with a flag: whether it needs ZeroMQ's IPv6 option.

        A name may have addresses of both families although the rig listens on only one of them.
        """
        if self.host == "localhost":
            return tuple((str(self._replace(host=host)), ":" in host) for host in _LOOPBACK_HOSTS)
        if self.is_ipv6 or _is_literal(self.host):
            return ((str(self), self.is_ipv6),)
        return (str(self), False), (str(self), True)


def parse_tcp(text: str) -> TcpEndpoint:
    """Parse ``tcp://HOST:PORT`` (``*`` for every interface, IPv6 in brackets); raises ValueError with the problem."""
    match = _TCP_PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not an endpoint; expected tcp://HOST:PORT, with * for every interface")
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"port {port} is out of range; the highest is 65535")
    return TcpEndpoint(match["host"], port)


_LISTEN_BACKLOG: Final = 512
_SIOCGIFADDR: Final = 0x8915
_UNAVAILABLE_ADDRESS_ERRNOS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors raised if this machine lacks the address, or IPv6 altogether."""
_PROBE_TIMEOUT_S: Final = 1.0


def bind_listeners(endpoint: TcpEndpoint) -> list[socket.socket]:
    """Bind a non-blocking listening socket, on the same port, at each local address of an endpoint; raises OSError."""
    listeners: list[socket.socket] = []
    last_error: OSError | None = None
    port = endpoint.port
    try:
        for host in _listen_hosts(endpoint):
            try:
                listeners.append(_bind_listener(host, port))
            except OSError as error:
                if error.errno not in _UNAVAILABLE_ADDRESS_ERRNOS:
                    raise
                last_error = error
            else:
                port = listeners[0].getsockname()[1]
        if last_error is not None and not listeners:
            raise last_error
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind_listener(host: str, port: int) -> socket.socket:
    is_ipv6 = ":" in host
    listener = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_ipv6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(_LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def listener_endpoint(listener: socket.socket) -> str:
    """Return the endpoint of a listening socket, with its actual port."""
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _listen_hosts(endpoint: TcpEndpoint) -> list[str]:
    """Return the addresses at which to listen."""
    host = endpoint.host.strip("[]")
    if host == "*":
        return ["0.0.0.0"]
    if host == "localhost":
        return [address.strip("[]") for address in _LOOPBACK_HOSTS]
    if endpoint.is_ipv6 or _is_literal(host):
        return [host]
    if host in {name for _, name in socket.if_nameindex()}:
        return [_interface_address(host)]
    return _resolve_host(host)


def _interface_address(name: str) -> str:
    import fcntl  # imported here, because configurations are also checked on systems without it

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        result = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
    return socket.inet_ntoa(result[20:24])


def _resolve_host(host: str) -> list[str]:
    """Resolve a name, IPv4 addresses first."""
    addresses = {str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return sorted(addresses, key=lambda address: (":" in address, address))


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def probe_addresses(endpoint: TcpEndpoint) -> str:
    """Try to connect to each address of an endpoint; return the results as text: ``127.0.0.1: Connection refused``, ...

    Takes up to a second per address.
    """
    try:
        hosts = _listen_hosts(endpoint)
    except OSError as error:
        return f"{endpoint.host}: {error.strerror or error}"
    results = []
    for host in hosts:
        try:
            with socket.create_connection((host, endpoint.port), _PROBE_TIMEOUT_S):
                results.append(f"{host}: connected")
        except TimeoutError:
            results.append(f"{host}: no answer")
        except OSError as error:
            results.append(f"{host}: {error.strerror or error}")
    return ", ".join(results)


_REMEDY: Final = "make keys with `onrig keys DIR` and name their folder in link.keys"


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``link``: access for learners on other machines. Local learners use a separate socket."""

    listen: str | None = None
    """``tcp://HOST:PORT``, ``*`` for every interface; null: no remote learners."""
    keys: str | None = None
    """The rig's folder of keys (`onrig keys`)."""
    allow_plain_loopback: bool = False
    """Whether to accept, without keys, unencrypted connections to a loopback address from any user of this machine."""
    admissions_per_s: Annotated[float, msgspec.Meta(ge=0.01, le=1000.0)] | msgspec.UnsetType = msgspec.UNSET
    """Policies checked per second of device time (default 1); ignored in lockstep, which checks one per barrier."""


def link_findings(link: Link) -> Iterator[tuple[NodePath, str]]:
    """List (path, message) for settings that leave the link open to others or conflict with each other."""
    node_path = ("link", "listen")
    if link.listen is None:
        if link.keys is not None:
            yield ("link", "keys"), "keys have no effect without link.listen; set it as well, at link.keys"
        return
    try:
        tcp = parse_tcp(link.listen)
    except ValueError as error:
        yield node_path, f"{error} at link.listen"
        return
    if link.keys is not None:
        return
    if not tcp.is_loopback:
        yield node_path, f"{link.listen} is open to other machines without keys; {_REMEDY} at link.listen"
    elif not link.allow_plain_loopback:
        yield (
            node_path,
            f"plain tcp without keys needs link.allow_plain_loopback: true, or {_REMEDY} at link.listen",
        )
