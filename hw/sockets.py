"""Connections to devices on a network or behind a Unix socket: TCP, UDP, Unix."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Annotated, Final

import msgspec

from onrig.hw.bounds import AboveZero
from onrig.hw.line import Line
from onrig.hw.transport import READ_BYTES, DescriptorTransport, LinkError, Transport, open_port

_PortNumber = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_DATAGRAM_BYTES: Final = 2048
"""Size of a read, more than a device sends in one datagram; a longer one would be truncated and fail its CRC."""
_KEEPALIVE_PROBES: Final = 3
_Addresses = list[tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]]


class _NetworkLine(Line, frozen=True, forbid_unknown_fields=True):
    """A device at a network address: host and port."""

    host: str
    """Name or address; a name is resolved whenever the connection is opened."""
    port: _PortNumber
    """Port on which the device listens."""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _connect(self, kind: socket.SocketKind, timeout_s: float) -> socket.socket:
        """Connect within ``timeout_s``, name resolution included.  Raises LinkError."""
        deadline_s, error = time.monotonic() + timeout_s, OSError(f"name not resolved within {timeout_s:g} s")
        for family, address in _resolve(self.host, self.port, kind, timeout_s, self.address):
            line = socket.socket(family, kind)
            try:
                line.settimeout(max(deadline_s - time.monotonic(), 1e-3))
                line.connect(address)
            except OSError as failure:
                line.close()
                error = failure
            else:
                line.setblocking(False)
                return line
        raise _unreachable_error(self.address, error)


def _unreachable_error(address: str, error: OSError) -> LinkError:
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return LinkError(f"{address}: {reason}; check that the device is on and reachable")


def _resolve(host: str, port: int, kind: socket.SocketKind, timeout_s: float, address: str) -> _Addresses:
    """Resolve a host's addresses; if the resolver does not answer in time, its thread is abandoned."""
    addresses: _Addresses = []
    errors: list[OSError | UnicodeError] = []

    def resolve() -> None:
        try:
            addresses.extend((info[0], info[4]) for info in socket.getaddrinfo(host, port, type=kind))
        except (OSError, UnicodeError) as error:  # UnicodeError: the name cannot be encoded
            errors.append(error)

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        reason = getattr(errors[0], "strerror", None) or errors[0]
        raise LinkError(f"{address}: {reason}; check the device's name") from errors[0]
    return list(addresses)


class Tcp(_NetworkLine, frozen=True, forbid_unknown_fields=True, tag="tcp"):
    """A device that listens on a TCP port."""

    connect_s: AboveZero = 2.0
    """Timeout for connecting, name resolution included."""
    no_delay: bool = True
    """Whether to send each command at once; false lets the kernel wait for a full segment."""
    keepalive_s: Annotated[float, msgspec.Meta(ge=0.0, le=32_767.0)] = 5.0
    """Silence after which the kernel probes the device; after about as long again, the device counts as lost.  0: never
    probe."""

    def open(self) -> Transport:
        line = self._connect(socket.SOCK_STREAM, self.connect_s)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(self.no_delay))
        if self.keepalive_s:
            idle_s = max(1, round(self.keepalive_s))
            for option, value in (
                (socket.TCP_KEEPIDLE, idle_s),
                (socket.TCP_KEEPINTVL, max(1, idle_s // _KEEPALIVE_PROBES)),
                (socket.TCP_KEEPCNT, _KEEPALIVE_PROBES),
                (socket.TCP_USER_TIMEOUT, 2000 * idle_s),
            ):
                line.setsockopt(socket.IPPROTO_TCP, option, value)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return DescriptorTransport(line.detach(), self.address)


class DatagramTransport(DescriptorTransport):
    """A Transport over a connected datagram socket: a write sends one datagram, a read returns all that have
    arrived."""

    def read(self, timeout_ns: int) -> bytes:
        """Read like ``Transport.read``; a refusal by the peer counts as a hang-up, but an empty datagram does not."""
        if timeout_ns > 0:
            self._wait(timeout_ns)
        read = b""
        while len(read) <= READ_BYTES - _DATAGRAM_BYTES:
            try:
                read += os.read(self._fd, _DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                raise self._lost_error(error) from error
        return read


class Udp(_NetworkLine, frozen=True, forbid_unknown_fields=True, tag="udp"):
    """A device on a UDP port, which answers the sender of the last datagram.

    A datagram holds complete frames.  The frames' numbers reveal lost, duplicated and reordered datagrams.
    """

    look_up_s: AboveZero = 2.0
    """Timeout for name resolution."""

    def open(self) -> Transport:
        return DatagramTransport(self._connect(socket.SOCK_DGRAM, self.look_up_s).detach(), self.address)


class Unix(Line, frozen=True, forbid_unknown_fields=True, tag="unix"):
    """A device, or a bridge to one, behind a Unix stream socket."""

    path: str
    """Path of the socket."""

    @property
    def address(self) -> str:
        return self.path

    def open(self) -> Transport:
        return open_port(self.path)
