"""KLPER's score as a measure of replayed and of stored experiences."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from onrig.learner.trials.engine import world_trials
from onrig.learner.trials.replay_measures import make_score
from onrig.learner.trials.step_run import REPLAY_MEASURES, StepRun

BASE_RUN = {
    "world": "gym:Pendulum-v1",
    "steps": 80,
    "horizon": 20,
    "evaluation": {"every": 40, "episodes": 1},
    "random_steps": 40,
    "exploration_std": 0.0,
    "learner": {"algorithm": "td3", "td3": {"hidden": [8, 8], "batch": 8, "lr": 1e-12}},
}


def _measure_index(name: str) -> int:
    return REPLAY_MEASURES.index(name)


def test_each_interpretation_of_the_paper_has_its_own_variance() -> None:
    action = np.random.default_rng(0).normal(0.0, 0.1, (2, 3 * 50_000, 1))
    score = make_score(lambda observation: np.zeros_like(action), 0.1)
    scores = score(np.zeros((2, 150_000, 3)), action, 50_000)
    assert scores.shape == (2, 3, 2)
    # Methods, "KLPER": actions that deviate with a standard deviation of 0.1.
    assert scores[..., 0] == pytest.approx(0.701, abs=0.01)
    assert scores[..., 1] == pytest.approx(0.0, abs=1e-3)


def test_batches_are_scored_by_their_origin() -> None:
    trials = world_trials(msgspec.convert(BASE_RUN, StepRun), [3, 4])
    measures_before, measures_after = (np.asarray(trials.advance().replay_measures) for _ in range(2))
    assert np.isnan(measures_before[:, _measure_index("kl covariance")]).all(), "nothing was replayed"
    assert np.isnan(measures_before[:, _measure_index("kl covariance old")]).all()
    # The policy does not change, and acts without noise: its own actions do not deviate at all.
    own_distance = 0.5 * (math.log(0.1 / 1e-6) - 1.0)
    assert measures_after[:, _measure_index("kl covariance old")] == pytest.approx(own_distance, abs=1e-3)
    assert measures_after[:, _measure_index("kl covariance present")] == pytest.approx(own_distance, abs=1e-3)
    assert (np.abs(measures_after[:, _measure_index("kl covariance random")]) < 2.0).all()
    assert (measures_after[:, _measure_index("kl std random")] > 5.0).all()
    mixed_measures = measures_after[:, _measure_index("kl covariance")]
    assert np.isfinite(mixed_measures).all()
    assert (mixed_measures < own_distance).all()


def test_levels_and_diverged_policies_have_no_score() -> None:
    dqn = {"world": "gym:CartPole-v1", "learner": {"algorithm": "dqn", "dqn": {"levels": 2}}}
    measures = np.asarray(world_trials(msgspec.convert(BASE_RUN | dqn, StepRun), [0]).advance().replay_measures)
    assert np.isnan(measures[:, 2:]).all()
    single_batch = {"learner": {"algorithm": "td3", "td3": {"hidden": [8, 8], "batch": 1}}}
    measures = np.asarray(
        world_trials(msgspec.convert(BASE_RUN | single_batch, StepRun), [0]).advance().replay_measures
    )
    assert np.isnan(measures[:, 2:]).all(), "a batch of one has no covariance"
    score = make_score(lambda observation: np.full((1, 8, 2), np.nan), 0.1)
    assert np.isnan(score(np.zeros((1, 8, 3)), np.zeros((1, 8, 2)), 8)).all()
