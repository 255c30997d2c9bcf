from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.endurance.schedule import Kind
from tests.lab.rig.balance import (
    FLAT_ROLES,
    MAX_SAMPLES,
    MIN_GROWTH_TIME_S,
    WARM_UP_S,
    FaultRecord,
    Ledger,
    Lifetime,
    Trend,
    checks,
    failed,
    grown_mb,
    life_checks,
    slopes_per_minute,
    trend,
)
from tests.lab.rig.run_folder import ReportedCounts

COST = 1000


def life(ticks: int = 500, *, kills: int = 0, lost: int = 0, resumed: bool = False, base: int = 0) -> Lifetime:
    """Return a lifetime with consistent counts."""
    offered = ticks - lost - 20
    before = ReportedCounts(base, base // 9, base, base, policies_offered=0)
    reported = ReportedCounts(
        taken_in=base + ticks - lost,
        missed=base // 9 + 7,
        offered=base + offered,
        kept=base + offered,
        policies_offered=4,
        policies_admitted=3,
        policies_refused=1,
        digest="ab",
        stored=min(200, base + offered),
        capacity=200,
    )
    return Lifetime(
        1,
        resumed=resumed,
        exit_code=130,
        graceful=True,
        before=before,
        reported=reported,
        written=ticks,
        read=ticks,
        missed=Counter(link=4, host=3),
        produced=ticks - 20,
        replay_kills=kills,
        admitted=3,
        refused=1,
        final_mirrors={"learner": "ab"},
    )


def balanced() -> Ledger:
    return Ledger(
        lifetimes=[life()],
        faults=[
            FaultRecord(Kind.CABLE_PULLED, 5, 5.01, 0, 1, ["link_silent"], 4.0, True, 4),
            FaultRecord(Kind.NETWORK_CUT, 10, 10.0, 2, 1, [], 2.5),
            FaultRecord(Kind.REPLAY_KILLED, 15, 15.0, 0, 1, ["restarted"], 1.0),
        ],
        planned=3,
        durable_records=COST,
        mirrored=480,
        compared=5,
        compared_complete=2,
        memory={role: Trend(0.01, 100, 1) for role in FLAT_ROLES},
        descriptors={role: Trend(0.0, 100, 1) for role in FLAT_ROLES},
    )


@given(st.integers(50, 5000), st.integers(0, 3), st.integers(0, 900), st.integers(0, 10_000))
@settings(max_examples=60)
def test_losses_by_kills_balance(ticks: int, kills: int, lost: int, base: int) -> None:
    lost = min(lost, ticks - 20) if kills else 0
    one = life(ticks, kills=kills, lost=lost, resumed=base > 0, base=base)
    assert failed(life_checks(one, COST)) == []


@given(st.integers(1, 100))
@settings(max_examples=20)
def test_a_loss_without_a_kill_is_reported(lost: int) -> None:
    assert failed(life_checks(life(lost=lost), COST))


@given(st.integers(1, 3), st.integers(1, 500))
@settings(max_examples=20)
def test_excessive_losses_by_kills_are_reported(kills: int, beyond: int) -> None:
    lost = kills * COST + beyond
    assert failed(life_checks(life(lost + 100, kills=kills, lost=lost), COST))


def _change_reported(**changes: int | str) -> Callable[[Lifetime], None]:
    def change(one: Lifetime) -> None:
        for name, value in changes.items():
            was = getattr(one.reported, name)
            setattr(one.reported, name, was + value if isinstance(value, int) else value)

    return change


def _change_own(name: str, by: int) -> Callable[[Lifetime], None]:
    return lambda one: setattr(one, name, getattr(one, name) + by)


LIFETIME_FAULTS: dict[str, Callable[[Lifetime], None]] = {
    "a record taken in twice": _change_reported(taken_in=1),
    "a record never taken in": _change_reported(taken_in=-1),
    "a record dropped": _change_reported(dropped=1),
    "a record not read along": _change_own("read", -1),
    "an experience too many": _change_reported(offered=1, kept=1, stored=0),
    "an experience too few": _change_reported(offered=-1, kept=-1),
    "one offered and not kept": _change_reported(kept=-1),
    "one stored that is not there": _change_reported(stored=1),
    "a missed tick not told": _change_reported(missed=-1),
    "a missed tick told twice": _change_reported(missed=1),
    "a policy admitted unseen": _change_reported(policies_admitted=1, policies_offered=1),
    "a policy refused unseen": _change_reported(policies_refused=1, policies_offered=1),
    "a policy neither admitted nor refused": _change_reported(policies_offered=1),
    "more rolled back than admitted": _change_own("rolled_back", 5),
    "a policy rolled back unseen": _change_reported(rolled_back=1),
    "a mirror the rig found to differ": _change_reported(mirror_mismatches=1),
    "a final mirror that differs": _change_reported(digest="cd"),
}


@pytest.mark.parametrize("imbalance", LIFETIME_FAULTS)
def test_each_imbalance_of_a_lifetime_is_reported(imbalance: str) -> None:
    one = life()
    LIFETIME_FAULTS[imbalance](one)
    assert failed(life_checks(one, COST))


def _change_fault(**changes: object) -> Callable[[Ledger], None]:
    return lambda ledger: ledger.faults.__setitem__(0, replace(ledger.faults[0], **changes))  # type: ignore[arg-type]


LEDGER_FAULTS: dict[str, Callable[[Ledger], None]] = {
    "a fault not brought about": lambda ledger: setattr(ledger, "planned", 4),
    "a fault not over": _change_fault(recovered_s=None),
    "a fault not named": _change_fault(names=[]),
    "a fault that did not end the run": _change_fault(ended_run=False),
    "an end that nothing explains": lambda ledger: ledger.unexpected_ends.append("run 1 ended with code 70"),
    "a loss that was not told": lambda ledger: ledger.unreported.append("run 1: lost without a report"),
    "a mismatch": lambda ledger: setattr(ledger, "mismatches", 1),
    "no comparison": lambda ledger: setattr(ledger, "compared", 0),
    "no comparison of the whole": lambda ledger: setattr(ledger, "compared_complete", 0),
    "memory that grows": lambda ledger: ledger.memory.update(replay=Trend(3.0, 100, 1)),
    "memory that nobody followed": lambda ledger: ledger.memory.clear(),
    "descriptors that nobody followed": lambda ledger: ledger.descriptors.clear(),
    "descriptors that leak": lambda ledger: ledger.descriptors.update(replay=Trend(2.0, 100, 1)),
    "a life that does not balance": lambda ledger: setattr(ledger.lifetimes[0], "read", 1),
}


def test_a_sound_ledger_balances() -> None:
    assert failed(checks(balanced())) == []


@pytest.mark.parametrize("imbalance", LEDGER_FAULTS)
def test_each_imbalance_of_the_ledger_is_reported(imbalance: str) -> None:
    ledger = balanced()
    LEDGER_FAULTS[imbalance](ledger)
    assert failed(checks(ledger))


def test_a_slope_over_a_short_life_is_not_judged() -> None:
    ledger = balanced()
    ledger.memory["learner"] = Trend(50.0, 20, 3)
    assert failed(checks(ledger)) == []


def test_an_end_without_a_mirror_is_reported() -> None:
    ledger = balanced()
    ledger.lifetimes[-1].final_mirrors.clear()
    assert [check.name for check in failed(checks(ledger))] == ["mirrors that heard of the last end and were compared"]


TIMES = [float(t) for t in range(120)]


@given(st.floats(-5, 5), st.floats(10, 500))
@settings(max_examples=30)
def test_a_line_has_its_slope(per_minute: float, start: float) -> None:
    found = trend([(TIMES, [start + per_minute * t / 60 for t in TIMES])], 0.0)
    assert found is not None
    assert found.per_minute == pytest.approx(per_minute, abs=1e-6)


@given(st.lists(st.integers(0, 119), min_size=1, max_size=15, unique=True))
@settings(max_examples=30)
def test_slopes_tolerate_an_outlier_in_eight_samples(at: list[int]) -> None:
    values = [100.0 + t / 60 for t in TIMES]
    for i in at:
        values[i] = 1e6
    found = trend([(TIMES, values)], 0.0)
    assert found is not None
    assert abs(found.per_minute - 1.0) < 3.0


def test_growth_during_warm_up_is_ignored() -> None:
    values = [min(t, 20.0) for t in TIMES]
    warm = trend([(TIMES, values)], 20.0)
    assert warm is not None
    assert warm.per_minute == 0.0


def test_a_step_from_one_process_to_the_next_is_not_a_slope() -> None:
    later = [t + 120 for t in TIMES]
    found = trend([(TIMES, [100.0] * 120), (later, [300.0] * 120)], 5.0)
    assert found is not None
    assert (found.per_minute, found.series) == (0.0, 2)


def test_short_series_have_no_slope() -> None:
    assert trend([([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]), ([], [])], 0.0) is None


def test_long_series_are_thinned_out() -> None:
    times = [float(t) for t in range(5000)]
    assert len(slopes_per_minute(times, times)) == MAX_SAMPLES * (MAX_SAMPLES - 1) // 2
    assert set(slopes_per_minute(times, times).round(9).tolist()) == {60.0}


def test_growth_is_that_of_the_last_tenth_over_the_first_after_the_warm_up() -> None:
    times = [float(t) for t in range(220)]
    values = [500.0 if t < WARM_UP_S else 100.0 + 0.1 * (t - WARM_UP_S) for t in times]
    found = grown_mb(times, values)
    assert found is not None
    assert abs(found - 18.0) < 0.2


def test_a_peak_or_a_short_lifetime_is_not_growth() -> None:
    times = [float(t) for t in range(220)]
    assert grown_mb(times, [900.0 if t == 215 else 100.0 for t in times]) == 0.0
    assert (
        grown_mb(times[: int(WARM_UP_S + MIN_GROWTH_TIME_S) - 1], [1.0] * int(WARM_UP_S + MIN_GROWTH_TIME_S - 1))
        is None
    )
