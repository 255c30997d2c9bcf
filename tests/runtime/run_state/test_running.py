from __future__ import annotations

import os
from pathlib import Path

import pytest

from onrig.runtime import python_files
from onrig.runtime.run_state.running import RemoteControl, Running, announce, running_rigs
from onrig.runtime.shm import segment
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment, SegmentError, create_folder, remove_folder


@pytest.fixture
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the shared memory of runs."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(segment, "_base_folder", lambda: tmp_path / "shm")
    return tmp_path / "shm"


def test_a_run_is_found_by_its_folder_while_its_owner_lives(runs_folder: Path, tmp_path: Path) -> None:
    assert running_rigs() == []
    shm = create_folder()
    assert running_rigs() == [], "not announced yet"
    announce(shm, tmp_path / "a run")
    (rig,) = running_rigs()
    assert (rig.shm, rig.folder) == (shm, tmp_path / "a run")
    remove_folder(shm)
    assert running_rigs() == []


def test_code_trusted_by_a_run_of_this_user_may_be_run_by_its_viewers(
    runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONRIG_TRUST", "abc")
    shm = create_folder()
    announce(shm, tmp_path / "run")
    monkeypatch.setenv("ONRIG_TRUST", "")
    (running,) = running_rigs()
    assert python_files.trusted_digests() == set(), "a run that trusts no files allows nothing"
    running.trust_files()
    assert python_files.trusted_digests() == {"abc"}
    (shm / "trusted").unlink()  # as in a version without files
    running_rigs()[0].trust_files()
    remove_folder(shm)


def test_a_folder_with_a_non_text_name_is_also_found(runs_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"b\xff\nd")
    shm = create_folder()
    announce(shm, folder)
    assert [rig.folder for rig in running_rigs()] == [folder]
    remove_folder(shm)


def test_remains_of_a_killed_run_do_not_count_as_running(runs_folder: Path, tmp_path: Path) -> None:
    stale = runs_folder / "onrig-1-1-abc"  # process 1 did not start at tick 1
    stale.mkdir()
    announce(stale, tmp_path / "run")
    assert running_rigs() == []


def test_another_terminal_writes_its_own_words_and_never_weakens_a_request(tmp_path: Path) -> None:
    board = Board(Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA))
    board[Word.STATE], board[Word.SAFE_NS] = 3, 77
    with RemoteControl(Running(1, tmp_path, tmp_path)) as remote:
        remote.stop(2)
        remote.stop(1)
        remote.resume()
        remote.report_departure()
        assert (remote.state, remote.actuators.safe_ns) == (3, 77)
    assert (board.stop_outside, board[Word.STOP]) == (2, 0)
    assert (board[Word.RESUME_OUTSIDE], board[Word.RESUME]) == (1, 0)
    assert (board[Word.PLANT_DEPARTED], board[Word.PROMISE_WITHDRAWN]) == (1, 0)


def test_a_run_that_has_ended_meanwhile_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SegmentError):
        RemoteControl(Running(1, tmp_path, tmp_path))
