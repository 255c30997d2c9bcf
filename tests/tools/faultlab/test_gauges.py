from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.tools.faultlab.gauges import GROWN_S, MOST, WARM_UP_S, grown_mb, slopes_per_minute, trend

TIMES = [float(t) for t in range(120)]


@given(st.floats(-5, 5), st.floats(10, 500))
@settings(max_examples=30, deadline=None)
def test_a_line_has_its_slope(per_minute: float, start: float) -> None:
    found = trend([(TIMES, [start + per_minute * t / 60 for t in TIMES])], 0.0)
    assert found is not None
    assert found.per_minute == pytest.approx(per_minute, abs=1e-6)


@given(st.lists(st.integers(0, 119), min_size=1, max_size=15, unique=True))
@settings(max_examples=30, deadline=None)
def test_one_sample_in_eight_may_be_anything(at: list[int]) -> None:
    values = [100.0 + t / 60 for t in TIMES]
    for i in at:
        values[i] = 1e6
    found = trend([(TIMES, values)], 0.0)
    assert found is not None
    assert abs(found.per_minute - 1.0) < 3.0


def test_what_grows_while_warming_up_does_not_count() -> None:
    values = [min(t, 20.0) for t in TIMES]
    warm = trend([(TIMES, values)], 20.0)
    assert warm is not None
    assert warm.per_minute == 0.0


def test_a_step_from_one_process_to_the_next_is_no_slope() -> None:
    later = [t + 120 for t in TIMES]
    found = trend([(TIMES, [100.0] * 120), (later, [300.0] * 120)], 5.0)
    assert found is not None
    assert (found.per_minute, found.series) == (0.0, 2)


def test_series_that_are_too_short_tell_nothing() -> None:
    assert trend([([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]), ([], [])], 0.0) is None


def test_long_series_are_thinned_out() -> None:
    times = [float(t) for t in range(5000)]
    assert len(slopes_per_minute(times, times)) == MOST * (MOST - 1) // 2
    assert set(slopes_per_minute(times, times).round(9).tolist()) == {60.0}


def test_growth_is_that_of_the_last_tenth_over_the_first_after_the_warm_up() -> None:
    times = [float(t) for t in range(220)]
    values = [500.0 if t < WARM_UP_S else 100.0 + 0.1 * (t - WARM_UP_S) for t in times]
    found = grown_mb(times, values)
    assert found is not None
    assert abs(found - 18.0) < 0.2


def test_a_single_peak_is_no_growth_and_a_short_life_tells_nothing() -> None:
    times = [float(t) for t in range(220)]
    assert grown_mb(times, [900.0 if t == 215 else 100.0 for t in times]) == 0.0
    assert grown_mb(times[: int(WARM_UP_S + GROWN_S) - 1], [1.0] * int(WARM_UP_S + GROWN_S - 1)) is None
