from __future__ import annotations

from onrig.tools.faultlab.gauges import GROWN_S, WARM_UP_S, grown_mb


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
