from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.explore.budgets import Ledger, TickConsumption
from onrig.runtime.explore.settings import Budgets, Quota, TemperatureLimit

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000


def book_trips(ledger: Ledger, trips: int) -> Ledger:
    for _ in range(trips):
        ledger.book(TickConsumption(trips=1))
    return ledger


def test_exploration_falls_from_the_warning_and_pauses_once_the_budget_is_spent() -> None:
    ledger = Ledger(Budgets(warn=0.5, session=Quota(trips=10)))
    factors = []
    for _ in range(10):
        assert ledger.pause() is None
        factors.append(book_trips(ledger, 1).factor())
    assert factors == pytest.approx([1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0])
    pause = ledger.pause()
    assert pause is not None
    assert pause.wait_s == math.inf
    assert pause.cause == "10 of 10 used at exploration.budgets.session.trips"


def test_the_budget_of_an_episode_is_restored_in_the_next() -> None:
    ledger = book_trips(Ledger(Budgets(episode=Quota(trips=2))), 2)
    pause = ledger.pause()
    assert pause is not None
    assert pause.wait_s == 0.0
    ledger.begin_episode()
    assert (ledger.pause(), ledger.factor()) == (None, 1.0)


def test_the_longest_pause_applies() -> None:
    ledger = book_trips(Ledger(Budgets(episode=Quota(trips=2), hour=Quota(trips=2), session=Quota(trips=3))), 2)
    hour = ledger.pause()
    session = book_trips(ledger, 1).pause()
    assert hour is not None
    assert session is not None
    assert 0 < hour.wait_s < session.wait_s == math.inf


USES = st.lists(st.tuples(st.integers(0, 20 * MINUTE_US), st.floats(0, 5)), min_size=1, max_size=40)


@settings(max_examples=60)
@given(USES)
def test_no_hour_exceeds_its_budget_by_more_than_one_tick(uses: list[tuple[int, float]]) -> None:
    ledger, now, bookings = Ledger(Budgets(hour=Quota(energy_s=10.0))), 0, []
    for gap_us, energy_s in uses:
        ledger.advance(gap_us)
        now += gap_us
        pause = ledger.pause()
        if pause is not None:
            assert 0 < pause.wait_s <= 3660
            ledger.advance_at_rest(pause.wait_s)
            now += round(1e6 * pause.wait_s)
            assert ledger.pause() is None
            assert ledger.factor() == 1.0
        ledger.book(TickConsumption(energy_s=energy_s))
        bookings.append((now, energy_s))
        used_within_hour = math.fsum(e for booked_at, e in bookings[:-1] if now - booked_at <= HOUR_US)
        assert used_within_hour < 10.0 + 1e-9


def test_usage_counts_for_an_hour_and_at_most_a_minute_more() -> None:
    ledger = book_trips(Ledger(Budgets(hour=Quota(trips=1))), 1)
    ledger.advance(HOUR_US)
    assert ledger.pause() is not None
    ledger.advance(MINUTE_US)
    assert ledger.pause() is None


def test_a_budget_without_a_warning_is_still_waited_for() -> None:
    ledger = book_trips(Ledger(Budgets(warn=1.0, hour=Quota(trips=1))), 1)
    pause = ledger.pause()
    assert pause is not None
    assert pause.wait_s > 0.0
    ledger.advance_at_rest(pause.wait_s)
    assert ledger.pause() is None


def test_many_short_ticks_count_like_one_long_period() -> None:
    many_ticks, one_tick = (book_trips(Ledger(Budgets(hour=Quota(trips=5))), 3) for _ in range(2))
    for _ in range(36_600):
        many_ticks.advance(100_000)
    one_tick.advance(3_660_000_000)
    assert many_ticks.state() == one_tick.state() == {"minute_us": 0.0, "hour.trips": 0.0}


def test_heat_lowers_the_amplitude_between_its_two_temperatures_and_pauses_at_the_upper() -> None:
    ledger = Ledger(Budgets(temperature=TemperatureLimit(sensor="winding", warn=340.0, limit=360.0, cool_s=90.0)))
    assert ledger.is_active
    factors = []
    for degrees in (-10.0, 340.0, 345.0, 359.0):
        ledger.set_temperature(degrees)
        factors.append(ledger.factor())
        assert ledger.pause() is None
    assert factors == pytest.approx([1.0, 1.0, 0.75, 0.05])
    ledger.set_temperature(360.5)
    pause = ledger.pause()
    assert pause is not None
    assert (pause.cause, pause.wait_s) == ("'winding' reads 360.5; its limit is 360", 90.0)
    ledger.advance_at_rest(90.0)
    assert ledger.pause() is None, "the next reading decides"


@settings(max_examples=40)
@given(USES, USES)
def test_a_restored_ledger_continues_like_the_saved_one(
    before: list[tuple[int, float]], after: list[tuple[int, float]]
) -> None:
    budgets = Budgets(hour=Quota(energy_s=40.0, wear_strokes=30.0), session=Quota(energy_s=100.0))
    first, second = Ledger(budgets), Ledger(budgets)
    for gap_us, energy_s in before:
        first.advance(gap_us)
        first.book(TickConsumption(energy_s=energy_s, wear_strokes=energy_s / 2))
    second.restore(first.state())
    for gap_us, energy_s in after:
        for ledger in (first, second):
            ledger.advance(gap_us)
            ledger.book(TickConsumption(energy_s=energy_s))
        assert (first.state(), first.factor(), first.pause()) == (second.state(), second.factor(), second.pause())


def test_without_budgets_nothing_is_monitored() -> None:
    ledger = Ledger(Budgets())
    assert not ledger.is_active
    assert (book_trips(ledger, 1000).factor(), ledger.pause()) == (1.0, None)
