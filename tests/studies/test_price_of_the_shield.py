"""Cost of the shield: seeds 0-9 of the swing-up with its limits and without, with the same noise.

`make study` prints the table of runtime/SAFETY.md (an hour on two cores); ONRIG_SEEDS=3 runs the first three.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest

SEEDS = range(int(os.environ.get("ONRIG_SEEDS", "10")))
GOAL = 0.8
WINDOW = 20
"""Number of episodes in the mean, as in ``normalized_last20``."""
BLOCK = 100


class Outcome(NamedTuple):
    """Results of a run."""

    score: float
    rise: int
    """First episode by which the mean of the last ``WINDOW`` reached the goal; one past the last if it never did."""
    interventions: tuple[int, ...]
    """Per ``BLOCK`` episodes."""


def _run(seed: int, folder: Path, *overrides: str) -> Outcome:
    command = [sys.executable, "-m", "onrig.tools.cli", "run", "pendulum", "--run-dir", str(folder)]
    for override in (f"seed={seed}", "evaluate_every=0", *overrides):
        command += ["--set", override]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1800)
    with (folder / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores = [float(row["normalized"]) for row in rows]
    acted = [int(row["interventions"]) for row in rows]
    ends = range(WINDOW, len(scores) + 1)
    rise = next((end for end in ends if mean(scores[end - WINDOW : end]) >= GOAL), len(scores) + 1)
    blocks = tuple(sum(acted[at : at + BLOCK]) for at in range(0, len(acted), BLOCK))
    summary = json.loads((folder / "summary.json").read_text())
    return Outcome(float(summary["normalized_last20"]), rise, blocks)


@pytest.mark.study
def test_learning_succeeds_under_limits_and_interventions_decrease(tmp_path: Path) -> None:
    print("\nseed  with limits: last 20, rise, interventions per 100 episodes   without: last 20, rise", flush=True)
    shielded, free = [], []
    for seed in SEEDS:
        shielded.append(_run(seed, tmp_path / f"with-{seed}"))
        free.append(_run(seed, tmp_path / f"without-{seed}", "limits={}"))
        s, f = shielded[-1], free[-1]
        print(f"{seed:4}  {s.score:.3f}  {s.rise:4}  {s.interventions}   {f.score:.3f}  {f.rise:4}", flush=True)
    price = mean(s.rise - f.rise for s, f in zip(shielded, free, strict=True))
    print(f"price of the limits: {price:+.1f} episodes to {GOAL} (mean over {len(shielded)} paired seeds)")
    assert sum(s.score >= GOAL for s in shielded) >= 0.8 * len(shielded)
    first, last = (sum(s.interventions[at] for s in shielded) for at in (0, -1))
    assert last < 0.1 * first, "interventions do not fall"
