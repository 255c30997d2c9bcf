from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from onrig.learner.trials import measures
from onrig.learner.trials.measures import (
    curve_bounds,
    final_mean,
    interquartile_mean,
    mean_bounds,
    moving_average,
    mu_final,
    mu_max,
    normalized_curves,
    paired,
    paired_difference,
    paired_ratio,
    rise_time,
)
from onrig.runtime.scoring import normalized
from onrig.tools.load import load

NORMAL_95 = 1.959964
CURVES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-5, 2, width=16),
)


def normal(seed: int, *shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(shape)


def test_curves_are_normalised_as_the_tasks_are() -> None:
    task = load("magman").task
    raw = np.array([[-5.154, -0.2067, -3.0], [-9.0, 0.0, -1.25]])
    assert normalized_curves(task, raw).tolist() == [[normalized(task, r, 1) for r in row] for row in raw.tolist()]
    assert normalized_curves(task, raw)[0, :2].tolist() == [0.0, 1.0]


@given(CURVES, st.integers(1, 15), st.floats(-5, 2, width=16))
@settings(max_examples=60)
def test_measures_are_what_a_loop_over_trials_and_episodes_finds(
    mu: NDArray[np.float64], window: int, level: float
) -> None:
    rise = rise_time(mu, level=level)
    for trial, row in enumerate(mu.tolist()):
        tail = row[-window:]
        assert mu_final(mu, window)[trial] == pytest.approx(math.fsum(tail) / len(tail))
        assert mu_max(mu)[trial] == max(row)
        risen = [e for e, value in enumerate(row, 1) if value >= level]
        assert (rise.episode[trial], rise.risen[trial]) == (risen[0] if risen else len(row), bool(risen))
    assert rise.never == sum(max(row) < level for row in mu.tolist())
    smooth = moving_average(mu, window)
    assert smooth.shape == mu.shape
    for e in range(mu.shape[1]):
        assert smooth[:, e] == pytest.approx(mu[:, max(0, e + 1 - window) : e + 1].mean(axis=1), abs=1e-12)


def test_mu_final_takes_the_last_hundred_episodes() -> None:
    mu = np.concatenate((np.full((2, 300), -9.0), np.full((2, 100), 0.75)), axis=1)
    assert mu_final(mu).tolist() == [0.75, 0.75]


def test_a_trial_that_never_rises_counts_with_its_last_episode_and_is_told() -> None:
    rise = rise_time(np.array([[0.1, 0.8, 0.2], [0.1, 0.79, 0.2]]), np.array([10, 20, 30]))
    assert rise.episode.tolist() == [20, 30]
    assert rise.risen.tolist() == [True, False]
    assert rise.never == 1


@pytest.mark.parametrize("mu", [np.zeros((3, 0)), np.zeros(3)])
def test_curves_without_episodes_are_refused(mu: NDArray[np.float64]) -> None:
    for measure in (mu_final, mu_max, rise_time):
        with pytest.raises(ValueError, match="at least one episode"):
            measure(mu)


def test_bounds_of_a_large_normal_sample_are_those_of_the_closed_form() -> None:
    values = normal(1, 400)
    found = mean_bounds(values)
    # The bootstrap's standard error is the sample's without Bessel's correction.
    half = NORMAL_95 * values.std() / math.sqrt(len(values))
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.06 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.06 * half)


def test_bounds_of_two_trials_are_the_trials_themselves() -> None:
    # A quarter of the resamples is made of either trial alone, far more than the 2.5 % beyond each bound.
    assert mean_bounds(np.array([1.0, 3.0])) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(("kind", "mean"), [("normal", 0.0), ("exponential", 1.0)])
def test_bounds_cover_the_true_mean_about_as_often_as_they_say(kind: str, mean: float) -> None:
    rng = np.random.default_rng(2)
    sample = rng.standard_normal((50, 1500)) if kind == "normal" else rng.exponential(1.0, (50, 1500))
    band = curve_bounds(sample)
    covered = float(np.mean((band.low <= mean) & (mean <= band.high)))
    # The percentile bootstrap of 50 trials is a little short of 95 %, of a skewed distribution more so.
    assert 0.90 < covered < 0.97


