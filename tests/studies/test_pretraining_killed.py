"""`onrig pretrain` killed at arbitrary times, and continued to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onrig.learner.agent import read_networks
from onrig.learner.states import States
from onrig.runtime.replay.seeds import digest
from onrig.tools.pretrained import read_pretraining
from tests.tools.pretraining.posterior import write_pendulum_result

pytestmark = pytest.mark.study

SETTINGS = ("task.episode_s=0.6", "learner.ddpg.network=small", "learner.updates_per_episode=5")
EPISODES = 400
KILLS = 5


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "onrig.tools.cli", "pretrain", *words]


def test_a_killed_pretraining_ends_with_the_same_networks_and_scores(tmp_path: Path) -> None:
    file = write_pendulum_result(tmp_path)
    settings = [word for s in (f"identified={file}", *SETTINGS) for word in ("--set", s)]
    start = command("pendulum", *settings, "--episodes", str(EPISODES), "--minutes", "1000", "--out")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*start, str(whole)], check=True, capture_output=True)
    rng = np.random.default_rng(0)
    kills = 0
    words = [*start, str(killed)]
    while not (killed / "pretraining.json").exists() or not read_pretraining(killed).ended:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                out, _ = process.communicate(timeout=None if kills == KILLS else float(rng.uniform(5.0, 15.0)))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                kills += (killed / "pretraining.json").exists()
            else:
                assert process.returncode == 0, out
        if (killed / "pretraining.json").exists():
            words = command("--resume", str(killed))
    assert kills >= 1
    assert read_pretraining(killed).evaluations == read_pretraining(whole).evaluations
    states = [States(folder / "learner", lambda line: None) for folder in (whole, killed)]
    ours, theirs = (digest(dict(read_networks(s.path(s.episodes()[0]), "ddpg"))) for s in states)
    assert ours == theirs
