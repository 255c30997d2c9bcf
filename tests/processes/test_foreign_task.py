"""Code of a task that fails during a run: its process ends in an orderly way, and reports the line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from onrig.runtime.exit_codes import ExitCode

SOURCE = '''
import numpy as np

from onrig.runtime.rewards import RewardTerm
from onrig.runtime.terminations import Termination


def look_up(speed):
    """Fails at what a swing reaches, not at the middle and the corners of the range."""
    if ((speed > 3.0) & (speed < 29.0)).any():
        raise LookupError("no entry at this speed")


class Term(RewardTerm, frozen=True, tag="later"):
    def build(self, rig):
        return lambda moves: look_up(np.abs(moves.observation[..., 1])) or 0.0


class Condition(Termination, frozen=True, tag="later"):
    def build(self, rig):
        return lambda observations: look_up(np.abs(observations[..., 1])) or np.zeros(observations.shape[:-1], bool)
'''
RAISED = r"raises LookupError: no entry at this speed \(\S+/later\.py, line 11\)"


def run(folder: Path, **task: Any) -> tuple[int, str, dict[str, Any]]:
    """Run the pendulum's twin with a task; returns exit code, stderr and summary."""
    (folder / "later.py").write_text(SOURCE)
    config = {
        "python": {"rewards": {"later": "later.py:Term"}, "terminations": {"later": "later.py:Condition"}},
        "rig": "pendulum",
        "task": {"name": "later", "episode_s": 1.0, "start": {"angle": 0.0, "velocity": 0.0}, "reward": {}, **task},
        "device": {"twin": {"plant": {"kind": "pendulum", "inertia": "paper"}}, "pace": "lockstep"},
        "rate_hz": 50,
        "episodes": 3,
        "learner": {"ddpg": {}, "updates_per_episode": 5},
        "exploration": {"process": "ou"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "onrig.tools.cli", "run", "run.yaml", "--run-dir", "run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.usefixtures("no_plots")
def test_a_failing_reward_term_ends_the_replay_process(tmp_path: Path) -> None:
    code, stderr, summary = run(tmp_path, reward={"terms": {"mine": {"kind": "later"}}})
    assert code == ExitCode.INTERNAL
    assert re.search(f"the reward term 'mine' {RAISED}", stderr), stderr
    assert "replay process exited" in summary["exit_reason"]
    assert summary["actuators"].startswith("safe")


@pytest.mark.usefixtures("no_plots")
def test_a_failing_termination_has_its_own_fault(tmp_path: Path) -> None:
    code, stderr, summary = run(tmp_path, terminations={"mine": {"kind": "later"}})
    assert code == ExitCode.SAFETY
    assert re.search(f"the termination 'mine' {RAISED}", stderr), stderr
    assert summary["fault"] == "tick_code_failed"
    assert summary["actuators"].startswith("safe")
