from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onrig.runtime.line_tail import LineTail


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    tail = LineTail(tmp_path / "later")
    assert tail.lines() == []
    (tmp_path / "later").write_bytes(b"a\nb\nhal")
    assert tail.lines() == [b"a", b"b"]
    assert tail.lines() == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.binary(max_size=12), max_size=8))
def test_lines_come_whole_once_and_in_order_however_they_are_written(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"")
    tail = LineTail(path)
    seen: list[bytes] = []
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        seen += tail.lines()
    assert seen == b"".join(pieces).split(b"\n")[:-1]


def test_a_file_that_was_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    tail = LineTail(path)
    tail.lines()
    path.write_bytes(b"new\n")
    assert tail.lines() == [b"new"]


def test_what_stood_there_before_is_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b"before\n")
    tail = LineTail(path, from_end=True)
    with path.open("ab") as file:
        file.write(b"after\n")
    assert tail.lines() == [b"after"]


def test_a_line_without_end_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20) + b"y")
    tail = LineTail(path)
    while tail.lines() or tail._rest:
        pass
    with path.open("ab") as file:
        file.write(b"\nnext\n")
    assert tail.lines() == [b"", b"next"]


def test_a_backlog_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    tail = LineTail(path, at_once_bytes=5)
    assert [tail.lines(), tail.lines(), tail.lines()] == [[b"one"], [b"two"], []]
