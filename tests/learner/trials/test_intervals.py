from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import t as student

from onrig.learner.trials.intervals import (
    POWER,
    PairedComparison,
    curve_bounds,
    fraction_lower_bound,
    holm,
    matching_rows,
    median_bounds,
    paired_difference,
    paired_ratio,
    sign_test,
    student_quantile,
)
from tests.studies.coverage import SCORES, TRIALS, covered


def normal(seed: int, *shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("name", SCORES)
def test_intervals_cover_the_true_median_in_93_percent_of_samples_or_more(name: str, trials: int) -> None:
    samples = 4000
    error = math.sqrt(0.93 * 0.07 / samples)
    assert covered(SCORES[name], trials, samples, seed=0) >= 0.93 - 2 * error


@pytest.mark.parametrize(
    ("trials", "n_below", "weight"),
    # Order statistics up to the lower end, and how far it is from the last of them to the next: the formula of
    # Hettmansperger and Sheather 1986, with the tails of the binomial distribution.
    [(6, 1, 0.357143), (10, 2, 0.657658), (16, 4, 0.762720), (32, 10, 0.998447)],
)
def test_the_ends_lie_between_order_statistics(trials: int, n_below: int, weight: float) -> None:
    median, low, high = median_bounds(np.arange(1.0, trials + 1))
    assert median == (trials + 1) / 2
    assert low + high == pytest.approx(trials + 1)
    assert n_below <= low < n_below + 1
    tail_probabilities = [2 * sum(math.comb(trials, i) for i in range(k)) / 2**trials for k in (n_below, n_below + 1)]
    assert tail_probabilities[0] <= 0.05 < tail_probabilities[1]
    assert low - n_below == pytest.approx(weight, abs=1e-6)


def test_few_trials_have_no_interval_and_five_have_the_complete_range() -> None:
    for trials in (1, 2, 3, 4):
        bounds = median_bounds(np.arange(float(trials)))
        assert bounds.value == (trials - 1) / 2
        assert np.isnan(bounds[1:]).all()
    assert median_bounds(np.array([3.0, 1.0, 9.0, 4.0, 5.0])) == (4.0, 1.0, 9.0)
    with pytest.raises(ValueError, match="at least one trial"):
        median_bounds(np.zeros(0))


def test_bounds_of_a_curve_are_those_of_each_column_and_nan_where_a_trial_is_nan() -> None:
    values = normal(3, 20, 4)
    values[7, 3] = np.nan
    band = curve_bounds(values)
    for k in range(3):
        assert median_bounds(values[:, k]) == (band.median[k], band.low[k], band.high[k])
    assert np.isnan([row[3] for row in band]).all()
    assert curve_bounds(np.full((8, 1), -np.inf)).low.tolist() == [-np.inf]


@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=40))
def test_an_interval_holds_its_median_and_does_not_depend_on_the_order(values: list[float]) -> None:
    bounds = median_bounds(np.array(values))
    assert bounds.low <= bounds.value <= bounds.high
    assert median_bounds(np.array(values[::-1])) == bounds


def test_equal_trials_have_zero_width_bounds_and_no_difference() -> None:
    values = np.full(13, 0.1)
    assert median_bounds(values) == (0.1, 0.1, 0.1)
    assert paired_difference(values, values) == (0.0, 0.0, 0.0, 1.0, 0.0)
    assert paired_ratio(values, values) == (1.0, 1.0, 1.0, 1.0, 0.0)


def test_pairs_are_matched_by_seed() -> None:
    a, b = matching_rows(np.array([5, 1, 9, 2]), np.array([2, 7, 5]))
    assert (a.tolist(), b.tolist()) == ([3, 0], [0, 2])
    assert matching_rows(np.array([1]), np.array([2]))[0].tolist() == []


def test_pairing_finds_a_difference_that_is_hidden_between_unpaired_trials() -> None:
    shared, individual = normal(5, 40), 0.1 * normal(6, 2, 40)
    a, b = shared + individual[0] + 0.1, shared + individual[1]
    difference = paired_difference(a, b)
    policy_distance = [median_bounds(x) for x in (a, b)]
    assert difference.value == np.median(a - b)
    assert difference.is_significant
    assert policy_distance[0].low < policy_distance[1].high


