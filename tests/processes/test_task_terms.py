"""A task of terms and expressions: checked, run in lockstep, replayed, and its rewards recomputed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.log.reading import read_log
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_loading import load_run
from onrig.runtime.task import batched_reward

TERMS: dict[str, Any] = {
    "upright": {"kind": "tolerance", "observation": "angle", "bounds": [3.0, 4.0], "margin": 2.0, "folded": True},
    "energy": {"kind": "expression", "value": "where(velocity > 0, 1, 2) - 0.01 * velocity**2 - 0.1 * voltage**2"},
    "smooth": {"kind": "action_change", "actuator": "voltage", "weight": 0.5, "shape": "squared"},
    "smoother": {"kind": "expression", "value": "-abs(voltage - previous_voltage)"},
    "lives": {"kind": "alive", "reward": 0.25},
    "falls": {"kind": "terminal", "reward": -3.0},
}
TASK: dict[str, Any] = {
    "name": "terms",
    "episode_s": 2.0,
    "start": {"angle": 0.0, "velocity": 0.0},
    "reward": {"terms": TERMS},
    "normalization": {"random_reward": -2.0, "reference_reward": 2.0},
    "terminations": {
        "fast": {"kind": "expression", "value": "abs(velocity) > 2.5 or cos(angle) < 0", "reward": -500.0}
    },
}


def onrig(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onrig.tools.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_run(folder: Path, task: dict[str, Any]) -> Path:
    path = folder / "run.yaml"
    run = {
        "rig": "pendulum",
        "task": task,
        "device": {"twin": {"plant": {"kind": "pendulum", "inertia": "paper"}}, "pace": "lockstep"},
        "rate_hz": 50,
        "episodes": 6,
        "learner": {"ddpg": {}, "updates_per_episode": 5},
        "exploration": {"process": "ou"},
    }
    path.write_text(yaml.safe_dump(run, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.usefixtures("no_plots")
def test_the_task_is_checked_run_and_replayed_and_its_rewards_match_its_formulas(tmp_path: Path) -> None:
    path, folder = write_run(tmp_path, TASK), tmp_path / "run"
    for arguments in (("check", path), ("run", path, "--run-dir", folder)):
        done = onrig(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    replayed = onrig("replay", folder)
    assert re.search(r"ticks that differ +0\n", replayed.stdout), replayed.stdout + replayed.stderr

    config = load_run(str(path))
    records = np.concatenate([part for part in read_log(folder, config.rig) if isinstance(part, np.ndarray)])
    records = records[records["kind"] != Kind.RESET]
    first, second = records[:-1], records[1:]
    within = first["flags"] & Flag.NO_ACTION == 0
    next_observation, applied = (
        rows[field][within].astype(np.float64) for rows, field in ((second, "observation"), (first, "applied"))
    )
    is_first = first["flags"][within] & Flag.FIRST != 0
    previous_applied = np.where(is_first[:, None], 0.0, np.concatenate((applied[:1], applied[:-1])))
    rewards = batched_reward(config.task, config.rig)(next_observation, applied, previous_applied)
    assert rewards.tolist() == first["reward"][within].tolist()
    assert is_first.sum() > 6

    ended = second["flags"][within] & Flag.TERMINATED != 0
    assert 0 < ended.sum() < len(ended)
    assert (rewards[ended] < -250.0).all()
    assert (rewards[~ended] > -250.0).all()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["transitions"] == int((records["kind"][:-1][within] == Kind.TRAIN).sum())


def test_an_invalid_expression_is_refused_with_its_place(tmp_path: Path) -> None:
    invalid_term = {"kind": "expression", "value": "cos(angle)\n- 0.1 * velocty"}
    done = onrig("check", write_run(tmp_path, {**TASK, "reward": {"terms": {"mine": invalid_term}}}))
    assert done.returncode == ExitCode.CONFIGURATION
    message = (
        r"run\.yaml:\d+:\d+: line 2, column 9 of the expression: unknown name 'velocty', did you mean 'velocity'\?"
    )
    assert re.search(rf"{message} at task\.reward\.terms\.mine\.value", done.stderr), done.stderr
