"""The screen of a run in progress, drawn into 80 x 24 characters."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.record import Miss, Rule
from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.run_state.states import State
from onrig.runtime.scoring import measure_of
from onrig.runtime.shm.board import Word
from onrig.runtime.view.run_view import RunView
from onrig.runtime.view.sentences import Event
from onrig.tools.watching.rig_text import create_sketch
from onrig.tools.watching.screen import learning_lines, one_line
from onrig.tools.watching.snapshot import Watcher, event_line
from tests.runtime.samples import records
from tests.runtime.view.live import LiveRun

rich_console = pytest.importorskip("rich.console")


class WatchedRun:
    """A run, and its viewer."""

    def __init__(self, tmp_path: Path) -> None:
        self.live = LiveRun(tmp_path / "run", tmp_path / "shm")
        self.view = RunView.from_running(self.live.running)
        self.watcher = Watcher(self.view)

    def close(self) -> None:
        self.view.detach()
        self.live.__exit__(None, None, None)

    def advance(self) -> None:
        """Two hundred ticks, some with an intervention or a miss, and other reports of a run."""
        rows = records(200, episode=3)
        rows["tick_ns"], rows["lateness_ns"], rows["amplitude"] = 150_000, 60_000, 0.5
        rows["rule"][-3] = Rule.ENVELOPE
        rows["miss"][50], rows["missed"][50] = Miss.HOST, 2
        rows["commanded"] = 1.5
        self.live.push(rows)
        self.live.insert_random(60, np.random.default_rng(0))
        board = self.live.board
        board[Word.STATE], board[Word.EPISODE], board[Word.TICK], board[Word.POLICY] = State.RUNNING, 3, 200, 7
        self.live.telemetry.poll(1e9)
        text = ",".join(COLUMNS) + "\n"
        for k in range(1, 31):
            text += f"{k},train,200,-1,-0.1,{k / 30},0,0,0,1,0\n{k},eval,200,-1,-0.1,0.9,0,0,0,1,0\n"
        (self.live.folder / "episodes.csv").write_text(text)
        self.append_event({"t_unix_s": 0, "kind": "warning", "message": "[bold]careful[/]"})

    def append_event(self, event: dict[str, object]) -> None:
        with (self.live.folder / "events.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")

    def screen(self, width: int = 80, height: int = 24, *, unicode: bool = True) -> list[str]:
        from onrig.tools.watching.screen import KEYS, screen

        console = rich_console.Console(width=width, height=height, file=StringIO(), record=True)
        snapshot = self.watcher.snapshot()
        console.print(
            screen(snapshot, create_sketch(snapshot.config), KEYS, width, height, unicode=unicode), height=height
        )
        text: str = console.export_text()
        return text.rstrip("\n").split("\n")


@pytest.fixture
def watched_run(tmp_path: Path) -> Iterator[WatchedRun]:
    watched_run = WatchedRun(tmp_path)
    yield watched_run
    watched_run.close()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_it_fills_the_terminal_and_no_more(watched_run: WatchedRun, size: tuple[int, int]) -> None:
    watched_run.advance()
    rows = watched_run.screen(*size)
    assert len(rows) == size[1]
    assert max(map(len, rows)) <= size[0]


def test_everything_fits_on_a_small_terminal(watched_run: WatchedRun) -> None:
    watched_run.advance()
    text = "\n".join(watched_run.screen())
    for expected in (
        "RUNNING",
        "episode 3 of 500, tick 200",
        "angle +3 rad",
        "voltage +1.5 V",
        "···│███",
        "amplitude 0.50",
        "60 of ",
        "500 updates, 1500/s",
        "policy 7; 3 of 4 admitted, 1 refused",
        "acting now envelope",
        "shield acted in 1 tick: 1 envelope",
        "200 ticks, 2 missed: 2 host",
        "velocity ±15 rad/s (proved)",
        "p50 150 µs",
        "[bold]careful[/]",
        "q leaves",
        "▁▁▂",
    ):
        assert expected in text, expected
    assert "…" not in "\n".join(watched_run.screen()[10:17]), "the figures of timing and safety fit"


def test_without_unicode_it_is_plain(watched_run: WatchedRun) -> None:
    watched_run.advance()
    inner_rows = [row[1:-1] for row in watched_run.screen(unicode=False)[2:9]]
    assert all(c.isascii() or c in "│╭╮╰╯─…" for row in inner_rows for c in row)


def test_the_screen_works_before_anything_has_happened(watched_run: WatchedRun) -> None:
    text = "\n".join(watched_run.screen())
    assert "DISCONNECTED" in text
    assert "no step record yet" in text
    assert "none yet" in text


def test_a_line_summarises_what_matters(watched_run: WatchedRun) -> None:
    watched_run.advance()
    line = one_line(watched_run.watcher.snapshot())
    assert line.startswith("running  episode 3 of 500, tick 200, normalised reward 0.50, policy 7, 60 of ")


def test_polling_takes_only_what_is_new(watched_run: WatchedRun) -> None:
    watched_run.advance()
    assert len(watched_run.watcher.snapshot().train) == 30
    assert len(watched_run.watcher.snapshot().train) == 30
    watched_run.append_event({"t_unix_s": 1, "kind": "fault", "message": "stop", "fault": "device_lease"})
    events = watched_run.watcher.snapshot().events
    assert [(e.text, e.level) for e in events] == [("[bold]careful[/]", "warn"), ("stop", "bad")]


def test_events_are_described_as_on_the_page_and_counted() -> None:
    tick = {"rule": "predicted", "missed": 0, "episode": 4, "tick": 9, "count": 2}
    line = event_line(Event(0.0, "tick", tick))
    assert line is not None
    assert line.text.startswith("episode 4, tick 9: the command would have left the safe set; ")
    assert line.text.endswith(" (2 times)")
    assert event_line(Event(0.0, "policy_admitted", {})) is None


def test_without_references_returns_are_shown(watched_run: WatchedRun) -> None:
    watched_run.advance()
    snapshot = watched_run.watcher.snapshot()
    config = msgspec.structs.replace(
        snapshot.config, task=msgspec.structs.replace(snapshot.config.task, normalization=None)
    )
    assert snapshot.facts is not None
    facts = snapshot.facts._replace(measure=measure_of(config.task), score=-26102.4)
    raw = snapshot._replace(config=config, facts=facts, train=(-31400.0, -13510.0), evaluation=())
    assert "return -26102.4" in one_line(raw)
    assert learning_lines(raw, 40)[0].startswith("train  -22455 ")
