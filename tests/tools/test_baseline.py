"""`onrig baseline`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onrig.sim.baselines.fuzzy_q_iteration import Grid
from onrig.sim.baselines.sampling import Effort
from onrig.tools.cli import main

TINY_GRIDS = (Grid((8, 9), 3), Grid((12, 13), 3))
HORIZON_GRIDS = (Grid((8, 9), 3),)
EFFORTS = (Effort(8, 4, 1), Effort(12, 5, 1))


@pytest.fixture(autouse=True)
def _use_small_grids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("onrig.tools.baseline.grids_for", lambda model, fineness: TINY_GRIDS)
    monkeypatch.setattr("onrig.tools.baseline.horizon_grids_for", lambda model, fineness: HORIZON_GRIDS)
    monkeypatch.setattr("onrig.tools.baseline.efforts_for", lambda model, fineness: EFFORTS)
    monkeypatch.setattr("onrig.sim.baselines.corridor.polish", lambda model, trajectory: trajectory)


@pytest.mark.parametrize("config", ["pendulum", "magman"])
def test_it_shows_the_tasks_references_next_to_its_own_and_again_from_the_cache(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baseline", config]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["0.0000", "1.0000"]
    assert "standard error" in lines[3]
    assert len(lines) == 4 + 2 * len(TINY_GRIDS) + 3 * len(HORIZON_GRIDS) + len(EFFORTS)
    cached_tables = sorted(tmp_path.rglob("*.npz"))
    assert len(cached_tables) == 1 + len(TINY_GRIDS) + len(HORIZON_GRIDS) + len(EFFORTS)
    assert main(["baseline", config]) == 0
    assert capsys.readouterr().out == out
    assert sorted(tmp_path.rglob("*.npz")) == cached_tables


def test_a_task_whose_episodes_differ_has_a_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "pendulum", "--set", "task.start={angle: [-0.5, 0.5], velocity: 0}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "sampling MPC, 8 samples" in line]
    assert re.search(r"\(\+- \d+\.\d{4}, standard error over 8 episodes", row)
    assert (
        lines[-1]
        == "  fuzzy Q-iteration and the finite-horizon optimum were skipped: episodes of the task have different starts"
    )


def test_under_noise_its_best_episodes_are_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onrig.sim.baselines.under_noise.best_under_noise", lambda model, solution, sigma: (-40.0, 0.1))
    assert main(["baseline", "pendulum", "--set", "device.twin.actuator_noise=0.02"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "noise" in line]
    assert "-40.0000" in row
    assert "+- 0.1000" in row


def test_a_rig_on_a_port_has_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(
        "rig: pendulum\ntask: swingup\ndevice: {port: {path: /dev/none}}\nrate_hz: 50\nepisodes: 1\n"
        "learner: {updates_per_episode: 100}\n"
    )
    assert main(["baseline", str(path)]) == 2
    assert "uses a port" in capsys.readouterr().err


def test_for_a_terminating_task_it_prints_the_reward_of_the_sampling_controller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_arguments = ["--set", "task.terminate={velocity: [-20, 20]}", "--set", "task.normalization=null"]
    assert main(["baseline", "pendulum", *set_arguments]) == 0
    *_, second_line, absent_line, normalization_line = capsys.readouterr().out.splitlines()
    assert "sampling MPC, 12 samples, 0.1 s" in second_line
    assert "100% of episodes reach the end" in second_line
    assert absent_line == "  fuzzy Q-iteration and the finite-horizon optimum were skipped: the task terminates"
    match = re.fullmatch(
        r"normalization: {random_reward: (\S+), reference_reward: (\S+)}  # for the task", normalization_line
    )
    assert match is not None
    assert float(match[1]) < float(match[2])


def test_a_missing_configuration_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
