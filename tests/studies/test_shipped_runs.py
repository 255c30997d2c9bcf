"""The shipped runs learn: `make study` runs seeds 0-9 of each (half an hour on two cores) and prints their scores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SEEDS = range(10)
ENOUGH = 9
GOAL = 0.8


def _score(config: str, seed: int, folder: Path) -> float:
    run_dir = folder / f"{config}-{seed}"
    command = [
        sys.executable,
        "-m",
        "onrig.tools.cli",
        "run",
        config,
        "--set",
        f"seed={seed}",
        "--run-dir",
        str(run_dir),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
    return float(json.loads((run_dir / "summary.json").read_text())["normalized_last20"])


@pytest.mark.study
@pytest.mark.parametrize("config", ["pendulum", "magman"])
def test_at_least_nine_of_ten_seeds_reach_the_goal(config: str, tmp_path: Path) -> None:
    scores = [_score(config, seed, tmp_path) for seed in SEEDS]
    print(f"\n{config}: " + " ".join(f"{s:.3f}" for s in scores))
    assert sum(s >= GOAL for s in scores) >= ENOUGH
