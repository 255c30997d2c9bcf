from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.explore.schedule import amplitudes, follows_episode_alone, interpolate, is_quiet, schedules
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
    assert follows_episode_alone(exploration) is alone
