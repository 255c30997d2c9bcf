"""`onrig check`: valid and invalid configurations, and --explain."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from onrig.learner.settings import LearnerSettings
from onrig.runtime.config.document import shipped_names
from onrig.runtime.explore.settings import OrnsteinUhlenbeck
from onrig.runtime.safety.promise import promise_of
from onrig.tools.cli import main
from onrig.tools.explain import device_seconds, mean_replays, release_bounds, tables
from onrig.tools.explain_exploration import sample_points
from onrig.tools.limits_plot import limit_bars
from onrig.tools.load import load
from onrig.tools.terminal import Table

PNG = b"\x89PNG\r\n\x1a\n"
VALID_RUN = """\
rig: pendulum
task: swingup
device:
  twin: {plant: {kind: pendulum}}
  pace: lockstep
rate_hz: 50
episodes: 500
learner:
  updates_per_episode: 100
"""


def write_run(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def problems(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_configuration_is_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: valid: rig ")


def test_a_valid_configuration_is_reported_with_its_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "pendulum"]) == 0
    assert capsys.readouterr() == (
        "pendulum: valid: rig pendulum, task swingup, 500 episodes of 200 steps at 50 Hz, lockstep twin\n"
        f"the promise: {promise_of(load('pendulum').limits)}\n",
        "",
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["device.pace=realtime"], "real-time twin"),
        (["device.pace={scaled: 10}"], "10× real-time twin"),
        (["device={port: {path: /dev/ttyACM0}}"], "device on /dev/ttyACM0"),
    ],
)
def test_the_line_names_the_driven_device(overrides: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "pendulum", *(f"--set={o}" for o in overrides)]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f", {words}")


@pytest.mark.parametrize(
    ("old", "new", "location", "message"),
    [
        ("episodes: 500", "episodes: 500\nepisods: 3", "8:1", "unknown key 'episods'"),
        ("rate_hz: 50", "rate_hz: fast", "6:10", "expected a number, such as 0.5, got 'fast' at rate_hz"),
        ("episodes: 500", "episodes: true", "7:11", "expected a whole number, such as 10, got true"),
        ("episodes: 500", "episodes: 500\nepisodes: 600", "8:1", "duplicate key 'episodes', first used in line 7"),
        ("task: swingup", "task: swingup\nlimits: {range: {voltage: [-4, 3]}}", "3:27", "wider than the rig's [-3, 3]"),
        ("task: swingup", "task: swingdown", "2:7", "no 'swingdown'"),
        ("rate_hz: 50\n", "", "1:1", "missing required key 'rate_hz'"),
    ],
    ids=["unknown key", "wrong type", "bool for int", "duplicate key", "wide limits", "unknown task", "missing key"],
)
def test_each_fault_is_reported_at_its_place(
    old: str, new: str, location: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, VALID_RUN.replace(old, new))
    assert main(["check", path]) == 2
    (line,) = problems(capsys)
    assert line.startswith(f"{path}:{location}: ")
    assert message in line


def test_the_faults_of_all_sections_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = VALID_RUN.replace("rate_hz: 50", "rate_hz: fast").replace("updates_per_episode", "updates_per_epsiode")
    path = write_run(tmp_path, f"{text}colour: red\n")
    assert main(["check", path]) == 2
    lines = problems(capsys)
    assert [line.split(": ")[0] for line in lines] == [f"{path}:6:10", f"{path}:10:1", f"{path}:9:3"]


def test_a_number_in_scientific_notation_is_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, VALID_RUN.replace("learner:", "learner:\n  ddpg: {actor_lr: 1e-3}"))
    assert main(["check", path]) == 0
    assert "error" not in capsys.readouterr().err
    assert load(path).learner["ddpg"]["actor_lr"] == 1e-3  # type: ignore[index]


@pytest.mark.parametrize("name", ["nowhere.yaml", "nothing", "folder/none.yaml"])
def test_a_missing_file_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name]) == 2
    (line,) = problems(capsys)
    assert re.match(rf"{name}:1:1: no (file )?'.*{name}'", line)


def test_an_override_is_checked_like_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "pendulum", "--set", "episodes=many"]) == 2
    assert problems(capsys) == ["--set episodes=many:1:1: expected a whole number, such as 10, got 'many' at episodes"]


def test_the_explanation_includes_limits_schedules_sizes_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["limits.range.voltage=[-2, 2.5]", "limits.rate_per_s.voltage=50", "device.pace={scaled: 10}"]
    assert main(["check", "pendulum", "--explain", *(f"--set={o}" for o in overrides)]) == 0
    out = re.sub(" +", " ", capsys.readouterr().out)
    for figures in (
        " velocity rad/s -30 .. 30 velocity, 0.001 per count ",
        " voltage V -3 .. 3 -2 .. 2.5 0 50 1 0.0001 10 |voltage|",
        " velocity rad/s -15 .. 15 -12 .. 12",
        " fallback voltage = -3 sat(velocity / 2) for 100 ms (5 ticks) or more",
        " lease 5 periods after 100 ms without a command the device sets its safe outputs",
        " episode 250 0.551 1.65 V (voltage)",
        "u has std 7.2, 89 % of it is clipped",
        " selection FULL[Uniform] 100000 experiences, 500 episodes",
        " buffer 4 MB 40 bytes per experience",
        " learner's memory 5.2 MB mirror, sampler, links and bookkeeping",
        " updates 100 after each episode 50000 in the run, batches of 16",
        " replay ratio 8 ",
        " run length 1 h 06 min of device time, without resets",
        " wall clock 6 min 40 s without resets and waits",
    ):
        assert figures in out
    assert list(tmp_path.iterdir()) == [], "a plot only on request"


def test_in_lockstep_no_time_on_the_wall_clock_is_promised() -> None:
    text = "\n".join(map(str, tables(load("pendulum"))))
    assert re.search(r"run length +1 h 06 min +of device time, without resets", text)
    assert re.search(r"wall clock +- +virtual time: ", text)


@pytest.mark.parametrize("overrides", [["exploration={process: none}"], ["episodes=1"], ["limits={}"]])
def test_the_plot_is_written_to_the_given_path_whatever_it_shows(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot_path = tmp_path / "plot.png"
    assert main(["check", "magman", "--plot", str(plot_path), *(f"--set={o}" for o in overrides)]) == 0
    assert plot_path.read_bytes().startswith(PNG)
    assert f"see {plot_path}" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["nowhere/plot.png", "plot.xyz"])
def test_a_plot_that_cannot_be_written_is_a_usage_error(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "pendulum", "--plot", str(tmp_path / file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("onrig check: --plot: ")
    assert str((tmp_path / file).parent) in line
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_tables_are_printed_and_nothing_is_plotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["check", "pendulum", "--plot", "plot.png"]) == 0
    out = capsys.readouterr().out
    assert "replay ratio" in out
    assert "pip install 'onrig[viz]'" in out
    assert list(tmp_path.iterdir()) == []


def test_the_columns_of_a_table_are_aligned() -> None:
    table = Table("thing", ("unit", "range"), (("length", "m", "0 .. 1"), ("t", "", "-")))
    assert str(table).splitlines() == ["thing     unit  range", "  length  m     0 .. 1", "  t             -"]


def test_replay_ratio_counts_both_ways_of_scheduling_updates() -> None:
    config = load("pendulum")
    assert mean_replays(config, LearnerSettings(updates_per_episode=100)) == 8.0
    assert mean_replays(config, LearnerSettings(updates_per_transition=0.25)) == 4.0


def test_with_dropped_experiences_the_others_are_replayed_more_often_after_each_episode() -> None:
    config = load("pendulum", ["selection.write_probability=0.5"])
    assert mean_replays(config, LearnerSettings(updates_per_episode=100)) == 16.0
    assert mean_replays(config, LearnerSettings(updates_per_transition=0.25)) == 4.0


def test_the_tables_report_what_is_dropped_altered_and_held() -> None:
    selection = "{strategy: 'Resv[Uniform]', capacity_bytes: 1000000, write_probability: 0.25, "
    selection += "synthetic: {states: 0.1, actions: 0.2, refresh: 0.5}}"
    text = "\n".join(map(str, tables(load("pendulum", [f"selection={selection}"]))))
    assert ", within 1 MB" in text
    assert re.search(r"written +25\.0%", text)
    assert re.search(r"synthetic +10\.0% +states redrawn, 20\.0% actions redrawn", text)
    assert re.search(r"50\.0% +of them are kept", text)


@pytest.mark.parametrize(("evaluate_every", "evaluation_s"), [(1, 2000.0), (3, 664.0), (0, 0.0)])
def test_device_time_counts_complete_episodes(evaluate_every: int, evaluation_s: float) -> None:
    assert device_seconds(load("pendulum", [f"evaluate_every={evaluate_every}"])) == (2000.0, evaluation_s)


def test_the_fallback_ends_within_the_middle_of_the_envelope() -> None:
    assert release_bounds(-15.0, 15.0, 0.8) == (-12.0, 12.0)
    assert release_bounds(0.0, 10.0, 0.5) == (2.5, 7.5)


def test_the_schedule_is_shown_at_its_own_points_inside_the_run() -> None:
    config = load("pendulum", ["episodes=100", "exploration.amplitude=[[1, 1], [30, 0.5], [500, 0.1]]"])
    assert isinstance(config.exploration, OrnsteinUhlenbeck)
    assert sample_points(config, config.exploration) == [1, 25, 30, 50, 75, 100]


def test_bars_place_limits_in_normalised_units() -> None:
    angle, velocity, voltage = limit_bars(load("pendulum", ["limits.range.voltage=[-1.5, 3]"]))
    assert sorted(angle.marks) == [("start", 0.0), ("target", -1.0), ("target", 1.0)]
    assert velocity.stretches[1:] == [("fallback remains active", -0.5, 0.5), ("policy active", -0.4, 0.4)]
    assert voltage.stretches[1] == ("configured range", -0.5, 1.0)


def test_policy_batches_are_counted_in_complete_episodes_in_lockstep(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "pendulum", "--explain", "--set", "exploration={process: own}", "--set"]
    assert main([*words, "learner={algorithm: ppo, ppo: {depth: 2}}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "after 2048 experiences of a policy, the next 152 are discarded 45 batches in the run" in out
    assert "replay ratio 20" in out
    assert main([*words, "learner={algorithm: trpo, trpo: {steps: 2000, batch: 80}}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "after 2000 experiences of a policy 50 batches in the run" in out
    assert "replay ratio 5" in out
