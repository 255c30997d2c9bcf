from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.runtime.run_loading import load_run
from onrig.tools.reports import style
from onrig.tools.reports.run import fault_plot
from onrig.tools.reports.run.fault_plot import (
    PLOT_FILE,
    LastMoments,
    _split_at_jumps,
    draw_last_post_mortem,
    draw_post_mortem,
    draw_post_mortems,
    read_last_moments,
)
from tests.tools.reports.run.folders import a_config, write_post_mortem


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots of few pixels: their content is not checked here."""
    monkeypatch.setattr(style, "DPI", 20)


PNG = b"\x89PNG\r\n\x1a\n"
CONFIG = a_config()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    told = read_last_moments(write_post_mortem(tmp_path, CONFIG, n=40))
    assert told.fault == "device_lease"
    assert told.columns["tick"].tolist() == list(range(40))
    assert told.text_columns["rule"][4:9] == ["none", "envelope", "envelope", "envelope", "none"]
    assert [f.type for f in told.frames[:2]] == ["state", "command"]
    period_s = CONFIG.wall_period_ns / 1e9
    assert told.record_times_s()[-1] == pytest.approx(-period_s)
    states = [f for f in told.frames if f.type == "state"]
    assert told.frame_times_s(states)[-1] == pytest.approx(-period_s)
    assert np.max(np.diff(told.frame_times_s(states))) == pytest.approx(2 * period_s), "one frame was lost"


def test_each_post_mortem_gets_its_plot_once(tmp_path: Path) -> None:
    first = write_post_mortem(tmp_path, CONFIG)
    assert draw_post_mortems(tmp_path, CONFIG) == [first / PLOT_FILE]
    assert (first / PLOT_FILE).read_bytes().startswith(PNG)
    (first / PLOT_FILE).write_bytes(b"drawn before")
    second = write_post_mortem(tmp_path, CONFIG, name="002-link_silent")
    assert draw_post_mortems(tmp_path, CONFIG) == [first / PLOT_FILE, second / PLOT_FILE]
    assert (first / PLOT_FILE).read_bytes() == b"drawn before"
    draw_post_mortems(tmp_path, CONFIG, redraw=True)
    assert (first / PLOT_FILE).read_bytes().startswith(PNG)


@pytest.mark.parametrize("file", ["records.csv", "frames.jsonl", "fault.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n{", b"seq,tick\n1\n"])
def test_a_damaged_file_leaves_a_plot_of_the_others(tmp_path: Path, file: str, content: bytes) -> None:
    folder = write_post_mortem(tmp_path, CONFIG)
    (folder / file).write_bytes(content)
    draw_post_mortem(read_last_moments(folder), CONFIG, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)


def test_a_post_mortem_of_which_nothing_is_readable_does_not_stop_the_report(tmp_path: Path) -> None:
    folder = write_post_mortem(tmp_path, CONFIG)
    for path in folder.iterdir():
        path.write_bytes(b"\xff")
    assert draw_post_mortems(tmp_path, CONFIG) == [folder / PLOT_FILE]


def test_a_fault_long_after_the_last_record_does_not_squeeze_the_record(tmp_path: Path) -> None:
    folder = write_post_mortem(tmp_path, CONFIG)
    story = msgspec.json.decode((folder / "fault.json").read_bytes(), type=dict[str, object])
    (folder / "fault.json").write_bytes(msgspec.json.encode({**story, "t_mono_ns": 10**12 + 600 * 10**9}))
    told = read_last_moments(folder)
    assert told.record_times_s()[-1] < -590
    draw_post_mortem(told, CONFIG, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)


def test_at_the_end_of_a_run_the_last_one_alone_is_drawn(tmp_path: Path) -> None:
    assert draw_last_post_mortem(tmp_path, CONFIG) is None
    first = write_post_mortem(tmp_path, CONFIG)
    last = write_post_mortem(tmp_path, CONFIG, name="002-link_silent")
    assert draw_last_post_mortem(tmp_path, CONFIG) == last / PLOT_FILE
    assert not (first / PLOT_FILE).exists()


def test_a_line_is_broken_where_an_episode_begins(tmp_path: Path) -> None:
    told = LastMoments(tmp_path, {}, {"t_mono_ns": np.arange(4.0)}, {"flags": ["", "late", "first|late", ""]}, [])
    x, y = _split_at_jumps(np.arange(4.0), np.array([1.0, 2.0, 0.0, 0.5]), 10.0, told.episode_starts())
    assert np.isnan(y).tolist() == [False, False, True, False, False]
    assert len(x) == len(y)


@pytest.mark.filterwarnings("ignore:No artists with labels")
def test_what_an_observation_is_to_follow_is_a_line_in_its_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"t_mono_ns": np.arange(4.0) * 1e7, "t_receive_ns": np.arange(4.0) * 1e7}
    columns |= {f"observation.{name}": np.full(4, float(at)) for at, name in enumerate(("angle", "velocity", "ref"))}
    columns["applied.voltage"] = np.zeros(4)
    told = LastMoments(tmp_path, {}, columns, {"flags": [""] * 4}, [])
    drawn: list[Any] = []

    def kept(figure: Any, path: Path) -> Path:
        drawn.append(figure)
        return path

    monkeypatch.setattr(fault_plot, "save_figure", kept)
    targets = "task.targets={ref: {kind: drawn, low: 0, high: 5, observation: velocity}}"
    draw_post_mortem(told, load_run("pendulum", [targets]), tmp_path / PLOT_FILE)
    (figure,) = drawn
    lines = [[line.get_ydata()[0] for line in axes.lines if len(line.get_ydata())] for axes in figure.axes]
    assert lines[0][:2] == [0.0, 0.0], "the angle's line and dots"
    assert lines[1][:3] == [2.0, 1.0, 1.0], "the target, and the velocity that follows it"
