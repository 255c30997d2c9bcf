"""The transports, on real pseudo terminals where there is a descriptor."""

import contextlib
import errno
import os
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
import serial

from onrig.hw.transport import READ_BYTES, DescriptorTransport, LinkError, LoopbackTransport, open_port

SECOND_NS = 1_000_000_000
EVERY_BYTE = bytes(range(256))


@pytest.fixture
def pty() -> Iterator[tuple[int, str]]:
    """Master descriptor and path of the slave side."""
    master, slave = os.openpty()
    path = os.ttyname(slave)
    os.close(slave)
    yield master, path
    with contextlib.suppress(OSError):  # the test may have closed it
        os.close(master)


def read_exactly(transport: DescriptorTransport, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = transport.read(SECOND_NS)
        assert more, f"only {len(data)} of {size} bytes arrived"
        data += more
    return data


def test_every_byte_passes_a_pty_unchanged_in_both_directions(pty: tuple[int, str]) -> None:
    master, path = pty
    port = open_port(path)
    os.write(master, EVERY_BYTE)
    assert read_exactly(port, 256) == EVERY_BYTE
    assert port.write(EVERY_BYTE) == 256
    assert os.read(master, 1000) == EVERY_BYTE
    port.close()


@pytest.mark.parametrize("timeout_ns", [-5, 0, 1_000, 1_500_000])
def test_an_idle_line_returns_nothing_and_remains_open(pty: tuple[int, str], timeout_ns: int) -> None:
    master, path = pty
    port = open_port(path)
    assert port.read(timeout_ns) == b""
    os.write(master, b"x")
    assert read_exactly(port, 1) == b"x"
    port.close()


def test_waiting_data_are_also_read_without_a_timeout(pty: tuple[int, str]) -> None:
    master, path = pty
    port = open_port(path)
    os.write(master, b"ab")
    assert read_exactly(port, 1)[:1] == b"a"  # by now the line discipline has passed them on
    port.close()


def test_a_port_in_use_is_refused_until_it_is_closed(pty: tuple[int, str]) -> None:
    _, path = pty
    port = open_port(path)
    with pytest.raises(LinkError, match=f"^{path}: the port is in use by another process"):
        open_port(path)
    port.close()
    open_port(path).close()


def test_a_port_that_does_not_exist_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "ttyUSB7")
    with pytest.raises(LinkError, match=f"^{path}: no such port"):
        open_port(path)


def test_a_file_or_folder_is_not_a_port(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a port")
    for path in (plain, tmp_path):
        with pytest.raises(LinkError, match="not a serial port"):
            open_port(str(path))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.EACCES, "no permission"),
        (errno.EBUSY, "in use by another process"),
        (errno.EIO, "the twin behind this port has ended"),
        (errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
)
def test_each_reason_why_a_port_cannot_be_opened_has_its_own_message(
    monkeypatch: pytest.MonkeyPatch, code: int, text: str
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise serial.SerialException(code, "could not open port")

    monkeypatch.setattr(serial, "Serial", refuse)
    with pytest.raises(LinkError, match=text) as caught:
        open_port("/dev/ttyUSB0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", ["tcgetattr", "tcsetattr", "tcflush"])
def test_a_port_that_vanishes_while_being_opened_is_a_link_error(
    monkeypatch: pytest.MonkeyPatch, pty: tuple[int, str], call: str
) -> None:
    def vanished(*args: object) -> None:
        raise termios.error(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(termios, call, vanished)
    with pytest.raises(LinkError, match="the twin behind this port has ended"):
        open_port(pty[1])


def test_an_impossible_baud_rate_is_named(pty: tuple[int, str]) -> None:
    with pytest.raises(LinkError, match="-1 baud"):
        open_port(pty[1], -1)


def test_neither_a_refusal_nor_a_close_leaks_a_descriptor(pty: tuple[int, str], tmp_path: Path) -> None:
    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_descriptors()
    port = open_port(pty[1])
    assert open_descriptors() == before + 1
    with pytest.raises(LinkError):
        open_port(pty[1])
    with pytest.raises(LinkError):
        open_port(str(tmp_path / "nowhere"))
    port.close()
    assert open_descriptors() == before


def test_a_hang_up_is_a_one_line_error_and_not_an_empty_read(pty: tuple[int, str]) -> None:
    master, path = pty
    port = open_port(path)
    os.close(master)
    with pytest.raises(LinkError, match=f"^{path}: the device hung up"):
        port.read(SECOND_NS)
    with pytest.raises(LinkError, match="hung up"):
        port.read(0)
    with pytest.raises(LinkError, match="hung up"):
        port.write(b"x")
    port.close()


def test_a_closed_port_reports_it_and_can_be_closed_twice(pty: tuple[int, str]) -> None:
    port = open_port(pty[1])
    port.close()
    port.close()
    assert port.fileno() == -1
    for use in (lambda: port.read(0), lambda: port.read(SECOND_NS), lambda: port.write(b"x")):
        with pytest.raises(LinkError, match="closed by this process"):
            use()


def test_a_congested_line_accepts_less_than_it_is_given_and_does_not_block(pty: tuple[int, str]) -> None:
    port = open_port(pty[1])
    taken = [port.write(bytes(4096)) for _ in range(200)]
    assert min(taken) < 4096
    port.close()


def test_the_loopback_passes_writes_on_and_keeps_answers_for_the_next_read() -> None:
    heard: list[bytes] = []

    def handle(data: bytes) -> bytes:
        heard.append(data)
        return data.upper()

    line = LoopbackTransport(handle)
    assert line.read(SECOND_NS) == b""
    assert line.write(b"ab") == 2
    line.write(b"c")
    assert heard == [b"ab", b"c"]
    assert line.read(0) == b"ABC"
    assert line.read(0) == b""


def test_the_loopback_advances_time_only_while_nothing_waits() -> None:
    waited: list[int] = []

    def wait(timeout_ns: int) -> bytes:
        waited.append(timeout_ns)
        return b"late"

    line = LoopbackTransport(lambda data: b"soon", wait)
    line.write(b"")
    assert line.read(50) == b"soon"
    assert line.read(0) == b""
    assert waited == []
    assert line.read(70) == b"late"
    assert waited == [70]


def test_the_loopback_returns_no_more_at_once_than_a_descriptor() -> None:
    line = LoopbackTransport(lambda data: data)
    line.write(b"x" * (READ_BYTES + 1))
    assert [len(line.read(0)), len(line.read(0))] == [READ_BYTES, 1]


def test_a_closed_loopback_reports_it() -> None:
    line = LoopbackTransport(lambda data: data)
    line.close()
    with pytest.raises(LinkError, match="closed by this process"):
        line.read(0)
    with pytest.raises(LinkError, match="closed by this process"):
        line.write(b"x")
