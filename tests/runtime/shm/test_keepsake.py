from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.keepsake import KEEPSAKE_BYTES, Keepsake
from onrig.runtime.shm.segment import HEADER_BYTES, Segment


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA)


def test_the_last_message_is_taken_and_there_is_none_before_the_first(segment: Segment) -> None:
    keepsake = Keepsake(segment)
    assert keepsake.take() is None
    for message in (b"one", b"", b"a longer one", b"four"):
        keepsake.put(message)
        assert Keepsake(segment).take() == message


def test_it_lies_behind_the_words_of_the_board(segment: Segment) -> None:
    board, keepsake = Board(segment), Keepsake(segment)
    keepsake.put(b"\xff" * 10_000)
    keepsake.put(b"\xff" * 10_000)
    assert [board[word] for word in Word] == [0] * len(Word)


def test_what_does_not_fit_is_refused_and_the_last_message_stays(segment: Segment) -> None:
    keepsake = Keepsake(segment)
    keepsake.put(b"good")
    with pytest.raises(ValueError, match="it holds"):
        keepsake.put(bytes(KEEPSAKE_BYTES))
    assert keepsake.take() == b"good"


def test_a_reader_that_both_buffers_change_under_looks_again(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, reader = Keepsake(segment), Keepsake(segment)
    for message in (b"one", b"two"):
        loop.put(message)
    checked = zlib.crc32
    reads = 0

    def late(data: bytes, number: int) -> int:
        nonlocal reads
        reads += 1
        return checked(data, number) + (reads <= 2)  # as if those were other bytes than the ones that were summed up

    monkeypatch.setattr("onrig.runtime.shm.keepsake.zlib.crc32", late)
    assert reader.take() == b"two"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_message_that_was_written_half_leaves_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("shm") / "board"
    segment = Segment.create(path, BOARD_BYTES, BOARD_SCHEMA)
    keepsake = Keepsake(segment)
    keepsake.put(b"the first")
    keepsake.put(b"the second")
    before = bytes(segment.body)
    keepsake.put(b"the third one")
    after = bytes(segment.body)
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    written = data.draw(st.sets(st.sampled_from(changed), max_size=len(changed) - 1))
    segment.body[:] = before
    for i in written:
        segment.body[i] = after[i]
    assert keepsake.take() == b"the second"
    assert path.stat().st_size == HEADER_BYTES + BOARD_BYTES
