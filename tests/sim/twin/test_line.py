"""The device's end of the line, on real pseudo terminals."""

from __future__ import annotations

import os
import select
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.hw.transport import LinkError, open_port
from onrig.sim.twin.line import Line, link_problem, linked

SECOND_NS = 1_000_000_000


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line.pty()
    yield line
    line.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the line slept each time."""
    slept: list[float] = []

    def sleep_instead(r: object, w: object, x: object, timeout_s: float) -> tuple[list[int], list[int], list[int]]:
        slept.append(timeout_s)
        return [], [], []

    monkeypatch.setattr("onrig.sim.twin.line.select.select", sleep_instead)
    return slept


def read(line: Line, size: int) -> bytes:
    """Read until so many bytes have come."""
    data = b""
    limit = time.monotonic() + 60
    while len(data) < size:
        assert time.monotonic() < limit
        data += line.read(SECOND_NS)
    return data


def test_a_new_line_has_no_host_until_one_writes(line: Line) -> None:
    assert line.hung_up
    assert line.read(0) == b""
    host = open_port(line.path)
    host.write(b"hello")
    assert read(line, 5) == b"hello"
    assert not line.hung_up
    line.write(b"answer")
    assert host.read(SECOND_NS) == b"answer"
    host.close()


def test_what_the_host_sent_before_it_hung_up_is_read_first(line: Line) -> None:
    host = open_port(line.path)
    host.write(b"last words")
    host.close()
    assert read(line, 10) == b"last words"
    assert not line.hung_up
    assert line.read(0) == b""
    assert line.hung_up


def test_the_next_host_finds_the_line_as_the_first_did(line: Line) -> None:
    for word in (b"one", b"two", b"three"):
        host = open_port(line.path)
        host.write(word)
        assert read(line, len(word)) == word
        host.close()
        assert line.read(0) == b""
        assert line.hung_up


def test_without_a_host_each_look_sleeps_a_little_and_no_longer_than_asked(line: Line, waits: list[float]) -> None:
    open_port(line.path).close()
    assert [line.read(timeout_ns) for timeout_ns in (10 * SECOND_NS, 1_000_000, 0, -5)] == [b""] * 4
    assert waits == [0.005, 0.001, 0.0, 0.0]


def test_a_port_whose_other_end_is_gone_for_good_counts_as_hung_up_and_is_not_spun_on(waits: list[float]) -> None:
    other_end, slave = os.openpty()
    tty.setraw(slave)
    line = Line.serial(os.ttyname(slave))
    os.write(other_end, b"x")
    line.hung_up = False
    os.close(slave)
    os.close(other_end)
    assert line.read(0) in (b"", b"x")
    assert line.read(0) == b""
    assert line.hung_up
    waits.clear()
    for _ in range(3):
        assert line.read(SECOND_NS) == b""
    assert waits == [0.005] * 3
    line.close()


def test_a_clogged_line_loses_what_does_not_fit_and_never_waits(line: Line) -> None:
    host = open_port(line.path)
    for _ in range(100):
        line.write(bytes(4096))
    assert select.select((host.fileno(),), (), (), 10)[0]
    host.close()
    line.write(b"nobody there")


def test_a_port_that_is_not_there_is_a_link_error() -> None:
    with pytest.raises(LinkError, match="no such port"):
        Line.serial("/nowhere/tty")


def test_a_link_names_the_line_and_goes_with_it(tmp_path: Path) -> None:
    link = tmp_path / "link"
    with linked(link, "/dev/pts/7"):
        assert link.read_text() == "/dev/pts/7\n"
    assert not link.exists()


def test_a_link_that_a_killed_twin_left_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link"
    for left in ("/dev/pts/3\n", "/dev/shm/onrig-1-x/device\n"):
        link.write_text(left)
        assert link_problem(link) is None
        with linked(link, "/dev/pts/7"):
            assert link.read_text() == "/dev/pts/7\n"


@pytest.mark.parametrize("content", ["", "precious\n", "/dev/pts/3", "/dev/pts/3\nmore\n", "/etc/passwd\n"])
def test_a_file_of_anybody_else_is_neither_replaced_nor_removed(tmp_path: Path, content: str) -> None:
    link = tmp_path / "link"
    link.write_text(content)
    assert "is no link of a twin" in (link_problem(link) or "")
    with pytest.raises(OSError, match="is no link of a twin"), linked(link, "/dev/pts/7"):
        pass
    assert link.read_text() == content


def test_nor_is_anything_else_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "ours").write_text("/dev/pts/3\n")
    (tmp_path / "symlink").symlink_to("ours")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("folder", "fifo", "symlink", "dangling"):
        assert "is no link of a twin" in (link_problem(tmp_path / name) or "")


@pytest.mark.parametrize("content", ["/dev/pts/8\n", "mine now\n"])
def test_a_link_that_somebody_else_has_taken_over_stays(tmp_path: Path, content: str) -> None:
    link = tmp_path / "link"
    with linked(link, "/dev/pts/7"):
        link.write_text(content)
    assert link.read_text() == content
