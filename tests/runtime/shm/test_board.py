from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment


def test_words_are_independent_and_visible_at_both_ends(tmp_path: Path) -> None:
    board = Board(Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA))
    other = Board(Segment.attach(tmp_path / "board", BOARD_SCHEMA))
    assert [other[word] for word in Word] == [0] * len(Word)
    for word in Word:
        board[word] = (1 << 63) + word
    assert [other[word] for word in Word] == [(1 << 63) + word for word in Word]


def test_a_negative_number_is_refused(tmp_path: Path) -> None:
    board = Board(Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA))
    with pytest.raises(ValueError, match="memoryview"):
        board[Word.FAULT] = -1


def test_it_can_be_unmapped_once_it_is_closed(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA)
    board = Board(segment)
    board.close()
    segment.close()
