"""`onrig export` killed at arbitrary times: never half a data set at its destination, and the next one is complete."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import onrig
from onrig.tools.exporting.export import FORMATS

pytestmark = pytest.mark.study

KILLS = 50
EPISODES = 150


def contents(folder: Path) -> dict[str, int]:
    """Sizes of the files of a folder, which may not exist."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_an_export_is_complete_or_absent_after_a_kill(tmp_path: Path) -> None:
    run = onrig.run("pendulum", [f"episodes={EPISODES}", "learner.updates_per_episode=1"], run_dir=tmp_path / "run")
    rng = np.random.default_rng(0)
    command = [sys.executable, "-m", "onrig.tools.cli", "export", str(run.folder), "--format"]
    expected, duration_s = {}, {}
    for name in FORMATS:
        began = time.monotonic()
        subprocess.run([*command, name, "--out", str(tmp_path / name)], check=True, capture_output=True)
        expected[name], duration_s[name] = contents(tmp_path / name), time.monotonic() - began
    n_killed = 0
    while n_killed < KILLS:
        name = FORMATS[n_killed % len(FORMATS)]
        out = tmp_path / f"{name}-{n_killed}"
        with subprocess.Popen(
            [*command, name, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(rng.uniform(0.0, duration_s[name]))
            process.kill()
        n_killed += process.returncode != 0
        if out.exists():
            assert contents(out).keys() == expected[name].keys()
            continue
        subprocess.run([*command, name, "--out", str(out)], check=True, capture_output=True)
        assert contents(out).keys() == expected[name].keys()
        assert not list(tmp_path.glob(".*partial*"))
