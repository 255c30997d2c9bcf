from __future__ import annotations

import pytest

from onrig.runtime.control.slack import Slack

MS = 1_000_000


def used(period_ms: float, *work_us: int) -> Slack:
    slack = Slack(round(period_ms * MS))
    for us in work_us:
        slack.follows(1000 * us)
    return slack


def test_usual_ticks_leave_time_whatever_is_usual() -> None:
    for us in (20, 200, 400):
        assert used(1.0, *[us] * 100).follows(1000 * us + 30_000)


@pytest.mark.parametrize("us", [500, 700, 3000])
def test_nothing_follows_a_tick_of_half_a_period(us: int) -> None:
    assert not used(1.0, *[400] * 100).follows(1000 * us)


def test_nothing_follows_a_tick_of_four_times_its_usual_length() -> None:
    slack = used(5.0, *[200] * 100)
    assert slack.follows(700_000)
    assert not slack.follows(1_960_000)


def test_one_stall_makes_no_other_usual() -> None:
    slack = used(20.0, *[200] * 100, 8000)
    assert not slack.follows(1_000_000)


def test_ticks_that_have_become_longer_for_good_are_usual_before_long() -> None:
    slack = Slack(100 * MS)
    found = [slack.follows(200_000) for _ in range(100)] + [slack.follows(3_000_000) for _ in range(200)]
    assert all(found[:100])
    assert not found[100]
    assert all(found[200:])
