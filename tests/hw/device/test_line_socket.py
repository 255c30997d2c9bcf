"""The device's end of a Unix socket."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.hw.device.line import SocketLine
from onrig.hw.transport import LinkError, open_port
from tests.hw.device.test_line import read

SECOND_NS = 1_000_000_000


@pytest.fixture
def line(socket_folder: Path) -> Iterator[SocketLine]:
    line = SocketLine(socket_folder / "device")
    yield line
    line.close()


def test_a_new_line_has_no_host_until_one_writes(line: SocketLine) -> None:
    assert line.has_hung_up
    assert line.read(0) == b""
    line.write(b"into the void")
    host = open_port(line.path)
    host.write(b"hello")
    assert read(line, 5) == b"hello"
    assert not line.has_hung_up
    line.write(b"answer")
    assert host.read(SECOND_NS) == b"answer"
    host.close()


def test_a_hang_up_is_detected_and_the_next_host_is_served(line: SocketLine) -> None:
    for _ in range(3):
        host = open_port(line.path)
        host.write(b"hello")
        assert read(line, 5) == b"hello"
        host.close()
        assert line.read(SECOND_NS) == b""
        assert line.has_hung_up


def test_data_sent_before_a_hang_up_is_still_read(line: SocketLine) -> None:
    host = open_port(line.path)
    host.write(b"last words")
    host.close()
    assert read(line, 10) == b"last words"


def test_a_host_that_does_not_read_blocks_no_one(line: SocketLine) -> None:
    host = open_port(line.path)
    host.write(b"x")
    read(line, 1)
    for _ in range(2000):
        line.write(bytes(4096))
    host.close()


def test_only_this_user_may_connect(line: SocketLine) -> None:
    assert stat.S_IMODE(Path(line.path).stat().st_mode) == 0o600


def test_the_host_sees_the_end_of_the_twin(line: SocketLine) -> None:
    host = open_port(line.path)
    host.write(b"x")
    read(line, 1)
    line.close()
    with pytest.raises(LinkError, match="hung up"):
        host.read(SECOND_NS)
    host.close()
    assert not Path(line.path).exists()


def test_a_socket_left_behind_by_its_twin_is_reported(socket_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(socket_folder / "device"))
    with pytest.raises(LinkError, match="nothing listens there any more; restart the device's process"):
        open_port(str(socket_folder / "device"))
