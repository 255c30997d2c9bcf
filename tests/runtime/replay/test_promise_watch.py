"""The watch on a promise: a sequential test over episodes, told once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.runtime.record import Flag, Kind
from onrig.runtime.replay.promise_watch import (
    MIN_EXCEEDING_EPISODES,
    WINDOW,
    PromiseWatch,
    SlidingWindowTest,
    claimed_fraction,
    false_alarm_rate,
)
from onrig.runtime.run_config import record_layout
from onrig.runtime.safety.promise import Basis, Promise
from tests.runtime.samples import PENDULUM


class Marked:
    """Steps are outside where their reward says so."""

    def __init__(self) -> None:
        self.judged = 0

    def count(self, records: NDArray[np.void]) -> tuple[int, int]:
        first = records[:-1]
        self.judged += len(first)
        return int(np.count_nonzero(first["reward"])), len(first)


def episode(number: int, outside: int, steps: int = 100, kind: Kind = Kind.TRAIN) -> NDArray[np.void]:
    rows = np.zeros(steps + 1, record_layout(PENDULUM).dtype)
    rows["episode"], rows["kind"] = number, kind
    rows["reward"][:outside] = 1.0
    rows["flags"][-1] = Flag.NO_ACTION
    return rows


class Told:
    def __init__(self, claimed: float = 0.0, *, withdrawn: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self.times = 0
        self.check = Marked()
        promise = Promise(Basis.SAMPLED, "")
        self.watch = PromiseWatch(promise, claimed, self.check, self._event, self._withdraw, withdrawn=withdrawn)

    def _event(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def _withdraw(self) -> None:
        self.times += 1


def test_three_of_ten_episodes_withdraw_it_once() -> None:
    told = Told()
    for number in range(1, 20):
        told.watch.add(episode(number, 5 if number % 4 == 0 else 1))
        assert told.watch.withdrawn == (number >= 12)
    assert told.times == 1
    assert told.events == [
        {
            "kind": "promise_withdrawn", "promise": "sampled", "episode": 12, "share": 0.05, "claimed": 0.02,
            "episodes": MIN_EXCEEDING_EPISODES, "of": WINDOW,
        }
    ]  # fmt: skip


def test_episodes_that_are_too_far_apart_withdraw_nothing() -> None:
    told = Told()
    for number in range(1, 60):
        told.watch.add(episode(number, 50 if number % 6 == 0 else 0))
    assert not told.watch.withdrawn


def test_what_the_test_of_a_table_found_is_allowed() -> None:
    told = Told(claimed=0.2)
    for number in range(1, 11):
        told.watch.add(episode(number, 19))
    assert not told.watch.withdrawn
    for number in range(11, 14):
        told.watch.add(episode(number, 21))
    assert told.watch.withdrawn


def test_the_pieces_in_which_records_arrive_make_no_difference() -> None:
    whole, pieces = Told(), Told()
    rows = np.concatenate([episode(1, 3, 700), episode(1, 30, 90, Kind.EVAL), episode(2, 20, 300)])
    whole.watch.add(rows)
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(0, len(rows), 40)).tolist()
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        pieces.watch.add(rows[start:end])
    assert whole.check.judged == pieces.check.judged == 1090
    assert whole.watch._test._exceeds == pieces.watch._test._exceeds


def test_resets_and_short_episodes_are_not_judged() -> None:
    told = Told()
    for number in range(1, 20):
        told.watch.add(episode(number, 100, kind=Kind.RESET))
        told.watch.add(episode(number, 5, steps=10))
    assert not told.watch.withdrawn


def test_a_successor_does_not_withdraw_again() -> None:
    told = Told(withdrawn=True)
    for number in range(1, 6):
        told.watch.add(episode(number, 100))
    assert (told.times, told.events, told.check.judged) == (0, [], 0)


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Independent episodes are rarer still than the bound, which holds for any dependence."""
    rate, rng = 0.01, np.random.default_rng(0)
    alarms = 0
    for _ in range(2000):
        test = SlidingWindowTest(0.0)
        alarms += max([test.add(int(exceeded), 20) for exceeded in rng.random(WINDOW) < rate])
    assert alarms / 2000 <= false_alarm_rate(rate) == pytest.approx(0.0333, abs=1e-4)


def test_a_proved_box_claims_no_step_beyond_it() -> None:
    assert claimed_fraction(PENDULUM.limits.predicted) == claimed_fraction(None) == 0.0


def test_a_plant_whose_code_fails_ends_the_comparison_alone() -> None:
    told = Told()

    def fails(records: NDArray[np.void]) -> tuple[int, int]:
        raise LookupError("no entry")

    told.check.count = fails  # type: ignore[method-assign]
    for number in range(1, 6):
        told.watch.add(episode(number, 100))
    assert [e["kind"] for e in told.events] == ["promise_unchecked"]
    assert "LookupError: no entry" in told.events[0]["reason"]
    assert not told.watch.withdrawn


def test_a_resumed_run_goes_on_with_the_episodes_before_and_a_withdrawn_promise_stays_withdrawn() -> None:
    before, after, later = Told(), Told(), Told()
    for number in (1, 2):
        before.watch.add(episode(number, 50))
    before.watch.add(episode(3, 0))
    after.watch.resume(before.watch.counts())
    assert after.watch.counts() == before.watch.counts()
    assert not after.watch.withdrawn
    after.watch.add(episode(4, 50))
    assert after.times == 1
    later.watch.resume(after.watch.counts())
    assert later.watch.withdrawn
    assert later.times == 1
    assert not later.events
