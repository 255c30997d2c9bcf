from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.explore.gates import Retreat, after_clean_episode, after_trip, attenuation, retreat_factor, room
from onrig.runtime.explore.settings import BackOff, NearEnvelope

UNIT = st.floats(0, 1)
BACK_OFFS = st.builds(
    BackOff, factor=st.floats(0.05, 0.95), least=st.floats(0.01, 1.0), clean_episodes=st.integers(1, 6)
)


@given(st.builds(NearEnvelope, start=st.floats(0.01, 1), floor=UNIT), UNIT, UNIT)
def test_attenuation_rises_with_the_margin_from_the_floor_to_one(near: NearEnvelope, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert near.floor <= attenuation(near, low) <= attenuation(near, high) + 1e-12 <= 1 + 2e-12
    assert attenuation(near, near.start) == 1.0
    assert attenuation(near, 0.0) == near.floor


def test_a_margin_that_is_negative_or_no_number_leaves_the_floor() -> None:
    near = NearEnvelope(start=0.5, floor=0.25)
    assert [attenuation(near, m) for m in (-1.0, -math.inf, math.nan)] == [0.25] * 3
    assert attenuation(near, 0.25) == 0.625


@given(BACK_OFFS, st.lists(st.booleans(), max_size=60))
def test_back_off_falls_with_every_trip_and_rises_with_clean_episodes_alone(b: BackOff, trips: list[bool]) -> None:
    retreat = Retreat()
    for trip in trips:
        before = retreat_factor(b, retreat)
        retreat = after_trip(b, retreat) if trip else after_clean_episode(b, retreat)
        now = retreat_factor(b, retreat)
        assert b.least <= now <= 1.0
        assert now <= before if trip else now >= before
        if trip:
            assert now == max(b.least, before * b.factor) or math.isclose(now, before * b.factor)


@given(BACK_OFFS, st.integers(1, 30))
def test_the_return_takes_k_clean_episodes_for_each_step_and_ends_at_one(b: BackOff, trips: int) -> None:
    retreat = Retreat()
    for _ in range(trips):
        retreat = after_trip(b, retreat)
    assert b.factor ** (retreat.level - 1) > b.least or retreat.level <= 1, "no further than the least"
    for level in range(retreat.level, 0, -1):
        for clean in range(b.clean_episodes - 1):
            retreat = after_clean_episode(b, retreat)
            assert retreat == (level, clean + 1)
        retreat = after_clean_episode(b, retreat)
        assert retreat == (level - 1, 0)
    assert retreat_factor(b, retreat) == 1.0


def test_a_trip_starts_the_count_of_clean_episodes_anew() -> None:
    b = BackOff(factor=0.5, least=0.1, clean_episodes=3)
    retreat = after_trip(b, Retreat())
    retreat = after_clean_episode(b, after_clean_episode(b, retreat))
    assert after_trip(b, retreat) == Retreat(2, 0)
    assert after_clean_episode(b, retreat) == Retreat(0, 0)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e5), UNIT)
def test_room_shrinks_with_use_from_the_warning_on_and_is_nothing_once_spent(
    a: float, b: float, limit: float, warn: float
) -> None:
    low, high = sorted((a, b))
    assert 0.0 <= room(high, limit, warn) <= room(low, limit, warn) + 1e-9 <= 1.0 + 2e-9
    assert room(limit, limit, warn) == 0.0
    assert room(0.0, limit, warn) == 1.0
    assert room(math.nan, limit, warn) == 0.0
