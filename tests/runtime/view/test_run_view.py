from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.view import run_view as module
from onrig.runtime.view.run_view import RunView, count_by_episode, read_run
from onrig.runtime.view.sentences import Event
from tests.runtime.samples import PENDULUM
from tests.runtime.view.live import LiveRun

CSV_HEADER = ",".join(COLUMNS) + "\n"


def row(episode: int, kind: str = "train", steps: int = 200) -> str:
    return f"{episode},{kind},{steps},-1.0,-0.5,{0.1 * episode},0.25,2,1,9,7\n"


def test_a_run_is_found_attached_and_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LiveRun(tmp_path / "run", tmp_path / "shm") as live:
        monkeypatch.setattr(module, "find_running", lambda folder: live.running)
        view = RunView(live.folder, live.config)
        assert (view.state, view.word(Word.TICK)) == (None, 0)
        running = view.find_running()
        assert running == live.running
        view.attach(live.running)
        live.board[Word.STATE], live.board[Word.TICK] = State.RUNNING, 5
        assert (view.state, view.word(Word.TICK)) == (State.RUNNING, 5)
        live.board[Word.STATE] = 250
        assert view.state is None, "a state of another version"
        view.detach()
        assert view.live is None
        assert view.running is None


def test_files_are_read_as_they_grow_and_reread_after_a_rewind(tmp_path: Path) -> None:
    view = RunView(tmp_path, PENDULUM)
    assert (view.episodes(), view.events()) == ([], [])
    with (tmp_path / "episodes.csv").open("w") as file:
        file.write(CSV_HEADER + row(1) + "2,train,2")
        file.flush()
        assert [e.episode for e in view.episodes()] == [1], "a partial line is not returned yet"
        file.write("00,-1.0,-0.5,0.2,0.25,2,1,9,7\n")
        file.flush()
        assert [(e.episode, e.steps) for e in view.episodes()] == [(2, 200)]
    view.rewind()
    assert len(view.episodes()) == 2


def test_a_folder_is_read_at_once_and_damaged_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "episodes.csv").write_text(
        CSV_HEADER + row(1) + row(1, "eval") + row(2, steps=0) + "3,train,2\n" + row(4)
    )
    (tmp_path / "events.jsonl").write_bytes(b'{"kind":"stop","t_unix_s":3.5}\n{nonsense\n[1]\n')
    (tmp_path / "summary.json").write_bytes(b'{"buffer":{"stored":5},"ticks":7}')
    (tmp_path / "meta.json").write_bytes(b"\xff")
    (tmp_path / "timing.json").write_bytes(
        msgspec.json.encode(
            {"histograms": {"tick": {"first": 80, "counts": [4, 6]}, "lateness": {"first": 10**6, "counts": [1]}}}
        )
    )
    run = read_run(tmp_path, PENDULUM)
    assert run.train["episode"].tolist() == [1, 4], "rows without steps and truncated rows are left out"
    assert run.evaluation["normalized"].tolist() == [0.1]
    assert [(e.t_unix_s, e.kind) for e in run.events] == [(3.5, "stop")]
    assert (run.section("buffer"), run.section("ticks"), run.meta) == ({"stored": 5}, {}, {})
    assert list(run.timing) == ["tick"]
    assert np.flatnonzero(run.timing["tick"].counts).tolist() == [80, 81]
    assert run.timing["tick"].percentile_us(99) == pytest.approx(2.0 ** (82 / 8) / 1000, rel=1e-3)


def test_the_reason_for_a_missing_memory_is_given(tmp_path: Path) -> None:
    view = RunView(tmp_path, PENDULUM)
    assert view.memory() == "it has no checkpoint"
    assert view.memory(max_bytes=1000) == "it is too large to restore"


def test_ticks_are_summed_by_word_and_episode() -> None:
    events = [
        Event(0.0, "tick", {"rule": "envelope", "episode": 2, "count": 3, "missed": 0}),
        Event(0.0, "tick", {"rule": "envelope", "episode": 2, "missed": 0}),
        Event(0.0, "tick", {"rule": "none", "cause": "host", "episode": 4, "missed": 5}),
    ]
    assert count_by_episode(events, "rule") == {"envelope": {2: 4}}
    assert count_by_episode(events, "cause", "missed") == {"host": {4: 5}}
