"""Objectives on curves."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.learner.trials.objectives import OBJECTIVES, fill_diverged

CURVES = np.array([np.linspace(0.1, 1.0, 10), np.full(10, 0.5), [0.9, *np.full(9, 0.2)]])


@pytest.mark.parametrize(
    ("objective", "scores"),
    [("final", [1.0, 0.5, 0.2]), ("rise", [0.2, 0.0, 0.9]), ("regret", [0.55, 0.5, 0.27]), ("robust", [1.0, 0.5, 0.2])],
)
def test_scores_of_curves(objective: str, scores: list[float]) -> None:
    assert OBJECTIVES[objective].scores(CURVES) == pytest.approx(scores)


def test_evaluations_of_diverged_networks_count_as_the_worst_or_as_random_actions() -> None:
    diverged_curves = np.array([[0.5, np.nan, np.inf], [-0.4, 0.2, np.nan], [np.nan] * 3])
    assert fill_diverged(diverged_curves).tolist() == [[0.5, 0.0, 0.0], [-0.4, 0.2, -0.4], [0.0, 0.0, 0.0]]
