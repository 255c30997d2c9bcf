"""The device's end of the line, on real pseudo terminals."""

from __future__ import annotations

import os
import select
import time
import tty
from collections.abc import Iterator

import pytest

from onrig.hw.device.line import Line, SocketLine
from onrig.hw.transport import LinkError, open_port

SECOND_NS = 1_000_000_000


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line.pty()
    yield line
    line.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Duration of each sleep of the line."""
    slept: list[float] = []

    def sleep_instead(r: object, w: object, x: object, timeout_s: float) -> tuple[list[int], list[int], list[int]]:
        slept.append(timeout_s)
        return [], [], []

    monkeypatch.setattr("onrig.hw.device.line.select.select", sleep_instead)
    return slept


def read(line: Line | SocketLine, size: int) -> bytes:
    """Read until ``n`` bytes have arrived."""
    data = b""
    limit = time.monotonic() + 60
    while len(data) < size:
        assert time.monotonic() < limit
        data += line.read(SECOND_NS)
    return data


def test_a_new_line_has_no_host_until_one_writes(line: Line) -> None:
    assert line.has_hung_up
    assert line.read(0) == b""
    host = open_port(line.path)
    host.write(b"hello")
    assert read(line, 5) == b"hello"
    assert not line.has_hung_up
    line.write(b"answer")
    assert host.read(SECOND_NS) == b"answer"
    host.close()


def test_data_sent_before_a_hang_up_is_read_first(line: Line) -> None:
    host = open_port(line.path)
    host.write(b"last words")
    host.close()
    assert read(line, 10) == b"last words"
    assert not line.has_hung_up
    assert line.read(0) == b""
    assert line.has_hung_up


def test_the_next_host_finds_the_line_in_its_initial_state(line: Line) -> None:
    for word in (b"one", b"two", b"three"):
        host = open_port(line.path)
        host.write(word)
        assert read(line, len(word)) == word
        host.close()
        assert line.read(0) == b""
        assert line.has_hung_up


def test_without_a_host_each_poll_sleeps_briefly_and_no_longer_than_requested(line: Line, waits: list[float]) -> None:
    open_port(line.path).close()
    assert [line.read(timeout_ns) for timeout_ns in (10 * SECOND_NS, 1_000_000, 0, -5)] == [b""] * 4
    assert waits == [0.005, 0.001, 0.0, 0.0]


def test_a_port_that_has_vanished_counts_as_hung_up_and_does_not_spin(waits: list[float]) -> None:
    other_end, slave = os.openpty()
    tty.setraw(slave)
    line = Line.serial(os.ttyname(slave))
    os.write(other_end, b"x")
    line.has_hung_up = False
    os.close(slave)
    os.close(other_end)
    assert line.read(0) in (b"", b"x")
    assert line.read(0) == b""
    assert line.has_hung_up
    waits.clear()
    for _ in range(3):
        assert line.read(SECOND_NS) == b""
    assert waits == [0.005] * 3
    line.close()


def test_a_congested_line_drops_what_does_not_fit_and_never_blocks(line: Line) -> None:
    host = open_port(line.path)
    for _ in range(100):
        line.write(bytes(4096))
    assert select.select((host.fileno(),), (), (), 10)[0]
    host.close()
    line.write(b"nobody there")


def test_a_missing_port_is_a_link_error() -> None:
    with pytest.raises(LinkError, match="no such port"):
        Line.serial("/nowhere/tty")
