"""Fifty kills of a complete lockstep run at random moments, each resumed, until it is complete (`make study`)."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Final

import pytest

from onrig.runtime.exit_codes import ExitCode
from tests.lab.rig.run import PoweredRun
from tests.processes.power_cut import last_episode, outcome_of, resumptions_of

KILLS: Final = 50
EPISODES: Final = 500
SETTINGS: Final = ("task.episode_s=1", "learner.updates_per_episode=10", f"episodes={EPISODES}", "checkpoint_s=3")
"""A checkpoint after every third episode."""
INTERVAL: Final = 3
EARLY: Final = 0.2
"""Share of the lifetimes that end within EARLY_S of their start, during start-up or not; the others end later."""
EARLY_S: Final = (0.2, 5.0)
LIFE_EPISODES: Final = (1, 12)
"""Episodes after the last one of the earlier lifetimes, and additional time until the kill:"""
MORE_S: Final = 0.3
PATIENCE_S: Final = 900.0
SEED: Final = 6


def live(cable: PoweredRun, rng: random.Random, folder: Path, lived: int) -> int | None:
    """Let a run continue until a random moment; returns its exit code if it ended before."""
    if rng.random() < EARLY:
        return cable.ended(rng.uniform(*EARLY_S))
    goal, more_s = lived + rng.randint(*LIFE_EPISODES), rng.uniform(0.0, MORE_S)
    limit_s = time.monotonic() + PATIENCE_S
    while last_episode(folder) < goal:
        code = cable.ended(0.02)
        if code is not None:
            return code
        assert time.monotonic() < limit_s, cable.output
    return cable.ended(more_s)


@pytest.mark.study
def test_after_fifty_kills_a_run_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    arguments = ["pendulum", *(word for setting in SETTINGS for word in ("--set", setting)), "--run-dir"]
    whole, folder, output = tmp_path / "whole", tmp_path / "killed", tmp_path / "out"
    with PoweredRun(output, *arguments, whole) as cable:
        assert cable.ended(PATIENCE_S) == ExitCode.OK
    rng = random.Random(SEED)
    lost: list[int] = []
    start: list[str | Path] = [*arguments, folder]
    kills = n_known = lived = 0
    while True:
        with PoweredRun(output, *start) as cable:
            code = live(cable, rng, folder, lived) if kills < KILLS else cable.ended(PATIENCE_S)
            cable.cut()
            said = cable.output
        events = resumptions_of(folder)
        if len(events) > n_known:  # otherwise it was killed before it knew its position
            n_known = len(events)
            assert events[-1]["checkpoint_damaged"] is False
            lost.append(lived - int(str(events[-1]["episode"])))
        lived = last_episode(folder) if folder.exists() else 0
        if code is not None:
            assert code == ExitCode.OK, said
            break
        kills += 1
        start = ["--resume", folder] if (folder / "config.yaml").exists() else start
    print(
        f"\n{kills} kills, {n_known} resumes that started; repeated episodes: at most {max(lost)}, "
        f"on average {statistics.mean(lost):.1f}"
    )
    assert kills == KILLS
    # The episode with pending updates comes in addition to those without a checkpoint.
    assert max(lost) <= INTERVAL
    assert outcome_of(folder) == outcome_of(whole)
