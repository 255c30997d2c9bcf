from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.learner.trials.measures import estimate_buffer_size

EPISODES = 5000
STEPS = 200.0 * np.arange(1, EPISODES + 1)
"""1e6 steps, as in Figure 17."""
SIZES = {"IDP": 318, "Reacher": 28, "Walker": 164, "Cheetah": 264, "Hopper": 644, "Ant": 700}
"""Thousands of experiences that Figure 17 recommends for its six benchmarks."""


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_a_curve_that_reaches_nine_tenths_at_a_size_of_the_paper_recommends_that_size(size: int) -> None:
    steps_to_level = 1000.0 * size
    curve = 1234.0 * np.minimum(1.0, STEPS * 0.9 / steps_to_level)
    estimate = estimate_buffer_size(STEPS, curve, window=1)
    assert estimate is not None
    # The ramp ends at at / 0.9, which for the largest sizes is not long before the last 2e5 steps.
    assert estimate.n_experiences == pytest.approx(steps_to_level, abs=200)
    assert (estimate.final_performance, estimate.has_converged) == (1234.0, True)


def test_a_saturating_exponential_has_its_closed_form() -> None:
    tau = 1e5
    estimate = estimate_buffer_size(STEPS, 1.0 - np.exp(-STEPS / tau), window=1)
    assert estimate is not None
    final = 1.0 - tau / 2e5 * (math.exp(-8) - math.exp(-10))
    assert estimate.final_performance == pytest.approx(final, abs=1e-6)
    assert estimate.n_experiences == pytest.approx(-tau * math.log(1.0 - 0.9 * final), abs=200)


def test_noise_is_averaged_out_at_the_cost_of_half_a_window() -> None:
    clean_curve = np.minimum(1.0, STEPS * 0.9 / 2e5)
    noisy_curve = clean_curve + np.random.default_rng(0).normal(0, 0.3, EPISODES)
    unsmoothed_size, smoothed_size = (
        estimate_buffer_size(STEPS, noisy_curve, window=1),
        estimate_buffer_size(STEPS, noisy_curve, window=200),
    )
    assert unsmoothed_size is not None
    assert smoothed_size is not None
    assert unsmoothed_size.n_experiences < 1.5e5, "the first lucky episode"
    assert smoothed_size.n_experiences == pytest.approx(2e5 + 200 * 100, abs=1e4)


def test_trials_are_averaged_before_anything_is_derived() -> None:
    fast_curve, slow_curve = np.minimum(1.0, STEPS / 1e5), np.minimum(1.0, STEPS / 4e5)
    estimate = estimate_buffer_size(STEPS, np.stack([fast_curve, slow_curve]), window=1)
    assert estimate is not None
    assert estimate.n_experiences == pytest.approx(3.2e5, abs=200)  # (1 + s / 4e5) / 2 = 0.9


def test_a_curve_that_still_rises_at_the_end_has_not_converged() -> None:
    estimate = estimate_buffer_size(STEPS, STEPS**4, window=1)
    assert estimate is not None
    assert not estimate.has_converged


def test_the_final_performance_is_that_of_the_last_fifth_of_the_steps() -> None:
    estimate = estimate_buffer_size([100, 200, 700, 850, 1000], [9.0, 9.0, 9.0, 1.0, 3.0], window=1)
    assert estimate is not None
    assert estimate.final_performance == 2.0


def test_episodes_of_unequal_length_are_weighted_by_their_steps() -> None:
    estimate = estimate_buffer_size([10, 500, 505, 800, 1000], [0.0, 0.5, 0.95, 1.0, 1.0], window=1)
    assert estimate is not None
    assert estimate.n_experiences == 505


@pytest.mark.parametrize("performance", [[-5.0, -1.0], [0.0, 0.0], [float("nan"), float("nan")], [1.0, -1.0]])
def test_a_run_that_learned_nothing_recommends_nothing(performance: list[float]) -> None:
    assert estimate_buffer_size([100, 200], performance, window=1) is None


def test_without_a_curve_nothing_is_recommended() -> None:
    assert estimate_buffer_size([], []) is None


@pytest.mark.parametrize(("steps", "performance"), [([1, 2, 3], [1.0, 2.0]), ([[1, 2]], [[1.0, 2.0]])])
def test_mismatched_shapes_are_refused(steps: list[float], performance: list[float]) -> None:
    with pytest.raises(ValueError, match="do not match"):
        estimate_buffer_size(steps, performance)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=80), st.integers(1, 30))
def test_the_recommendation_is_a_number_of_steps_of_the_run(performance: list[float], window: int) -> None:
    steps = 200 * np.arange(1, len(performance) + 1)
    estimate = estimate_buffer_size(steps, performance, window=window)
    assert estimate is None or estimate.n_experiences in steps
