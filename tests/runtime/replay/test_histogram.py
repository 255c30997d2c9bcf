from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.replay.histogram import DurationHistogram

DURATIONS = st.lists(st.integers(1, 10**11), min_size=1, max_size=200)


def filled(*parts: list[int]) -> DurationHistogram:
    histogram = DurationHistogram()
    for part in parts:
        histogram.add(np.array(part, np.int64))
    return histogram


@settings(max_examples=80)
@given(DURATIONS, st.sampled_from([0.0, 10.0, 50.0, 99.0, 99.9, 100.0]))
def test_percentiles_are_right_to_about_one_percent(durations: list[int], q: float) -> None:
    exact_us = np.percentile(durations, q, method="inverted_cdf") / 1000
    found_us = filled(durations).percentile_us(q)
    assert found_us is not None
    assert exact_us * (1 - 1e-9) <= found_us <= exact_us * 1.012


@given(DURATIONS, DURATIONS)
def test_adding_in_parts_is_adding_at_once(first: list[int], second: list[int]) -> None:
    assert filled(first, second).summary_us() == filled(first + second).summary_us()


def test_the_maximum_is_exact_and_bounds_every_percentile() -> None:
    summary = filled([1000, 2000, 123_457]).summary_us()
    assert summary["max"] == 123.457
    assert summary["p999"] == 123.457
    assert summary["p50"] == pytest.approx(2.0, rel=0.012)


def test_nothing_counted_gives_no_figures() -> None:
    assert filled([]).summary_us() == {"p50": None, "p99": None, "p999": None, "max": None}


def test_rounding_errors_below_zero_count_as_zero_and_centuries_do_not_overflow() -> None:
    below = filled([-5, -3])
    assert (below.percentile_us(50), below.summary_us()["max"]) == (0.001, 0.0)
    above = filled([2**62])
    assert above.summary_us()["max"] == 2**62 / 1000
