"""Complete runs in lockstep, for tests of what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

EPISODES: Final = 4
SETTINGS: Final = (
    f"episodes={EPISODES}",
    "task.episode_s=0.6",
    "selection.strategy=FULL[Uniform]",
    "learner.ddpg.network=small",
    "learner.updates_per_episode=5",
)


def start(folder: Path, *settings: str, config: str = "pendulum") -> subprocess.Popen[str]:
    """Start a small run, which keeps all of its experiences."""
    words = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    hidden = folder.parent / "no-plots"
    hidden.mkdir(exist_ok=True)
    (hidden / "matplotlib.py").write_text("raise ImportError('left out')\n")
    path = os.pathsep.join(filter(None, (str(hidden), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "onrig.tools.cli", "run", config, "--run-dir", str(folder), *words],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def make_finished_run(folder: Path, *settings: str, config: str = "pendulum") -> Path:
    """Complete a small run."""
    with start(folder, *settings, config=config) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    return folder


def copy_as_killed(source: Path, folder: Path) -> Path:
    """Copy of a run as if it had been killed: no summary, a log without its end."""
    import shutil

    shutil.copytree(source, folder)
    for name in ("summary.json", "checksums.json"):
        (folder / name).unlink()
    log = folder / "log.mcap"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 40)
    return folder
