"""Lines over sockets: bounded waits, one line per error, complete frames in datagrams."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from onrig.hw.sockets import Tcp, Udp, Unix
from onrig.hw.transport import READ_BYTES, LineClosed, LinkError, Transport

SECOND_NS = 1_000_000_000


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def device() -> Iterator[socket.socket]:
    """A device on a UDP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        yield end


def option(transport: Transport, level: int, name: int) -> int:
    with socket.socket(fileno=transport.fileno()) as borrowed:
        value = borrowed.getsockopt(level, name)
        borrowed.detach()
    return value


def test_tcp_sends_at_once_and_probes_a_silent_device(listener: socket.socket) -> None:
    transport = Tcp(host="127.0.0.1", port=listener.getsockname()[1], keepalive_s=6.0).open()
    assert option(transport, socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert option(transport, socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert option(transport, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 6
    assert option(transport, socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
    assert option(transport, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 12_000
    transport.close()


def test_tcp_can_leave_both_to_the_kernel(listener: socket.socket) -> None:
    line = Tcp(host="127.0.0.1", port=listener.getsockname()[1], keepalive_s=0.0, no_delay=False)
    transport = line.open()
    assert not option(transport, socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not option(transport, socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    transport.close()


def test_a_tcp_device_that_hangs_up_closes_the_line(listener: socket.socket) -> None:
    transport = Tcp(host="127.0.0.1", port=listener.getsockname()[1]).open()
    listener.accept()[0].close()
    with pytest.raises(LineClosed, match="the device hung up"):
        transport.read(SECOND_NS)
    transport.close()


def test_a_refused_connection_is_reported_in_one_line_with_the_remedy(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(LinkError, match=rf"127\.0\.0\.1:{port}: Connection refused; check that the device is on"):
        Tcp(host="127.0.0.1", port=port).open()


@pytest.mark.parametrize("kind", [Tcp, Udp])
def test_a_resolver_that_never_answers_times_out(kind: type[Tcp | Udp], monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    class Unanswered:
        def __init__(self, target: object, daemon: bool) -> None:
            threads.append(daemon)

        def start(self) -> None:
            pass

        def join(self, limit_s: float) -> None:
            threads.append(limit_s == 2.0)

    monkeypatch.setattr("onrig.hw.sockets.threading.Thread", Unanswered)
    with pytest.raises(LinkError, match=r"rig\.example:7011: name not resolved within 2 s"):
        kind(host="rig.example", port=7011).open()
    assert threads == [True, True]


def test_an_unknown_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("onrig.hw.sockets.socket.getaddrinfo", unknown)
    with pytest.raises(LinkError, match=r"rig\.example:7011: Name or service not known; check the device's name"):
        Udp(host="rig.example", port=7011).open()


def test_an_impossible_name_is_reported_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LinkError, match=r"a\.\.b:7011: .*; check the device's name"):
        Tcp(host="a..b", port=7011).open()
    assert capfd.readouterr().err == ""


def test_a_keepalive_that_the_kernel_cannot_count_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "tcp", "host": "a", "port": 1, "keepalive_s": 40_000.0}, Tcp)


def test_an_invalid_port_number_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "tcp", "host": "a", "port": 65536}, Tcp)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert (Tcp(host="::1", port=7).address, Udp(host="rig", port=7).address) == ("[::1]:7", "rig:7")


def test_all_received_datagrams_are_read_at_once_and_an_empty_one_is_not_a_hang_up(device: socket.socket) -> None:
    transport = Udp(host="127.0.0.1", port=device.getsockname()[1]).open()
    transport.write(b"hello")
    data, host = device.recvfrom(100)
    for piece in (b"first ", b"", b"second"):
        device.sendto(piece, host)
    assert (data, transport.read(SECOND_NS)) == (b"hello", b"first second")
    for _ in range(10):
        device.sendto(bytes(1000), host)
    assert 0 < len(transport.read(SECOND_NS)) <= READ_BYTES
    transport.close()


def test_a_datagram_without_a_receiver_closes_the_line(device: socket.socket) -> None:
    transport = Udp(host="127.0.0.1", port=device.getsockname()[1]).open()
    device.close()
    transport.write(b"hello")
    with pytest.raises(LineClosed, match="Connection refused"):
        transport.read(SECOND_NS)
    transport.close()


def test_a_udp_read_ends_at_its_deadline(device: socket.socket) -> None:
    transport = Udp(host="127.0.0.1", port=device.getsockname()[1]).open()
    since_ns = time.monotonic_ns()
    assert transport.read(1_500_000) == b""
    assert time.monotonic_ns() - since_ns >= 1_400_000
    transport.close()


def test_a_unix_socket_is_opened_by_its_path(socket_folder: Path) -> None:
    line = Unix(path=str(socket_folder / "device"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(line.path)
        server.listen(1)
        transport = line.open()
        transport.close()
    with pytest.raises(LinkError, match="nothing listens there any more"):
        line.open()
