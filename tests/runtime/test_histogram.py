from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.histogram import DurationHistogram

DURATIONS = st.lists(st.integers(1, 10**11), min_size=1, max_size=200)


def make_histogram(*batches: list[int]) -> DurationHistogram:
    histogram = DurationHistogram()
    for part in batches:
        histogram.add(np.array(part, np.int64))
    return histogram


@settings(max_examples=80)
@given(DURATIONS, st.sampled_from([0.0, 10.0, 50.0, 99.0, 99.9, 100.0]))
def test_percentiles_are_accurate_to_eight_thousandths(durations: list[int], q: float) -> None:
    exact_us = np.percentile(durations, q, method="inverted_cdf") / 1000
    percentile_us = make_histogram(durations).percentile_us(q)
    assert percentile_us is not None
    assert exact_us * (1 - 1e-9) <= percentile_us <= exact_us * 1.008


@given(DURATIONS, DURATIONS)
def test_adding_in_parts_equals_adding_at_once(first: list[int], second: list[int]) -> None:
    assert make_histogram(first, second).summary_us() == make_histogram(first + second).summary_us()


def test_the_maximum_is_exact_and_bounds_every_percentile() -> None:
    summary = make_histogram([1000, 2000, 123_457]).summary_us()
    assert summary["max"] == 123.457
    assert summary["p999"] == 123.457
    assert summary["p50"] == pytest.approx(2.0, rel=0.012)


def test_an_empty_histogram_has_no_figures() -> None:
    assert make_histogram([]).summary_us() == {"p50": None, "p99": None, "p999": None, "max": None}


def test_rounding_errors_below_zero_count_as_zero_and_centuries_do_not_overflow() -> None:
    below_zero = make_histogram([-5, -3])
    assert (below_zero.percentile_us(50), below_zero.summary_us()["max"]) == (0.001, 0.0)
    huge = make_histogram([2**62])
    assert huge.summary_us()["max"] == 2**62 / 1000


@given(st.lists(st.integers(0, 255), min_size=1, max_size=100), st.sampled_from([1.0, 50.0, 99.0]))
def test_short_durations_are_counted_exactly(durations: list[int], q: float) -> None:
    exact_ns = max(1, int(np.percentile(durations, q, method="inverted_cdf")))
    percentile_us = make_histogram(durations).percentile_us(q)
    assert percentile_us is not None
    assert exact_ns <= round(percentile_us * 1000, 6) <= exact_ns + 1


@given(DURATIONS, DURATIONS)
def test_merged_histograms_equal_one_of_all_durations(first: list[int], second: list[int]) -> None:
    merged = make_histogram(first)
    merged.merge(make_histogram(second))
    assert merged.summary_us() == make_histogram(first + second).summary_us()
    assert merged.count == len(first) + len(second)


@given(DURATIONS)
def test_bins_hold_every_duration_between_their_edges(durations: list[int]) -> None:
    edges_us, counts = make_histogram(durations).bins()
    assert counts.sum() == len(durations)
    assert counts[0] > 0
    assert counts[-1] > 0
    expected, _ = np.histogram(np.array(durations) / 1000, edges_us)
    # The last bin of numpy's is closed; ours ends above the largest.
    assert expected.tolist() == counts.tolist()
    assert (np.diff(edges_us) <= edges_us[:-1] / 128 + 1e-3).all()


@given(st.integers(0, 36))
def test_a_power_of_two_starts_its_octave(k: int) -> None:
    edges_us, counts = make_histogram([2**k]).bins()
    assert (edges_us[0], counts.tolist()) == (2**k / 1000, [1])


def test_an_empty_histogram_has_no_bins() -> None:
    assert len(make_histogram([]).bins().counts) == 0


def test_a_restored_histogram_continues_like_the_saved_one() -> None:
    original, restored = DurationHistogram(), DurationHistogram()
    original.add(np.array([3, 250, 10_000, 10**7]))
    restored.add(np.array([77]))
    restored.restore(*original.state())
    for histogram in (original, restored):
        histogram.add(np.array([500, 10**8]))
    assert restored.summary_us() == original.summary_us()
    assert restored.state() == original.state()
