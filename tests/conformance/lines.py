"""Lines of every kind with a device at the other end, in virtual time: data from the host are passed on at once."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from onrig.hw.can_bus import Can
from onrig.hw.clock import VirtualClock
from onrig.hw.device.protocol import ProtocolDevice
from onrig.hw.line import Line
from onrig.hw.sockets import DatagramTransport, Tcp, Udp, Unix
from onrig.hw.transport import DescriptorTransport, LineClosed, Transport
from onrig.sim.twin.loopback import LoopbackDevice

_SOON_NS: Final = 200_000_000
"""Time that the kernel may take to carry bytes from one end to the other; loopback does it at once."""
_numbers = itertools.count()


class Ends:
    """Both ends of an open line."""

    def __init__(self, line: Line, host: Transport, device: Transport) -> None:
        self.line, self.host, self.device = line, host, device


def tcp() -> Ends:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Tcp(host="127.0.0.1", port=server.getsockname()[1])
        host = line.open()
        device, _ = server.accept()
    device.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    device.setblocking(False)
    return Ends(line, host, DescriptorTransport(device.detach(), "device"))


def udp() -> Ends:
    device = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    device.bind(("127.0.0.1", 0))
    line = Udp(host="127.0.0.1", port=device.getsockname()[1])
    host = line.open()
    with socket.socket(fileno=host.fileno()) as borrowed:
        device.connect(borrowed.getsockname())
        borrowed.detach()
    device.setblocking(False)
    return Ends(line, host, DatagramTransport(device.detach(), "device"))


def unix(folder: Path) -> Ends:
    line = Unix(path=str(folder / f"device-{next(_numbers)}"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(line.path)
        server.listen(1)
        host = line.open()
        device, _ = server.accept()
    device.setblocking(False)
    return Ends(line, host, DescriptorTransport(device.detach(), "device"))


def can(interface: str, channel: str, *, fd: bool = False, port: int | None = None) -> Ends:
    line = Can(channel=channel, interface=interface, fd=fd, options={} if port is None else {"port": port})
    return Ends(line, line.open(), line.open_end(line.state_id, line.command_id))


class Carried:
    """A Transport to a device in this process over a real line; the two ends take turns in virtual time."""

    def __init__(self, ends: Ends, device: ProtocolDevice, clock: VirtualClock) -> None:
        self._ends, self._loopback = ends, LoopbackDevice(device, clock).transport
        self._device = device

    @property
    def name(self) -> str:
        return self._ends.line.address

    def fileno(self) -> int:
        return self._ends.host.fileno()

    def write(self, data: bytes) -> int:
        sent = self._ends.host.write(data)
        self._to_device(sent)
        return sent

    def read(self, timeout_ns: int) -> bytes:
        data = self._ends.host.read(0)
        if not data and timeout_ns > 0:
            self._to_host(self._loopback.read(timeout_ns))
            data = self._ends.host.read(0)
        return data

    def hang_up(self) -> None:
        """Close the host's end, and let the device see that."""
        self._ends.host.close()
        with contextlib.suppress(LineClosed):
            while self._ends.device.read(_SOON_NS):
                pass
            return
        self._device.on_link_loss()

    def close(self) -> None:
        self._ends.host.close()
        self._ends.device.close()

    def _to_device(self, size: int) -> None:
        arrived = b""
        while len(arrived) < size:
            more = self._ends.device.read(_SOON_NS)
            assert more, "the line has lost what the host sent"
            arrived += more
        self._loopback.write(arrived)
        self._to_host(self._loopback.read(0))

    def _to_host(self, data: bytes) -> None:
        if data:
            assert self._ends.device.write(data) == len(data)
        if data and (more := self._loopback.read(0)):
            self._to_host(more)


Opened = Callable[[], Ends]
