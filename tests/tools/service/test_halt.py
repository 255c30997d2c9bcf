"""Making a run safe without its supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.running import RemoteControl, Running
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment
from onrig.tools.service.halt import FADE_TIMEOUT_S, find_run, halt, main


class FakeLoop:
    """A loop that obeys a stop after a while, in virtual time, on a device whose frames show the result."""

    def __init__(self, folder: Path, stop_delays_s: dict[int, float], *, reports_state: bool = True) -> None:
        self.now_s, self._stop_delays_s, self._requested_at_s = 5.0, stop_delays_s, {0: 5.0}
        self._reports_state = reports_state
        self.segment = Segment.create(folder / "board", BOARD_BYTES, BOARD_SCHEMA)
        self.board = Board(self.segment)
        self.board[Word.STATE] = State.RUNNING
        self.board[Word.ANSWERED_NS] = 1

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        level = self.board.stop_outside
        requested_at_s = self._requested_at_s.setdefault(level, self.now_s)
        if level in self._stop_delays_s and self.now_s - requested_at_s >= self._stop_delays_s[level]:
            self.board[Word.STATE] = State.DISCONNECTED
            if self._reports_state:
                self.board[Word.SAFE_NS] = round(self.now_s * 1e9)

    def close(self) -> None:
        self.board.close()
        self.segment.close()


@contextmanager
def running_loop(
    folder: Path, stop_delays_s: dict[int, float], *, reports_state: bool = True
) -> Iterator[tuple[FakeLoop, RemoteControl]]:
    with (
        closing(FakeLoop(folder, stop_delays_s, reports_state=reports_state)) as loop,
        RemoteControl(Running(1, folder, folder)) as remote,
    ):
        yield loop, remote


def test_a_responsive_loop_fades_out(tmp_path: Path) -> None:
    with running_loop(tmp_path, {1: 0.3}) as (loop, remote):
        assert halt(remote, lambda: loop.now_s, loop.sleep)
        assert loop.board.stop_outside == 1
        assert loop.now_s == pytest.approx(5.3, abs=0.02)


def test_a_loop_that_does_not_fade_is_stopped_at_once(tmp_path: Path) -> None:
    with running_loop(tmp_path, {2: 0.1}) as (loop, remote):
        assert halt(remote, lambda: loop.now_s, loop.sleep)
        assert loop.board.stop_outside == 2
        assert loop.now_s > FADE_TIMEOUT_S


def test_a_hung_loop_is_left_to_the_lease_of_its_device(tmp_path: Path) -> None:
    with running_loop(tmp_path, {}) as (loop, remote):
        assert not halt(remote, lambda: loop.now_s, loop.sleep)


def test_a_loop_that_reports_disarmed_is_not_believed_without_a_frame_of_the_device(tmp_path: Path) -> None:
    with running_loop(tmp_path, {1: 0.1}, reports_state=False) as (loop, remote):
        assert not halt(remote, lambda: loop.now_s, loop.sleep)
        assert loop.board[Word.STATE] == State.DISCONNECTED


def test_a_frame_from_before_the_request_confirms_nothing(tmp_path: Path) -> None:
    with running_loop(tmp_path, {}) as (loop, remote):
        loop.board[Word.SAFE_NS] = round(4.9e9)
        assert not halt(remote, lambda: loop.now_s, loop.sleep)


@pytest.mark.parametrize(("answered_ns", "is_halted"), [(0, True), (7, False)])
def test_a_loop_that_ended_without_a_frame_is_safe_only_if_it_commanded_nothing(
    tmp_path: Path, answered_ns: int, is_halted: bool
) -> None:
    with running_loop(tmp_path, {}) as (loop, remote):
        loop.board[Word.ENDED], loop.board[Word.ANSWERED_NS] = 1, answered_ns
        assert halt(remote, lambda: loop.now_s, loop.sleep) is is_halted
        assert loop.now_s == 5.0


def test_a_run_is_found_by_its_pid() -> None:
    rigs = [Running(7, Path("a"), Path("b")), Running(8, Path("c"), Path("d"))]
    assert find_run(8, rigs) == rigs[1]
    assert find_run(9, rigs) is None


def test_a_run_of_another_version_is_not_reported_as_halted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Segment.create(tmp_path / "board", 64, "an older board").close()
    monkeypatch.setattr("onrig.tools.service.halt.running_rigs", lambda: [Running(7, tmp_path, tmp_path)])
    assert main(["7"]) == ExitCode.HARDWARE
    assert "another schema" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], [""], ["1"]])
def test_without_a_run_there_is_nothing_to_halt(arguments: list[str]) -> None:
    assert main(arguments) == 0
