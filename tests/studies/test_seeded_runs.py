"""A run whose memory starts with another run's experiences learns sooner than one that starts without."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

import onrig
from onrig.learner.trials.intervals import paired_difference

PAIRS: Final = 10
EPISODES: Final = 20
SOURCE_EPISODES: Final = 200


def evaluations(folder: Path, seed: int, *settings: str, episodes: int = EPISODES) -> float:
    """Mean normalised reward of a run's evaluations."""
    run = onrig.run("pendulum", [f"episodes={episodes}", f"seed={seed}", "log.mcap=false", *settings], run_dir=folder)
    found = onrig.open_run(run.folder).episodes
    return float(found["normalized"][found["kind"] == "eval"].mean())


@pytest.mark.study
def test_seed_experiences_improve_the_first_evaluations(tmp_path: Path) -> None:
    """For ten pairs of runs with the same seed; ``-s`` prints the figures."""
    evaluations(tmp_path / "source", 100, episodes=SOURCE_EPISODES)
    found = np.array(
        [
            [
                evaluations(tmp_path / f"cold-{seed}", seed),
                evaluations(tmp_path / f"seeded-{seed}", seed, f"selection.seed_from={tmp_path / 'source'}"),
            ]
            for seed in range(PAIRS)
        ]
    )
    lift = paired_difference(found[:, 1], found[:, 0])
    print(f"cold {found[:, 0].round(3).tolist()}\nseeded {found[:, 1].round(3).tolist()}")
    print(f"median difference {lift.value:.3f}, 95 % interval {lift.low:.3f} to {lift.high:.3f}, p {lift.p:.4f}")
    assert lift.low > 0
