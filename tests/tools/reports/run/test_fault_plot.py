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
from tests.tools.reports.run.folders import load_config, write_post_mortem


@pytest.fixture(autouse=True)
def lower_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots of few pixels: their content is not checked here."""
    monkeypatch.setattr(style, "DPI", 20)


PNG = b"\x89PNG\r\n\x1a\n"
CONFIG = load_config()


def test_a_written_post_mortem_is_read_back(tmp_path: Path) -> None:
    moments = read_last_moments(write_post_mortem(tmp_path, CONFIG, n=40))
    assert moments.fault == "device_lease"
    assert moments.columns["tick"].tolist() == list(range(40))
    assert moments.text_columns["rule"][4:9] == ["none", "envelope", "envelope", "envelope", "none"]
    assert [f.type for f in moments.frames[:2]] == ["state", "command"]
    period_s = CONFIG.wall_period_ns / 1e9
    assert moments.record_times_s()[-1] == pytest.approx(-period_s)
    states = [f for f in moments.frames if f.type == "state"]
    assert moments.frame_times_s(states)[-1] == pytest.approx(-period_s)
    assert np.max(np.diff(moments.frame_times_s(states))) == pytest.approx(2 * period_s), "one frame was lost"


def test_each_post_mortem_gets_its_plot_once(tmp_path: Path) -> None:
    first_folder = write_post_mortem(tmp_path, CONFIG)
    assert draw_post_mortems(tmp_path, CONFIG) == [first_folder / PLOT_FILE]
    assert (first_folder / PLOT_FILE).read_bytes().startswith(PNG)
    (first_folder / PLOT_FILE).write_bytes(b"drawn before")
    second_folder = write_post_mortem(tmp_path, CONFIG, name="002-link_silent")
    assert draw_post_mortems(tmp_path, CONFIG) == [first_folder / PLOT_FILE, second_folder / PLOT_FILE]
    assert (first_folder / PLOT_FILE).read_bytes() == b"drawn before"
    draw_post_mortems(tmp_path, CONFIG, redraw=True)
    assert (first_folder / PLOT_FILE).read_bytes().startswith(PNG)


@pytest.mark.parametrize("file", ["records.csv", "frames.jsonl", "fault.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n{", b"seq,tick\n1\n"])
def test_a_damaged_file_leaves_a_plot_of_the_others(tmp_path: Path, file: str, content: bytes) -> None:
    folder = write_post_mortem(tmp_path, CONFIG)
    (folder / file).write_bytes(content)
    draw_post_mortem(read_last_moments(folder), CONFIG, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)


def test_an_unreadable_post_mortem_does_not_stop_the_report(tmp_path: Path) -> None:
    folder = write_post_mortem(tmp_path, CONFIG)
    for path in folder.iterdir():
        path.write_bytes(b"\xff")
    assert draw_post_mortems(tmp_path, CONFIG) == [folder / PLOT_FILE]


def test_a_fault_long_after_the_last_record_does_not_compress_the_record(tmp_path: Path) -> None:
    folder = write_post_mortem(tmp_path, CONFIG)
    fault_content = msgspec.json.decode((folder / "fault.json").read_bytes(), type=dict[str, object])
    (folder / "fault.json").write_bytes(msgspec.json.encode({**fault_content, "t_mono_ns": 10**12 + 600 * 10**9}))
    moments = read_last_moments(folder)
    assert moments.record_times_s()[-1] < -590
    draw_post_mortem(moments, CONFIG, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)


def test_at_the_end_of_a_run_only_the_last_one_is_drawn(tmp_path: Path) -> None:
    assert draw_last_post_mortem(tmp_path, CONFIG) is None
    first_folder = write_post_mortem(tmp_path, CONFIG)
    last_folder = write_post_mortem(tmp_path, CONFIG, name="002-link_silent")
    assert draw_last_post_mortem(tmp_path, CONFIG) == last_folder / PLOT_FILE
    assert not (first_folder / PLOT_FILE).exists()


def test_a_line_is_interrupted_where_an_episode_begins(tmp_path: Path) -> None:
    moments = LastMoments(tmp_path, {}, {"t_mono_ns": np.arange(4.0)}, {"flags": ["", "late", "first|late", ""]}, [])
    x, y = _split_at_jumps(np.arange(4.0), np.array([1.0, 2.0, 0.0, 0.5]), 10.0, moments.episode_starts())
    assert np.isnan(y).tolist() == [False, False, True, False, False]
    assert len(x) == len(y)


@pytest.mark.filterwarnings("ignore:No artists with labels")
def test_the_target_of_an_observation_is_a_line_in_its_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"t_mono_ns": np.arange(4.0) * 1e7, "t_receive_ns": np.arange(4.0) * 1e7}
    columns |= {
        f"observation.{name}": np.full(4, float(value)) for value, name in enumerate(("angle", "velocity", "ref"))
    }
    columns["applied.voltage"] = np.zeros(4)
    moments = LastMoments(tmp_path, {}, columns, {"flags": [""] * 4}, [])
    figures: list[Any] = []

    def keep_figure(figure: Any, path: Path) -> Path:
        figures.append(figure)
        return path

    monkeypatch.setattr(fault_plot, "save_figure", keep_figure)
    targets = "task.targets={ref: {kind: drawn, low: 0, high: 5, observation: velocity}}"
    draw_post_mortem(moments, load_run("pendulum", [targets]), tmp_path / PLOT_FILE)
    (figure,) = figures
    lines = [[line.get_ydata()[0] for line in axes.lines if len(line.get_ydata())] for axes in figure.axes]
    assert lines[0][:2] == [0.0, 0.0], "the angle's line and dots"
    assert lines[1][:3] == [2.0, 1.0, 1.0], "the target, and the velocity that follows it"
