"""Pearson's statistic with rare cells pooled, for laws over thousands of ranks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LEAST_EXPECTED = 10.0


def follows(counts: NDArray[np.int64], law: NDArray[np.float64], sigmas: float = 4.5) -> bool:
    """Whether ``counts`` per cell are those of independent draws from ``law`` (same length, sums to 1)."""
    assert len(counts) == len(law)
    expected = law / law.sum() * counts.sum()
    pooled_counts, pooled_expected = [], []
    count = expect = 0.0
    for c, e in zip(counts.tolist(), expected.tolist(), strict=True):
        count, expect = count + c, expect + e
        if expect >= LEAST_EXPECTED:
            pooled_counts.append(count)
            pooled_expected.append(expect)
            count = expect = 0.0
    pooled_counts[-1] += count
    pooled_expected[-1] += expect
    c_all, e_all = np.array(pooled_counts), np.array(pooled_expected)
    freedom = len(c_all) - 1
    assert freedom >= 1, "too few draws to say anything"
    statistic = float(((c_all - e_all) ** 2 / e_all).sum())
    # Too good a fit is as suspicious as too bad a one.
    return abs(statistic - freedom) < sigmas * math.sqrt(2 * freedom) + sigmas
