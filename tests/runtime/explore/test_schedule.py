from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.explore.schedule import (
    BackOffState,
    amplitudes,
    attenuation,
    back_off_factor,
    back_off_once,
    budget_factor,
    count_clean_episode,
    depends_on_episode_only,
    interpolate,
    is_quiet,
    schedules,
)
from onrig.runtime.explore.settings import (
    BackOff,
    Budgets,
    Exploration,
    NearEnvelope,
    NoExploration,
    OrnsteinUhlenbeck,
    ParameterNoise,
    Points,
    Quiet,
    Quota,
)

POINTS = st.lists(
    st.tuples(st.integers(-1000, 1000), st.floats(0, 1)), min_size=1, max_size=6, unique_by=lambda p: p[0]
)


@given(POINTS, st.floats(-2000, 2000))
def test_a_schedule_meets_its_points_and_is_linear_between_them(points: list[tuple[float, float]], x: float) -> None:
    points = sorted(points)
    assert [interpolate(points, at) for at, _ in points] == pytest.approx([y for _, y in points])
    value = interpolate(points, x)
    assert min(y for _, y in points) - 1e-12 <= value <= max(y for _, y in points) + 1e-12
    if x <= points[0][0]:
        assert value == points[0][1]
    if x >= points[-1][0]:
        assert value == points[-1][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            assert value == pytest.approx(y0 + (x - x0) / (x1 - x0) * (y1 - y0), abs=1e-9)


def test_the_schedule_of_the_paper_goes_from_1_at_episode_1_to_a_tenth_at_500() -> None:
    (amplitude,) = schedules(OrnsteinUhlenbeck().amplitude, ["voltage"])
    assert [interpolate(amplitude, e) for e in (1, 500, 501, 3000)] == pytest.approx([1.0, 0.1, 0.1, 0.1])
    assert interpolate(amplitude, 250.5) == pytest.approx(0.55)


def test_one_schedule_is_everybodys_and_a_mapping_gives_each_its_own() -> None:
    one, low = ((1.0, 1.0),), ((1.0, 0.5),)
    assert schedules(one, ["a", "b"]) == (one, one)
    own: dict[str, Points] = {"b": low, "a": one}
    assert amplitudes(OrnsteinUhlenbeck(amplitude=own), ["a", "b"], 7.0) == (1.0, 0.5)
    with pytest.raises(KeyError):
        schedules(own, ["a", "c"])


@given(st.integers(2, 9), st.data())
def test_so_many_of_every_n_episodes_are_quiet_and_the_first_is_not(every: int, data: st.DataObject) -> None:
    quiet = Quiet(every=every, episodes=data.draw(st.integers(1, every - 1)))
    first = data.draw(st.integers(0, 50)) * every + 1
    flags = [is_quiet(quiet, e) for e in range(first, first + every)]
    assert flags == [False] * (every - quiet.episodes) + [True] * quiet.episodes


@pytest.mark.parametrize(
    ("exploration", "alone"),
    [
        (OrnsteinUhlenbeck(), True),
        (OrnsteinUhlenbeck(quiet=Quiet(every=2)), True),
        (OrnsteinUhlenbeck(budgets=Budgets(warn=0.5)), True),
        (NoExploration(), True),
        (OrnsteinUhlenbeck(over="steps"), False),
        (OrnsteinUhlenbeck(near_envelope=NearEnvelope()), False),
        (OrnsteinUhlenbeck(back_off=BackOff()), False),
        (OrnsteinUhlenbeck(budgets=Budgets(hour=Quota(trips=3))), False),
        (NoExploration(budgets=Budgets(hour=Quota(trips=3))), False),
        (ParameterNoise(), False),
    ],
)
def test_only_ungated_signals_over_episodes_follow_from_the_episode(exploration: Exploration, alone: bool) -> None:
    assert depends_on_episode_only(exploration) is alone


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
    retreat = BackOffState()
    for trip in trips:
        before = back_off_factor(b, retreat)
        retreat = back_off_once(b, retreat) if trip else count_clean_episode(b, retreat)
        now = back_off_factor(b, retreat)
        assert b.least <= now <= 1.0
        assert now <= before if trip else now >= before
        if trip:
            assert now == max(b.least, before * b.factor) or math.isclose(now, before * b.factor)


@given(BACK_OFFS, st.integers(1, 30))
def test_the_return_takes_k_clean_episodes_for_each_step_and_ends_at_one(b: BackOff, trips: int) -> None:
    retreat = BackOffState()
    for _ in range(trips):
        retreat = back_off_once(b, retreat)
    assert b.factor ** (retreat.level - 1) > b.least or retreat.level <= 1, "no further than the least"
    for level in range(retreat.level, 0, -1):
        for clean in range(b.clean_episodes - 1):
            retreat = count_clean_episode(b, retreat)
            assert retreat == (level, clean + 1)
        retreat = count_clean_episode(b, retreat)
        assert retreat == (level - 1, 0)
    assert back_off_factor(b, retreat) == 1.0


def test_a_trip_starts_the_count_of_clean_episodes_anew() -> None:
    b = BackOff(factor=0.5, least=0.1, clean_episodes=3)
    retreat = back_off_once(b, BackOffState())
    retreat = count_clean_episode(b, count_clean_episode(b, retreat))
    assert back_off_once(b, retreat) == BackOffState(2, 0)
    assert count_clean_episode(b, retreat) == BackOffState(0, 0)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e5), UNIT)
def test_room_shrinks_with_use_from_the_warning_on_and_is_nothing_once_spent(
    a: float, b: float, limit: float, warn: float
) -> None:
    low, high = sorted((a, b))
    assert 0.0 <= budget_factor(high, limit, warn) <= budget_factor(low, limit, warn) + 1e-9 <= 1.0 + 2e-9
    assert budget_factor(limit, limit, warn) == 0.0
    assert budget_factor(0.0, limit, warn) == 1.0
    assert budget_factor(math.nan, limit, warn) == 0.0
