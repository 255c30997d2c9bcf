"""Pearson's statistic with rare cells pooled, for laws over thousands of ranks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MIN_EXPECTED_COUNT = 10.0


def follows_distribution(counts: NDArray[np.int64], distribution: NDArray[np.float64], sigmas: float = 4.5) -> bool:
    """Whether ``counts`` per cell are those of independent draws from ``distribution`` (same length, sums to 1)."""
    assert len(counts) == len(distribution)
    expected = distribution / distribution.sum() * counts.sum()
    pooled_counts, pooled_expected = [], []
    count = expected_count = 0.0
    for c, e in zip(counts.tolist(), expected.tolist(), strict=True):
        count, expected_count = count + c, expected_count + e
        if expected_count >= MIN_EXPECTED_COUNT:
            pooled_counts.append(count)
            pooled_expected.append(expected_count)
            count = expected_count = 0.0
    pooled_counts[-1] += count
    pooled_expected[-1] += expected_count
    counts_pooled, expected_pooled = np.array(pooled_counts), np.array(pooled_expected)
    degrees_of_freedom = len(counts_pooled) - 1
    assert degrees_of_freedom >= 1, "too few draws to say anything"
    statistic = float(((counts_pooled - expected_pooled) ** 2 / expected_pooled).sum())
    # Too good a fit is as suspicious as too bad a one.
    return abs(statistic - degrees_of_freedom) < sigmas * math.sqrt(2 * degrees_of_freedom) + sigmas
