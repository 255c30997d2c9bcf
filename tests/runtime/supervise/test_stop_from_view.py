from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment
from onrig.runtime.supervise.requests import LIVE_VIEW, Requests
from onrig.runtime.supervise.running import Remote, Running


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA))


@pytest.fixture
def requests(board: Board) -> Iterator[Requests]:
    asked = Requests()
    asked.show(board)
    yield asked
    asked.restore()


@pytest.mark.parametrize(("from_view", "by"), [(True, LIVE_VIEW), (False, "onrig stop")])
def test_a_stop_says_by_which_way_it_came(
    board: Board, requests: Requests, tmp_path: Path, from_view: bool, by: str
) -> None:
    with Remote(Running(1, tmp_path, tmp_path)) as remote:
        remote.stop(1, from_view=from_view)
    assert (requests.stop, requests.by) == (1, by)


def test_who_asked_first_is_named(board: Board, requests: Requests, tmp_path: Path) -> None:
    with Remote(Running(1, tmp_path, tmp_path)) as remote:
        remote.stop(1)
        remote.stop(2, from_view=True)
    assert (requests.stop, requests.by, board[Word.STOP_VIEW]) == (2, "onrig stop", 0)
