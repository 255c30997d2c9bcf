from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.run_loading import save_resolved
from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.view.run_view import read_run
from onrig.tools.cli import main
from onrig.tools.load import load
from onrig.tools.report import Curve, best_stretch, learning_curves, report_table, rise_time
from onrig.tools.reports.run.tables import warnings
from onrig.tools.run_facts import facts_from_files

PNG = b"\x89PNG\r\n\x1a\n"
SUMMARY = {
    "exit_reason": "completed",
    "episodes": 100,
    "ticks": 40200,
    "missed_ticks": 3,
    "tick_us": {"p50": 100.0, "p99": 250.4, "p999": 900.0, "max": 5000.0},
    "lateness_us": {"p50": None, "p99": None, "p999": None, "max": None},
    "buffer": {"capacity": 20000, "stored": 20000, "bytes": 640000, "strategy": "FULL[Uniform]", "synthetic": 0},
    "policies": {"offered": 101, "admitted": 100, "refused": 1, "too_soon": 7, "rolled_back": 0, "active": 101},
}


def write_episodes(folder: Path, normalized: list[float], kinds: tuple[str, ...] = ("train",)) -> None:
    with (folder / "episodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for k, value in enumerate(normalized, 1):
            for kind in kinds:
                writer.writerow([k, kind, 200, -1.0, -0.1, value if kind == "train" else value + 0.05, 0, 2, 0, k, 0])


def write_run(
    folder: Path, normalized: list[float], *overrides: str, kinds: tuple[str, ...] = ("train", "eval")
) -> Path:
    save_resolved(load("pendulum", overrides), folder / "config.yaml")
    (folder / "summary.json").write_bytes(msgspec.json.encode(SUMMARY))
    write_episodes(folder, normalized, kinds)
    return folder


def lines(text: str) -> dict[str, str]:
    """The table's rows by name (those without one belong to the row above)."""
    rows: dict[str, str] = {}
    name = ""
    for line in text.splitlines()[1:]:
        label, _, value = line.strip().partition("  ")
        if line.startswith("    ") or not value:
            rows[name] = f"{rows.get(name, '')}\n{line.strip()}"
        else:
            name = label
            rows[name] = value.strip()
    return rows


RAMP_SCORES = [min(1.0, k / 50) for k in range(1, 101)]


def test_a_run_is_reported_in_a_table_and_its_curve_is_redrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, RAMP_SCORES)
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    rows = lines(out)
    assert rows["configuration"].startswith("rig pendulum, task swingup, 500 episodes of 200 steps at 50 Hz")
    assert rows["ended"] == "completed, episode 100 of 500"
    assert rows["memory"] == "20,000 of 20,000 experiences, 640 kB"
    assert rows["policies"] == "100 of 101 admitted, 1 refused, 7 too soon"
    assert rows["ticks"] == "40,200 ticks, 3 missed"
    assert rows["time of a tick"] == "p50 100 µs, p99 250 µs, p99.9 900 µs, max 5 ms"
    assert "lateness" not in rows, "none in lockstep"
    assert rows["last 20"].startswith("1.000 (training")
    assert rows["best 20"] == "1.000 (training, episodes 50 to 69)"
    assert rows["rise time"] == "0.8 first reached in episode 38 (evaluation)"
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(PNG)
    assert f"see {tmp_path / 'learning_curve.png'}" in out


def test_the_rule_of_thumb_has_its_line(tmp_path: Path) -> None:
    write_run(tmp_path, RAMP_SCORES)
    rule_line = lines(str(report_table(tmp_path, load("pendulum"))))["rule of thumb"]
    # 0.9 of the evaluations' final 1.05 is reached by the 45th (0.945); the mean of ten reaches it with the 50th.
    assert rule_line.startswith("a memory of about 10000 experiences (400 kB)")
    assert "90% of its final performance of 1.050 (de Bruin et al. 2018, §8.5)" in rule_line
    assert "but" not in rule_line


def test_a_run_with_another_strategy_and_one_that_still_rises_are_reported_as_such(tmp_path: Path) -> None:
    write_run(tmp_path, [(k / 100) ** 3 for k in range(100)], "selection.strategy='TDE(1.0)[PER]'")
    rule_line = lines(str(report_table(tmp_path, load("pendulum", ["selection.strategy='TDE(1.0)[PER]'"]))))[
        "rule of thumb"
    ]
    assert "applies only to runs with FULL[Uniform]" in rule_line
    assert "still rising" in rule_line


def test_a_run_that_learned_nothing_recommends_no_buffer(tmp_path: Path) -> None:
    write_run(tmp_path, [-0.2] * 30)
    rows = lines(str(report_table(tmp_path, load("pendulum"))))
    assert rows["rule of thumb"].startswith("not applicable")
    assert rows["rise time"] == "0.8 was not reached (evaluation)"


def test_without_evaluation_episodes_training_counts(tmp_path: Path) -> None:
    write_run(tmp_path, RAMP_SCORES, kinds=("train",))
    assert (
        lines(str(report_table(tmp_path, load("pendulum"))))["rise time"]
        == "0.8 first reached in episode 40 (training)"
    )


