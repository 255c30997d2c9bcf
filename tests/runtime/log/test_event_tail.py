"""Following a file that others append to."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.log.event_tail import EventTail


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_file_that_is_not_there_yet_is_followed_from_its_beginning(tmp_path: Path) -> None:
    tail = EventTail(tmp_path / "e")
    assert tail.lines() == []
    append(tmp_path / "e", b"a\nb\n")
    assert tail.lines() == [b"a", b"b"]
    assert tail.lines() == []
    tail.close()


def test_what_stood_there_before_is_not_told_again(tmp_path: Path) -> None:
    append(tmp_path / "e", b"before\n")
    tail = EventTail(tmp_path / "e")
    append(tmp_path / "e", b"after\n")
    assert tail.lines() == [b"after"]
    tail.close()


@settings(max_examples=30, deadline=None)
@given(pieces=st.lists(st.text(alphabet="ab\n", max_size=6).map(str.encode), max_size=10))
def test_each_line_is_told_once_and_whole_however_it_is_written(tmp_path_factory: object, pieces: list[bytes]) -> None:
    path = Path(tmp_path_factory.mktemp("tail")) / "e"  # type: ignore[attr-defined]
    tail = EventTail(path)
    told: list[bytes] = []
    for piece in pieces:
        append(path, piece)
        told += tail.lines()
    tail.close()
    whole = b"".join(pieces).split(b"\n")[:-1]
    assert told == [line for line in whole if line]
