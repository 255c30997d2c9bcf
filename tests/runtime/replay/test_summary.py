"""Figures of a run, during and after it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onrig.runtime.memory.layout import Flag
from onrig.runtime.replay.summary import process_figures, progress, summary_content, write_summary


def parts(normalized: float | None = 0.9) -> Any:
    meta = np.array([0, Flag.SYNTHETIC, Flag.SYNTHETIC], np.uint8)
    return SimpleNamespace(
        figures=SimpleNamespace(
            episode=5,
            normalized_last20=normalized,
            return_last20=None if normalized is None else -9.0,
            ticks=1000,
            missed=3,
            summary=lambda: {"ticks": 1000},
        ),
        requests=SimpleNamespace(
            feed=SimpleNamespace(last_closed_episode=4),
            feedback=SimpleNamespace(batches=7),
            updates=400,
            updates_per_s=12.5,
            updates_behind=lambda n: 400 - 10 * n,
            mismatches=1,
        ),
        builder=SimpleNamespace(gaps=2),
        policies=SimpleNamespace(n_offered=9, n_admitted=8, n_refused=1, n_too_soon=40, rolled_back=2),
        memory=SimpleNamespace(
            offered=990,
            strategy="FIFO[Uniform]",
            keeper=SimpleNamespace(nbytes=24, n_rejected=4),
            storage=SimpleNamespace(stored=3, capacity=10, nbytes=320, meta=meta, digest=lambda: bytes([0xAB, 0xCD])),
        ),
    )


def test_the_progress_line_names_the_acting_policy() -> None:
    fields = progress(parts(), active_policy=30, policy_age_s=1.23456)
    assert (fields["policy"], fields["policy_age_s"], fields["policy_behind"]) == (30, 1.235, 100)
    assert (fields["episode"], fields["normalized"], fields["stored"]) == (5, 0.9, 3)
    assert (fields["policies_too_soon"], fields["return"]) == (40, -9.0)


@pytest.mark.parametrize(("score", "expected"), [(0.9, 0.9), (None, math.nan)])
def test_viewers_receive_an_undefined_score(score: float | None, expected: float) -> None:
    figures = process_figures(parts(score), dropped=6)
    assert figures.score_last20 == pytest.approx(expected, nan_ok=True)
    assert (figures.dropped, figures.gaps, figures.policies_offered, figures.policies_refused) == (6, 2, 9, 1)


def test_the_summary_counts_everything_once() -> None:
    content: Any = summary_content(parts(), dropped=6, active_policy=8)
    assert (content["episodes"], content["transitions"], content["gaps"], content["dropped_records"]) == (4, 990, 2, 6)
    assert content["buffer"] == {
        "capacity": 10,
        "stored": 3,
        "refused": 4,
        "bytes": 344,
        "strategy": "FIFO[Uniform]",
        "synthetic": 2,
        "digest": "abcd",
    }
    counts = {"offered": 9, "admitted": 8, "refused": 1, "too_soon": 40, "rolled_back": 2, "active": 8}
    assert content["policies"] == counts
    assert content["learner"] == {"updates": 400, "updates_per_s": 12.5, "error_batches": 7}


def test_the_summary_replaces_the_previous_one_atomically(tmp_path: Path) -> None:
    for episodes in (1, 2):
        write_summary(tmp_path, {"episodes": episodes})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"episodes": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
