"""Medians over trials with 95 % confidence intervals, paired comparisons, and bounds for a share of trials.

The intervals are order statistics, interpolated as in Hettmansperger and Sheather 1986, and hold for any continuous
distribution of the scores.  ``python -m tests.studies.coverage`` simulates their coverage of the true median.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import atan, comb, cos, pi, sin, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Integers = NDArray[np.int64]

COVERAGE: Final = 0.95
POWER: Final = 0.8
"""Probability of a significant result with the number of pairs that an experiment is said to need."""
MAX_PAIRS: Final = 500
"""Maximum number of pairs that an experiment is said to need."""
_MONOTONIC_FROM: Final = 10
"""Number of further pairs with sufficient power after which the power does not become insufficient again."""
MIN_TRIALS: Final = 6
"""Minimum number of trials for a 95 % interval, and minimum number of pairs that can settle a comparison."""


class Bounds(NamedTuple):
    """A median with its 95 % confidence interval.

    The ends are NaN for fewer than five trials; for five, they are the lowest and the highest value, which cover
    93.75 %.
    """

    value: float
    low: float
    high: float


class MedianCurve(NamedTuple):
    """Medians over trials with their intervals, each ``(N,)``."""

    median: Values
    low: Values
    high: Values


class PairedComparison(NamedTuple):
    """Median of differences or ratios paired by seed, with its interval and its test."""

    value: float
    low: float
    high: float
    p: float
    """p-value of the exact two-sided sign test; ``holm`` corrects it for the number of comparisons."""
    majority: float
    """Share of the pairs whose differences have the more frequent sign."""

    @property
    def is_significant(self) -> bool:
        """Whether the test establishes a direction."""
        return self.p < 1 - COVERAGE

    def needed_pairs(self, comparisons: int) -> int | None:
        """Return the number of pairs from which the sign test would be significant with a probability of ``POWER``,
        corrected for ``comparisons`` (at least 1) that are not settled, if ``majority`` is the true share; None if more
        than ``MAX_PAIRS``.
        """
        return _pairs_for(self.majority, (1 - COVERAGE) / comparisons)


def median_bounds(values: Values | Integers) -> Bounds:
    """Return the median of one measure over the trials, ``(T,)``; raise ValueError if there are no trials."""
    median, low, high = curve_bounds(np.asarray(values, np.float64).reshape(-1, 1))
    return Bounds(float(median[0]), float(low[0]), float(high[0]))


def curve_bounds(values: Values) -> MedianCurve:
    """Return the median over the trials of each column of ``values`` ``(T, N)``; NaN where any trial is NaN.

    The intervals hold for each column separately.  Raises ValueError if there are no trials.
    """
    sorted_values = np.sort(np.asarray(values, np.float64), axis=0)
    if sorted_values.ndim != 2 or not len(sorted_values):
        raise ValueError(f"expected trials by values, at least one trial, got shape {sorted_values.shape}")
    T = len(sorted_values)
    has_nan = np.isnan(sorted_values[-1])  # NaN sort last
    k, fraction = _interval_rank(T)
    if k is None:
        low = high = np.full(sorted_values.shape[1], np.nan)
    else:
        low, high = (
            a if fraction == 0 else np.where(a == b, a, (1 - fraction) * a + fraction * b)
            for a, b in ((sorted_values[k], sorted_values[k + 1]), (sorted_values[T - 1 - k], sorted_values[T - 2 - k]))
        )
    median = 0.5 * (sorted_values[(T - 1) // 2] + sorted_values[T // 2])
    return MedianCurve(*(np.where(has_nan, np.nan, row) for row in (median, low, high)))


@lru_cache(maxsize=64)
def _interval_rank(trials: int) -> tuple[int | None, float]:
    """Return the rank of the interval's lower end, from 0 (None without an interval), and the fraction towards the next
    rank."""
    if trials < MIN_TRIALS:
        return (0 if trials == MIN_TRIALS - 1 else None), 0.0
    tail_probabilities = np.cumsum([comb(trials, i) / 2.0**trials for i in range(trials // 2 + 1)])
    coverage = 1 - 2 * tail_probabilities  # of the interval from rank k to rank T - 1 - k
    k = int(np.flatnonzero(coverage >= COVERAGE)[-1])
    relative_excess = (coverage[k] - COVERAGE) / (coverage[k] - coverage[k + 1])
    rank = k + 1
    return k, float((trials - rank) * relative_excess / (rank + (trials - 2 * rank) * relative_excess))


def matching_rows(seeds: Integers, other_seeds: Integers) -> tuple[Integers, Integers]:
    """Return the rows, in two cells, of the trials whose seeds both cells contain, in the order of the seeds."""
    _, a, b = np.intersect1d(seeds, other_seeds, return_indices=True)
    return a.astype(np.int64), b.astype(np.int64)


def paired_difference(a: Values | Integers, b: Values | Integers) -> PairedComparison:
    """Return the median of ``a - b``, where ``a[i]`` and ``b[i]`` ``(T,)`` come from trials with the same seed."""
    a, b = _pair(a, b)
    return _compare(a - b, a - b)


def paired_ratio(a: Values | Integers, b: Values | Integers) -> PairedComparison:
    """Return the median of ``a / b``, both ``(T,)`` with the same seeds, for rise times; raise ValueError unless
    positive."""
    a, b = _pair(a, b)
    if not (np.all(a > 0) and np.all(b > 0)):
        raise ValueError("a ratio needs positive values")
    return _compare(a / b, a - b)


def sign_test(differences: Values) -> float:
    """Return the exact two-sided p-value of the hypothesis that ``differences`` ``(T,)`` have a median of 0.

    Zeros count for neither side.
    """
    return min(1.0, 2 * _tail_probability(_majority_count(differences), len(differences), 0.5))


def _compare(values: Values, differences: Values) -> PairedComparison:
    majority = _majority_count(differences) / max(1, len(differences))
    return PairedComparison(*median_bounds(values), sign_test(differences), majority)


def _majority_count(differences: Values) -> int:
    """Return the number of differences with the more frequent sign."""
    return int(max(np.count_nonzero(differences > 0), np.count_nonzero(differences < 0)))


def _tail_probability(count: int, trials: int, p: float) -> float:
    """Return the probability of at least ``count`` successes in ``trials`` with probability ``p`` each."""
    return float(sum(comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(count, trials + 1)))


@lru_cache
def _pairs_for(majority: float, max_p: float) -> int | None:
    """Return the number of pairs for `PairedComparison.needed_pairs`, with p-values below ``max_p``."""
    if not majority > 0.5:
        return None
    count, first = MIN_TRIALS, None
    for n in range(MIN_TRIALS, MAX_PAIRS + 1):
        while 2 * _tail_probability(count, n, 0.5) >= max_p:
            count += 1  # the number of equal signs at which n pairs are significant grows with n
        if _tail_probability(count, n, majority) < POWER:
            first = None  # power is not monotonic, because the number of signs is whole
        elif first is None:
            first = n
        elif n - first >= _MONOTONIC_FROM:
            return first
    return first


def holm(family: Sequence[PairedComparison]) -> list[PairedComparison]:
    """Correct the p-values of a family of comparisons (Holm 1979)."""
    corrected_comparisons, largest_p = list(family), 0.0
    for rank, index in enumerate(sorted(range(len(family)), key=lambda k: family[k].p)):
        largest_p = max(largest_p, min(1.0, (len(family) - rank) * family[index].p))
        corrected_comparisons[index] = family[index]._replace(p=largest_p)
    return corrected_comparisons


def fraction_lower_bound(count: int, trials: int) -> float:
    """Return a lower bound on the share estimated by ``count`` of ``trials``: exact, one-sided, 95 %
    (Clopper-Pearson 1934)."""
    if not 0 <= count <= trials or not trials:
        raise ValueError(f"{count} of {trials} is not a share")
    low, high = 0.0, count / trials
    for _ in range(50):
        p = 0.5 * (low + high)
        low, high = (p, high) if _tail_probability(count, trials, p) < 1 - COVERAGE else (low, p)
    return low


def student_quantile(p: float, degrees_of_freedom: int) -> float:
    """Find the quantile of Student's t at ``p`` in [0.5, 1), with a whole number of degrees of freedom, by bisection.

    The distribution is then a finite sum (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).  Raises ValueError for other
    arguments.
    """
    if not 0.5 <= p < 1.0 or degrees_of_freedom < 1:
        raise ValueError(f"no quantile of Student's t at {p:g} with {degrees_of_freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while _student_probability(high, degrees_of_freedom) < 2.0 * p - 1.0:
        high *= 2.0
    for _ in range(60):
        midpoint = 0.5 * (low + high)
        low, high = (
            (midpoint, high) if _student_probability(midpoint, degrees_of_freedom) < 2.0 * p - 1.0 else (low, midpoint)
        )
    return 0.5 * (low + high)


def _student_probability(t: float, degrees_of_freedom: int) -> float:
    """Return the probability of |T| < t."""
    angle = atan(t / sqrt(degrees_of_freedom))
    term, total = (cos(angle), 0.0) if degrees_of_freedom % 2 else (1.0, 0.0)
    for k in range(1 + degrees_of_freedom % 2, degrees_of_freedom, 2):
        total += term
        term *= k / (k + 1) * cos(angle) ** 2
    return 2.0 / pi * (angle + sin(angle) * total) if degrees_of_freedom % 2 else sin(angle) * total


def _pair(a: Values | Integers, b: Values | Integers) -> tuple[Values, Values]:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"expected two vectors of equal length, got shapes {a.shape} and {b.shape}")
    return a, b