def test_a_ratio_is_computed_for_each_pair() -> None:
    b = np.array([100, 250, 900, 40, 70, 60])
    assert paired_ratio(3 * b, b)[:3] == (3.0, 3.0, 3.0)
    assert paired_ratio(3 * b, b).is_significant
    a = np.array([50.0, 250.0, 1000.0, 80.0, 70.0, 60.0])
    assert paired_ratio(a, b)[0] == 1.0
    assert paired_ratio(a, b).p == 1.0


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0, 2.0], [1.0], "equal length"),
        ([[1.0]], [[1.0]], "equal length"),
        ([1.0, 0.0], [1.0, 1.0], "positive"),
    ],
)
def test_invalid_ratios_are_refused(a: list[float], b: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_ratio(np.array(a), np.array(b))


@pytest.mark.parametrize(
    ("n_greater", "n_less", "n_equal", "p"),
    [(10, 0, 0, 2 / 1024), (9, 1, 0, 22 / 1024), (1, 9, 0, 22 / 1024), (8, 0, 2, 112 / 1024), (5, 5, 0, 1.0)],
)
def test_signs_are_tested_exactly_and_ties_are_ignored(n_greater: int, n_less: int, n_equal: int, p: float) -> None:
    assert sign_test(np.array([0.3] * n_greater + [-2.0] * n_less + [0.0] * n_equal)) == pytest.approx(p)


def test_the_interval_of_differences_excludes_zero_if_the_test_is_significant() -> None:
    for trials in range(6, 41):
        for n_greater in range(trials + 1):
            difference = paired_difference(np.arange(float(trials)) - n_greater + 0.5, np.zeros(trials))
            if difference.is_significant:
                assert difference.low > 0 or difference.high < 0


def test_simultaneous_comparisons_are_corrected() -> None:
    comparisons = [PairedComparison(1.0, 0.0, 2.0, p, 0.8) for p in (0.03, 0.001, 0.04, 0.013)]
    assert [comparison.p for comparison in holm(comparisons)] == pytest.approx([0.06, 0.004, 0.06, 0.039])
    assert [comparison.is_significant for comparison in holm(comparisons)] == [False, True, False, True]
    assert holm([]) == []
    assert holm([comparisons[0]]) == [comparisons[0]]
    assert holm([comparisons[0]._replace(p=0.7)] * 2)[0].p == 1.0


def test_a_count_gives_a_lower_bound_of_the_share() -> None:
    assert fraction_lower_bound(10, 10) == pytest.approx(0.05 ** (1 / 10))
    assert fraction_lower_bound(16, 16) == pytest.approx(0.829, abs=5e-4)
    assert fraction_lower_bound(0, 10) == 0.0
    p = fraction_lower_bound(7, 12)
    assert sum(math.comb(12, i) * p**i * (1 - p) ** (12 - i) for i in range(7, 13)) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="not a share"):
        fraction_lower_bound(3, 2)


@pytest.mark.parametrize("degrees_of_freedom", [1, 2, 3, 4, 5, 8, 13, 31, 64])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.975, 0.999, 1.0 - 1e-6])
def test_quantiles_of_students_t(p: float, degrees_of_freedom: int) -> None:
    assert student_quantile(p, degrees_of_freedom) == pytest.approx(
        student.ppf(p, degrees_of_freedom), rel=1e-6, abs=1e-9
    )


@pytest.mark.parametrize(("p", "degrees_of_freedom"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_invalid_quantiles_of_students_t_are_refused(p: float, degrees_of_freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(p, degrees_of_freedom)


@pytest.mark.parametrize("comparisons", [1, 12])
@pytest.mark.parametrize("majority", [0.7, 0.9, 1.0])
def test_the_number_of_needed_pairs_settles_a_comparison_and_one_pair_less_does_not(
    majority: float, comparisons: int
) -> None:
    comparison = PairedComparison(0.1, -0.1, 0.3, 0.2, majority)
    n = comparison.needed_pairs(comparisons)
    assert n is not None

    def power(n_pairs: int) -> float:
        signs = np.random.default_rng(0).random((4000, n_pairs)) < majority
        p_values = {count: sign_test(np.where(np.arange(n_pairs) < count, 1.0, -1.0)) for count in range(n_pairs + 1)}
        return float(np.mean([p_values[count] * comparisons < 0.05 for count in signs.sum(axis=1).tolist()]))

    assert power(n) >= POWER - 0.02
    assert power(n - 1) < POWER + 0.02


def test_more_pairs_than_needed_do_not_lose_power() -> None:
    assert PairedComparison(0.1, -0.1, 0.3, 0.2, 0.75).needed_pairs(1) == 35, "30 pairs suffice, but 31 to 34 do not"


def test_no_number_of_pairs_settles_equal_shares() -> None:
    assert PairedComparison(0.0, -0.1, 0.1, 1.0, 0.5).needed_pairs(1) is None
    assert PairedComparison(0.0, -0.1, 0.1, 1.0, 0.52).needed_pairs(1) is None
