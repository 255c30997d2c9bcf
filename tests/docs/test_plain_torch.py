"""The algorithm of docs/plain-torch.md, as a file next to its run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.commands import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_plots")
BLOCKS = dict(
    re.findall(
        r"^```\w+\n# (\S+)\n(.*?)^```",
        (ROOT / "docs" / "plain-torch.md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
)
SHORT = ["--set", "episodes=4", "--set", "task.episode_s=1", "--set", "learner.updates_per_episode=5"]


def onrig(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "onrig.tools.cli", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_it_learns_on_a_rig_and_replays(lab: Path) -> None:
    assert ": valid" in onrig(lab, "check", "run.yaml")
    onrig(lab, "run", "run.yaml", "--run-dir", "run", *SHORT)
    assert "ticks that differ  0" in onrig(lab, "replay", "run", "--trust")
    learned = (lab / "run" / "policies" / "index.csv").read_text().splitlines()
    assert len(learned) > 2, "only the first policy was admitted"


def test_an_algorithm_that_claims_bit_identical_trials_is_held_to_it(lab: Path) -> None:
    path, bits = lab / "twin_ddpg.py", "errors[0].detach().numpy()"
    path.write_text(
        path.read_text()
        .replace("    bit_identical_trials = False\n", "")
        .replace(bits, f"{bits} * (1 + 1e-6 * len(s))")
    )
    assert "a trial alone and among other trials differ: every bit" in onrig(lab, "check", "run.yaml", code=2)