def test_bounds_of_a_curve_are_those_of_each_column_and_do_not_depend_on_what_was_asked_before() -> None:
    values = normal(3, 20, 4)
    band = curve_bounds(values)
    measures._weights.cache_clear()
    mean_bounds(normal(4, 7))
    for k in range(4):
        assert mean_bounds(values[:, k]) == pytest.approx((band.mean[k], band.low[k], band.high[k]), rel=1e-12)


def test_one_trial_has_no_bounds_and_excludes_nothing() -> None:
    found = mean_bounds(np.array([0.5]))
    assert found.value == 0.5
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert not found.excludes(0.0)
    with pytest.raises(ValueError, match="at least one trial"):
        mean_bounds(np.zeros(0))


def test_equal_trials_have_bounds_without_width_and_no_difference() -> None:
    values = np.full(13, 0.1)
    assert mean_bounds(values)[1:] == (0.1, 0.1)
    difference = paired_difference(values, values)
    assert difference == (0.0, 0.0, 0.0)
    assert not difference.excludes(0.0)
    assert paired_ratio(values, values) == pytest.approx((1.0, 1.0, 1.0))


def test_pairs_are_found_by_seed() -> None:
    a, b = paired(np.array([5, 1, 9, 2]), np.array([2, 7, 5]))
    assert (a.tolist(), b.tolist()) == ([3, 0], [0, 2])
    assert paired(np.array([1]), np.array([2]))[0].tolist() == []


def test_pairing_is_narrower_where_trials_are_correlated_and_finds_the_difference() -> None:
    common, own = normal(5, 40), 0.1 * normal(6, 2, 40)
    a, b = common + own[0] + 0.1, common + own[1]
    found = paired_difference(a, b)
    apart = [mean_bounds(x) for x in (a, b)]
    assert found.value == pytest.approx(a.mean() - b.mean())
    assert found.high - found.low < 0.25 * (apart[0].high - apart[1].low - (apart[0].low - apart[1].high))
    assert found.excludes(0.0)
    assert apart[0].low < apart[1].high, "unpaired, the difference would not show"


def test_bounds_of_a_ratio_are_those_of_the_delta_method() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.normal(200, 10, 300), rng.normal(100, 10, 300)
    found = paired_ratio(a, b)
    ratio = a.mean() / b.mean()
    half = NORMAL_95 * (a - ratio * b).std() / b.mean() / math.sqrt(len(a))
    assert found == pytest.approx((ratio, ratio - half, ratio + half), abs=0.1 * half)
    assert found.excludes(1.0)


def test_a_ratio_of_what_grows_in_step_is_certain() -> None:
    b = np.array([100, 250, 900, 40])
    assert paired_ratio(3 * b, b) == pytest.approx((3.0, 3.0, 3.0))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0, 2.0], [1.0], "one length"),
        ([[1.0]], [[1.0]], "one length"),
        ([1.0, 0.0], [1.0, 1.0], "positive"),
    ],
)
def test_what_makes_no_ratio_is_refused(a: list[float], b: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_ratio(np.array(a), np.array(b))


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    values = np.array([100.0, 3.0, 1.0, -100.0, 2.0, 4.0, 5.0, 6.0])
    bounds = interquartile_mean(values)
    assert bounds.value == pytest.approx((2.0 + 3.0 + 4.0 + 5.0) / 4)
    assert bounds.low < bounds.value < bounds.high
    assert interquartile_mean(values + 7.0).low == pytest.approx(bounds.low + 7.0)
    same = interquartile_mean(np.full(10, 2.5))
    assert same == pytest.approx((2.5, 2.5, 2.5))
    assert math.isnan(interquartile_mean(np.array([1.0])).low)


def test_its_bounds_are_quantiles_of_resampled_interquartile_means() -> None:
    values = normal(3, 11) * 2.0 + 1.0
    rng = np.random.default_rng(0)
    resampled = np.sort(values[rng.integers(0, 11, (40_000, 11))], axis=1)[:, 2:9].mean(axis=1)
    bounds = interquartile_mean(values)
    assert bounds.low == pytest.approx(np.quantile(resampled, 0.025), abs=0.06)
    assert bounds.high == pytest.approx(np.quantile(resampled, 0.975), abs=0.06)


def test_the_final_mean_is_of_a_share_of_the_points() -> None:
    curves = np.arange(40.0).reshape(2, 20)
    assert final_mean(curves).tolist() == [18.5, 38.5]
    assert final_mean(curves[:, :3]).tolist() == [2.0, 22.0]
