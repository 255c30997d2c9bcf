from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.supervise.restarts import LONG_LIFE_S, MOST, Restarts


def test_a_loop_of_crashes_is_left_ever_longer_and_then_for_good() -> None:
    restarts = Restarts()
    assert [restarts.ended(0.5) for _ in range(MOST + 1)] == [0.0, 1.0, 2.0, 4.0, 8.0, None]


@given(st.lists(st.floats(LONG_LIFE_S, 1e6), max_size=50))
def test_whoever_lives_long_is_always_started_again_at_once(lives: list[float]) -> None:
    restarts = Restarts()
    assert all(restarts.ended(lived_s) == 0.0 for lived_s in lives)


def test_a_long_life_forgives_the_short_ones_before_it() -> None:
    restarts = Restarts()
    for _ in range(MOST):
        restarts.ended(0.0)
    assert [restarts.ended(LONG_LIFE_S), restarts.ended(0.0)] == [0.0, 1.0]
