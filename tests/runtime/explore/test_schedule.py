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
def test_a_schedule_passes_through_its_points_and_is_linear_between_them(
    points: list[tuple[float, float]], x: float
) -> None:
    points = sorted(points)
    assert [interpolate(points, position) for position, _ in points] == pytest.approx([y for _, y in points])
    value = interpolate(points, x)
    assert min(y for _, y in points) - 1e-12 <= value <= max(y for _, y in points) + 1e-12
    if x <= points[0][0]:
        assert value == points[0][1]
    if x >= points[-1][0]:
        assert value == points[-1][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            assert value == pytest.approx(y0 + (x - x0) / (x1 - x0) * (y1 - y0), abs=1e-9)


def test_the_schedule_of_the_paper_runs_from_1_at_episode_1_to_a_tenth_at_500() -> None:
    (amplitude,) = schedules(OrnsteinUhlenbeck().amplitude, ["voltage"])
    assert [interpolate(amplitude, e) for e in (1, 500, 501, 3000)] == pytest.approx([1.0, 0.1, 0.1, 0.1])
    assert interpolate(amplitude, 250.5) == pytest.approx(0.55)


def test_one_schedule_applies_to_all_actuators_and_a_mapping_to_each() -> None:
    shared, low = ((1.0, 1.0),), ((1.0, 0.5),)
    assert schedules(shared, ["a", "b"]) == (shared, shared)
    by_actuator: dict[str, Points] = {"b": low, "a": shared}
    assert amplitudes(OrnsteinUhlenbeck(amplitude=by_actuator), ["a", "b"], 7.0) == (1.0, 0.5)
    with pytest.raises(KeyError):
        schedules(by_actuator, ["a", "c"])


@given(st.integers(2, 9), st.data())
def test_the_configured_number_of_every_n_episodes_are_quiet_but_not_the_first(
    period: int, data: st.DataObject
) -> None:
    quiet = Quiet(every=period, episodes=data.draw(st.integers(1, period - 1)))
    first = data.draw(st.integers(0, 50)) * period + 1
    flags = [is_quiet(quiet, e) for e in range(first, first + period)]
    assert flags == [False] * (period - quiet.episodes) + [True] * quiet.episodes


@pytest.mark.parametrize(
    ("exploration", "expected"),
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
def test_only_ungated_signals_over_episodes_follow_from_the_episode(exploration: Exploration, expected: bool) -> None:
    assert depends_on_episode_only(exploration) is expected


UNIT = st.floats(0, 1)
BACK_OFFS = st.builds(
    BackOff, factor=st.floats(0.05, 0.95), least=st.floats(0.01, 1.0), clean_episodes=st.integers(1, 6)
)


@given(st.builds(NearEnvelope, start=st.floats(0.01, 1), floor=UNIT), UNIT, UNIT)
def test_attenuation_rises_with_the_margin_from_the_floor_to_one(gate: NearEnvelope, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert gate.floor <= attenuation(gate, low) <= attenuation(gate, high) + 1e-12 <= 1 + 2e-12
    assert attenuation(gate, gate.start) == 1.0
    assert attenuation(gate, 0.0) == gate.floor


def test_a_negative_or_nan_margin_gives_the_floor() -> None:
    gate = NearEnvelope(start=0.5, floor=0.25)
    assert [attenuation(gate, m) for m in (-1.0, -math.inf, math.nan)] == [0.25] * 3
    assert attenuation(gate, 0.25) == 0.625


@given(BACK_OFFS, st.lists(st.booleans(), max_size=60))
def test_back_off_falls_with_every_trip_and_rises_only_with_clean_episodes(
    b: BackOff, tripped_episodes: list[bool]
) -> None:
    back_off = BackOffState()
    for tripped in tripped_episodes:
        factor_before = back_off_factor(b, back_off)
        back_off = back_off_once(b, back_off) if tripped else count_clean_episode(b, back_off)
        factor_after = back_off_factor(b, back_off)
        assert b.least <= factor_after <= 1.0
        assert factor_after <= factor_before if tripped else factor_after >= factor_before
        if tripped:
            assert factor_after == max(b.least, factor_before * b.factor) or math.isclose(
                factor_after, factor_before * b.factor
            )


@given(BACK_OFFS, st.integers(1, 30))
def test_the_return_takes_k_clean_episodes_for_each_step_and_ends_at_one(b: BackOff, n_trips: int) -> None:
    back_off = BackOffState()
    for _ in range(n_trips):
        back_off = back_off_once(b, back_off)
    assert b.factor ** (back_off.level - 1) > b.least or back_off.level <= 1, "not reduced beyond the minimum"
    for level in range(back_off.level, 0, -1):
        for n_clean in range(b.clean_episodes - 1):
            back_off = count_clean_episode(b, back_off)
            assert back_off == (level, n_clean + 1)
        back_off = count_clean_episode(b, back_off)
        assert back_off == (level - 1, 0)
    assert back_off_factor(b, back_off) == 1.0


def test_a_trip_resets_the_count_of_clean_episodes() -> None:
    b = BackOff(factor=0.5, least=0.1, clean_episodes=3)
    back_off = back_off_once(b, BackOffState())
    back_off = count_clean_episode(b, count_clean_episode(b, back_off))
    assert back_off_once(b, back_off) == BackOffState(2, 0)
    assert count_clean_episode(b, back_off) == BackOffState(0, 0)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e5), UNIT)
def test_room_shrinks_with_use_from_the_warning_and_is_zero_once_spent(
    a: float, b: float, limit: float, warn: float
) -> None:
    low, high = sorted((a, b))
    assert 0.0 <= budget_factor(high, limit, warn) <= budget_factor(low, limit, warn) + 1e-9 <= 1.0 + 2e-9
    assert budget_factor(limit, limit, warn) == 0.0
    assert budget_factor(0.0, limit, warn) == 1.0
    assert budget_factor(math.nan, limit, warn) == 0.0
