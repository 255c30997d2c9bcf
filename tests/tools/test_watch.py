from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.run_state.running import Running
from onrig.runtime.shm import segment
from onrig.runtime.shm.board import Word
from onrig.runtime.shm.segment import create_folder
from onrig.tools.cli import main
from onrig.tools.watch import StopKeys
from tests.runtime.view.live import LiveRun


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveRun]:
    """A run owned by this process."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(segment, "_base_folder", lambda: tmp_path / "shm")
    with LiveRun(tmp_path / "run", create_folder()) as live:
        yield live


def test_one_line_for_a_script(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.board[Word.TICK] = 42
    assert main(["watch", "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("disconnected  episode 0 of 500, tick 42")
    assert out.count("\n") == 1


def test_without_a_run_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(segment, "_base_folder", lambda: tmp_path)
    assert main(["watch"]) == 2
    assert capsys.readouterr().err == "onrig watch: no run of this user is active\n"


def test_a_run_that_has_just_ended_is_reported(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    (run.shm / "view").unlink()
    assert main(["watch", "--once"]) == 0
    assert capsys.readouterr().out == f"{run.folder}: was killed before it wrote its summary\n"


def read_stop_word(run: LiveRun) -> int:
    return run.board.stop_outside


def make_stop_keys(run: LiveRun) -> StopKeys:
    return StopKeys(Running(1, run.shm, run.folder))


def test_q_leaves_and_the_run_continues(run: LiveRun) -> None:
    assert make_stop_keys(run).handle_key("q") is True
    assert read_stop_word(run) == 0


def test_s_asks_and_only_y_stops(run: LiveRun) -> None:
    keys = make_stop_keys(run)
    for refusal_key in ("n", "s", " ", "q"):
        assert keys.handle_key("s") is False
        assert keys.footer.startswith("stop the run?")
        assert keys.handle_key(refusal_key) is False
        assert read_stop_word(run) == 0
    keys.handle_key("s")
    keys.handle_key("y")
    assert read_stop_word(run) == 1


def test_a_second_request_disarms_at_once(run: LiveRun) -> None:
    keys = make_stop_keys(run)
    keys.handle_key("s")
    keys.handle_key("y")
    assert "disarm now" in keys.footer
    keys.handle_key("s")
    assert read_stop_word(run) == 2


def test_y_alone_does_nothing(run: LiveRun) -> None:
    assert make_stop_keys(run).handle_key("y") is False
    assert read_stop_word(run) == 0
