from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from onrig.learner.trials.measures import (
    final_mean,
    moving_average,
    mu_final,
    mu_max,
    normalized_curves,
    rise_time,
)
from onrig.runtime.scoring import normalized
from onrig.tools.load import load

CURVES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-5, 2, width=16),
)


def test_curves_are_normalised_like_the_tasks() -> None:
    task = load("magman").task
    raw = np.array([[-5.154, -0.2067, -3.0], [-9.0, 0.0, -1.25]])
    assert normalized_curves(task, raw).tolist() == [[normalized(task, r, 1) for r in row] for row in raw.tolist()]
    assert normalized_curves(task, raw)[0, :2].tolist() == [0.0, 1.0]


@given(CURVES, st.integers(1, 15), st.floats(-5, 2, width=16))
@settings(max_examples=60)
def test_measures_match_a_loop_over_trials_and_episodes(mu: NDArray[np.float64], window: int, level: float) -> None:
    episodes_to_rise = rise_time(mu, level=level)
    for trial, row in enumerate(mu.tolist()):
        tail = row[-window:]
        assert mu_final(mu, window)[trial] == pytest.approx(math.fsum(tail) / len(tail))
        assert mu_max(mu)[trial] == max(row)
        episodes_above = [e for e, value in enumerate(row, 1) if value >= level]
        assert (episodes_to_rise.episode[trial], episodes_to_rise.has_risen[trial]) == (
            episodes_above[0] if episodes_above else len(row),
            bool(episodes_above),
        )
    assert episodes_to_rise.n_never_risen == sum(max(row) < level for row in mu.tolist())
    smoothed = moving_average(mu, window)
    assert smoothed.shape == mu.shape
    for e in range(mu.shape[1]):
        assert smoothed[:, e] == pytest.approx(mu[:, max(0, e + 1 - window) : e + 1].mean(axis=1), abs=1e-12)


def test_mu_final_averages_the_last_hundred_episodes() -> None:
    mu = np.concatenate((np.full((2, 300), -9.0), np.full((2, 100), 0.75)), axis=1)
    assert mu_final(mu).tolist() == [0.75, 0.75]


def test_the_rise_time_is_censored_at_the_last_episode_if_a_trial_never_rises() -> None:
    episodes_to_rise = rise_time(np.array([[0.1, 0.8, 0.2], [0.1, 0.79, 0.2]]), np.array([10, 20, 30]))
    assert episodes_to_rise.episode.tolist() == [20, 30]
    assert episodes_to_rise.has_risen.tolist() == [True, False]
    assert (episodes_to_rise.n_never_risen, episodes_to_rise.is_censored) == (1, True)
    assert not rise_time(np.array([[0.8], [0.8], [0.1]])).is_censored


@pytest.mark.parametrize("mu", [np.zeros((3, 0)), np.zeros(3)])
def test_curves_without_episodes_are_refused(mu: NDArray[np.float64]) -> None:
    for measure in (mu_final, mu_max, rise_time):
        with pytest.raises(ValueError, match="at least one episode"):
            measure(mu)


def test_the_final_mean_covers_a_share_of_the_points() -> None:
    curves = np.arange(40.0).reshape(2, 20)
    assert final_mean(curves).tolist() == [18.5, 38.5]
    assert final_mean(curves[:, :3]).tolist() == [2.0, 22.0]