def test_kept_and_altered_experiences_are_reported(tmp_path: Path) -> None:
    overrides = "selection={write_probability: 0.5, synthetic: {states: 0.1, actions: 0.2, refresh: 0.25}}"
    write_run(tmp_path, RAMP_SCORES, overrides)
    summary = {**SUMMARY, "buffer": {"capacity": 10, "stored": 9, "bytes": 288, "synthetic": 3}}
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(summary))
    rows = lines(str(report_table(tmp_path, load("pendulum", [overrides]))))
    assert rows["strategy"] == (
        "FIFO[Uniform], each experience kept with probability 0.5, synthetic: states 0.1, actions 0.2, refresh 0.25"
    )
    assert rows["memory"] == "9 of 10 experiences, 3 synthetic, 288 B"


@pytest.mark.parametrize("summary", [None, b"{"])
def test_a_truncated_run_is_reported_as_far_as_it_came(
    tmp_path: Path, summary: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, RAMP_SCORES[:10])
    (tmp_path / "summary.json").unlink()
    if summary is not None:
        (tmp_path / "summary.json").write_bytes(summary)
    with (tmp_path / "episodes.csv").open("a") as file:
        file.write("11,train,2")
    assert main(["report", str(tmp_path)]) == (0 if summary is None else 6)
    rows = lines(capsys.readouterr().out)
    assert rows["ended"].startswith("no summary.json")
    assert rows["last 20"].startswith("0.110 ")


def test_figures_missing_in_a_summary_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, RAMP_SCORES)
    summary = {**SUMMARY, "buffer": {"capacity": 10, "stored": 9, "bytes": "x"}, "tick_us": {"p50": 3.0, "max": 9.0}}
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(summary))
    with (tmp_path / "episodes.csv").open("a") as file:
        file.write(f"{'1' * 200_000},train,2\n")
    rows = lines(str(report_table(tmp_path, load("pendulum"))))
    assert rows["memory"] == "9 of 10 experiences"
    assert rows["time of a tick"] == "p50 3 µs, max 9 µs"


def test_a_run_without_an_episode_is_reported_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, [])
    (tmp_path / "episodes.csv").unlink()
    assert main(["report", str(tmp_path)]) == 0
    rows = lines(capsys.readouterr().out)
    assert rows["performance"].splitlines()[0] == "no complete episode"
    assert "rule of thumb" not in rows, "nothing was learned of it"
    assert not (tmp_path / "learning_curve.png").exists()


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"onrig report: '{tmp_path}' contains no run (config.yaml) and no experiment (spec.yaml)",
        f"onrig report: '{tmp_path / 'none'}' is not a folder",
    ]


def test_a_run_with_a_damaged_configuration_is_reported_with_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, RAMP_SCORES)
    (tmp_path / "config.yaml").write_text("rate_hz: fast\n")
    assert main(["report", str(tmp_path)]) == 2
    assert f"{tmp_path / 'config.yaml'}:1:10: expected a number" in capsys.readouterr().err


def test_steps_count_the_training_before_each_evaluation(tmp_path: Path) -> None:
    with (tmp_path / "episodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        rows = (
            (1, "train", 10),
            (2, "train", 20),
            (2, "eval", 99),
            (3, "train", 5),
            (3, "eval", 9),
        )
        for episode, kind, steps in rows:
            writer.writerow([episode, kind, steps, 0, 0, episode / 10, 0, 0, 0, 0, 0])
    train, evaluation = learning_curves(tmp_path, load("pendulum"))
    assert train.steps.tolist() == [10, 30, 35]
    assert (evaluation.steps.tolist(), evaluation.score.tolist()) == ([30, 35], [0.2, 0.3])


def test_rise_time_is_the_first_episode_at_the_level_and_the_best_stretch_the_highest_mean() -> None:
    values = np.array([0.0, 0.8, 0.2, 0.9, 0.9])
    curve = Curve("train", np.arange(1.0, 6.0), np.arange(5.0), values)
    assert rise_time(curve) == 2
    assert rise_time(curve, 0.95) is None
    for length, mean, expected_episode in ((2, 0.9, 4), (20, 0.56, 1)):
        best = best_stretch(curve, length)
        assert best is not None
        assert best[0] == pytest.approx(mean)
        assert best[1:] == (expected_episode, 5)
    empty = np.zeros(0)
    assert best_stretch(Curve("train", empty, empty, empty)) is None


def test_without_references_returns_are_reported_and_not_compared_with_a_level(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, RAMP_SCORES, "task.normalization=null")
    path = tmp_path / "episodes.csv"
    rows = list(csv.reader(path.read_text().splitlines()))
    for k, row in enumerate(rows[1:]):
        row[3], row[5] = str(-100.0 * (200 - k)), ""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert main(["report", str(tmp_path)]) == 0
    report_lines = lines(capsys.readouterr().out)
    assert report_lines["return, last 20"] == "-2100 (training, raw units, no references in the task)"
    assert report_lines["rise time"].startswith("unknown")
    assert report_lines["rule of thumb"].startswith("not applicable")
    page = (tmp_path / "report.html").read_text()
    assert "return, last 20 episodes" in page
    assert "normalised reward, last" not in page


def test_a_run_whose_scores_hid_early_ends_gets_a_warning(tmp_path: Path) -> None:
    termination = "task.terminate={velocity: [-6, 6]}"
    config = load("pendulum", [termination])
    write_run(tmp_path, RAMP_SCORES, termination)
    run_before = read_run(tmp_path, config)
    assert any("hides early ends" in line for line in warnings(run_before, facts_from_files(run_before), []))
    (tmp_path / "meta.json").write_text('{"score_format": 2}')
    run_after = read_run(tmp_path, config)
    assert not any("hides early ends" in line for line in warnings(run_after, facts_from_files(run_after), []))
