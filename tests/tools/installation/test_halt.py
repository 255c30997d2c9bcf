"""Making a run safe past its supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from runtime.shm.segment import Segment
from runtime.supervise.running import Remote, Running
from runtime.supervise.states import State
from tools.installation.halt import FADE_S, find, halt, main


class Loop:
    """A loop that heeds a stop after a while, in virtual time."""

    def __init__(self, folder: Path, heeds: dict[int, float]) -> None:
        self.now_s, self._heeds, self._asked = 0.0, heeds, {0: 0.0}
        self.segment = Segment.create(folder / "board", BOARD_BYTES, BOARD_SCHEMA)
        self.board = Board(self.segment)
        self.board[Word.STATE] = State.RUNNING

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        level = self.board.stop_outside
        since = self._asked.setdefault(level, self.now_s)
        if level in self._heeds and self.now_s - since >= self._heeds[level]:
            self.board[Word.STATE] = State.DISCONNECTED

    def close(self) -> None:
        self.board.close()
        self.segment.close()


@contextmanager
def looping(folder: Path, heeds: dict[int, float]) -> Iterator[tuple[Loop, Remote]]:
    with closing(Loop(folder, heeds)) as loop, Remote(Running(1, folder, folder)) as remote:
        yield loop, remote


def test_a_loop_that_heeds_fades_out(tmp_path: Path) -> None:
    with looping(tmp_path, {1: 0.3}) as (loop, remote):
        assert halt(remote, lambda: loop.now_s, loop.sleep)
        assert loop.board.stop_outside == 1
        assert loop.now_s == pytest.approx(0.3, abs=0.02)


def test_a_loop_that_does_not_fade_is_stopped_at_once(tmp_path: Path) -> None:
    with looping(tmp_path, {2: 0.1}) as (loop, remote):
        assert halt(remote, lambda: loop.now_s, loop.sleep)
        assert loop.board.stop_outside == 2
        assert loop.now_s > FADE_S


def test_a_loop_that_hangs_is_left_to_its_devices_lease(tmp_path: Path) -> None:
    with looping(tmp_path, {}) as (loop, remote):
        assert not halt(remote, lambda: loop.now_s, loop.sleep)


def test_the_run_of_a_pid_is_found() -> None:
    rigs = [Running(7, Path("a"), Path("b")), Running(8, Path("c"), Path("d"))]
    assert find(8, rigs) == rigs[1]
    assert find(9, rigs) is None


@pytest.mark.parametrize("arguments", [[], [""], ["1"]])
def test_without_a_run_there_is_nothing_to_halt(arguments: list[str]) -> None:
    assert main(arguments) == 0
