from __future__ import annotations

import os
import signal
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.run_state.running import RemoteControl, Running
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment
from onrig.runtime.supervise.requests import KEYS, LIVE_VIEW, Keyboard, Request, Requests, open_keyboard


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA))


@pytest.fixture
def requests(board: Board) -> Iterator[Requests]:
    handlers_before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    requests = Requests()
    requests.attach_board(board)
    yield requests
    requests.restore()
    assert {s: signal.getsignal(s) for s in handlers_before} == handlers_before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_requests_a_fade_out_and_the_second_a_stop_at_once(
    requests: Requests, board: Board, signum: int
) -> None:
    os.kill(os.getpid(), signum)
    assert (requests.stop_level, requests.has_repeated_request, board[Word.STOP]) == (1, False, 1)
    os.kill(os.getpid(), signum)
    assert (requests.stop_level, requests.has_repeated_request, board[Word.STOP]) == (2, True, 2)
    assert requests.source == signal.Signals(signum).name


def test_sigquit_requests_a_stop_at_once(requests: Requests, board: Board) -> None:
    os.kill(os.getpid(), signal.SIGQUIT)
    assert (board[Word.STOP], requests.has_repeated_request) == (2, False)


def test_an_ignored_hang_up_remains_ignored() -> None:
    previous_handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    requests = Requests()
    os.kill(os.getpid(), signal.SIGHUP)
    assert requests.stop_level == 0
    requests.restore()
    signal.signal(signal.SIGHUP, previous_handler)


def test_requests_received_before_the_loop_can_be_reached_are_passed_on_later(board: Board) -> None:
    requests = Requests()
    requests.add(Request.STOP_NOW, "keyboard")
    requests.attach_board(board)
    requests.restore()
    assert board[Word.STOP] == 2


def test_a_gentle_request_never_weakens_an_urgent_one(requests: Requests, board: Board) -> None:
    requests.add(Request.STOP_NOW, "keyboard")
    requests.add(Request.STOP, "keyboard")
    assert board[Word.STOP] == 2


def test_a_signal_in_the_middle_of_a_gentle_request_is_not_lost(requests: Requests, board: Board) -> None:
    """The handler runs between reading and writing the level."""

    class InterruptedRequests(Requests):
        pending = True

        @property
        def level(self) -> int:
            previous_level = self._level
            if self.pending and previous_level == 1:
                self.pending = False
                self.add(Request.STOP_NOW, "SIGINT")
            return previous_level

        @level.setter
        def level(self, level: int) -> None:
            self._level = level

    requests.restore()
    interrupted_requests = InterruptedRequests()
    interrupted_requests.attach_board(board)
    interrupted_requests.add(Request.STOP, "key q")
    interrupted_requests.restore()
    assert board[Word.STOP] == 2


def test_another_terminal_is_obeyed_and_named(requests: Requests, board: Board) -> None:
    assert requests.stop_level == 0
    board[Word.STOP_OUTSIDE] = 1
    assert (requests.stop_level, requests.source) == (1, "onrig stop")


def test_resuming_is_counted(requests: Requests, board: Board) -> None:
    requests.add(Request.RESUME, "keyboard")
    requests.add(Request.RESUME, "keyboard")
    assert board[Word.RESUME] == 2
    assert requests.stop_level == 0


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A terminal (its keys, its slave side) with this process in the foreground."""
    master_fd, slave_fd = os.openpty()
    tty.setcbreak(slave_fd)
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
    yield master_fd, slave_fd
    os.close(master_fd)
    os.close(slave_fd)


def test_keys_request_what_the_help_says_at_once_and_other_keys_nothing(terminal: tuple[int, int]) -> None:
    master_fd, slave_fd = terminal
    with Keyboard(slave_fd) as keys:
        assert keys.requests() == []
        os.write(master_fd, b" xQr")
        assert keys.requests() == [Request.STOP_NOW, Request.STOP, Request.RESUME]
    assert set(KEYS.values()) == set(Request)


def test_the_terminal_is_left_unchanged(terminal: tuple[int, int]) -> None:
    _, slave_fd = terminal
    attributes_before = termios.tcgetattr(slave_fd)
    with Keyboard(slave_fd):
        assert termios.tcgetattr(slave_fd) != attributes_before
    assert termios.tcgetattr(slave_fd) == attributes_before


def test_a_job_in_the_background_reads_no_keys(terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    master_fd, slave_fd = terminal
    with Keyboard(slave_fd) as keys:
        os.write(master_fd, b" ")
        monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp() + 1)
        assert keys.requests() == []


def test_a_vanished_terminal_is_no_longer_read(monkeypatch: pytest.MonkeyPatch) -> None:
    master_fd, slave_fd = os.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
    with Keyboard(slave_fd) as keys:
        assert keys.is_listening
        os.close(master_fd)
        assert keys.requests() == []
        assert not keys.is_listening
    os.close(slave_fd)


def test_without_a_terminal_there_is_no_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/null").open() as dev_null:
        monkeypatch.setattr("sys.stdin", dev_null)
        assert open_keyboard() is None


@pytest.mark.parametrize(("from_view", "stopped_by"), [(True, LIVE_VIEW), (False, "onrig stop")])
def test_a_stop_states_its_origin(
    board: Board, requests: Requests, tmp_path: Path, from_view: bool, stopped_by: str
) -> None:
    with RemoteControl(Running(1, tmp_path, tmp_path)) as remote:
        remote.stop(1, from_view=from_view)
    assert (requests.stop_level, requests.source) == (1, stopped_by)


def test_the_first_origin_is_named(board: Board, requests: Requests, tmp_path: Path) -> None:
    with RemoteControl(Running(1, tmp_path, tmp_path)) as remote:
        remote.stop(1)
        remote.stop(2, from_view=True)
    assert (requests.stop_level, requests.source, board[Word.STOP_VIEW]) == (2, "onrig stop", 0)
