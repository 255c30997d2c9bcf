"""The watch on a promise: a sequential test over episodes, reported once."""

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


class RewardMarkedCheck:
    """Steps are outside if their reward says so."""

    def __init__(self) -> None:
        self.n_checked = 0

    def count(self, records: NDArray[np.void]) -> tuple[int, int]:
        checked = records[:-1]
        self.n_checked += len(checked)
        return int(np.count_nonzero(checked["reward"])), len(checked)


def episode(number: int, n_outside: int, steps: int = 100, kind: Kind = Kind.TRAIN) -> NDArray[np.void]:
    rows = np.zeros(steps + 1, record_layout(PENDULUM).dtype)
    rows["episode"], rows["kind"] = number, kind
    rows["reward"][:n_outside] = 1.0
    rows["flags"][-1] = Flag.NO_ACTION
    return rows


class RecordingWatch:
    def __init__(self, claimed_fraction: float = 0.0, *, withdrawn: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self.n_withdrawals = 0
        self.check = RewardMarkedCheck()
        promise = Promise(Basis.SAMPLED, "")
        self.watch = PromiseWatch(
            promise, claimed_fraction, self.check, self._event, self._withdraw, withdrawn=withdrawn
        )

    def _event(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def _withdraw(self) -> None:
        self.n_withdrawals += 1


def test_three_of_ten_episodes_withdraw_the_promise_once() -> None:
    recorder = RecordingWatch()
    for number in range(1, 20):
        recorder.watch.add(episode(number, 5 if number % 4 == 0 else 1))
        assert recorder.watch.withdrawn == (number >= 12)
    assert recorder.n_withdrawals == 1
    assert recorder.events == [
        {
            "kind": "promise_withdrawn", "promise": "sampled", "episode": 12, "share": 0.05, "claimed": 0.02,
            "episodes": MIN_EXCEEDING_EPISODES, "of": WINDOW,
        }
    ]  # fmt: skip


def test_episodes_that_are_too_far_apart_withdraw_nothing() -> None:
    recorder = RecordingWatch()
    for number in range(1, 60):
        recorder.watch.add(episode(number, 50 if number % 6 == 0 else 0))
    assert not recorder.watch.withdrawn


def test_the_claimed_fraction_of_a_table_is_tolerated() -> None:
    recorder = RecordingWatch(claimed_fraction=0.2)
    for number in range(1, 11):
        recorder.watch.add(episode(number, 19))
    assert not recorder.watch.withdrawn
    for number in range(11, 14):
        recorder.watch.add(episode(number, 21))
    assert recorder.watch.withdrawn


def test_the_batching_of_records_makes_no_difference() -> None:
    at_once, in_batches = RecordingWatch(), RecordingWatch()
    rows = np.concatenate([episode(1, 3, 700), episode(1, 30, 90, Kind.EVAL), episode(2, 20, 300)])
    at_once.watch.add(rows)
    rng = np.random.default_rng(0)
    boundaries = np.sort(rng.integers(0, len(rows), 40)).tolist()
    for start, end in zip([0, *boundaries], [*boundaries, len(rows)], strict=True):
        in_batches.watch.add(rows[start:end])
    assert at_once.check.n_checked == in_batches.check.n_checked == 1090
    assert at_once.watch._test._exceeds == in_batches.watch._test._exceeds


def test_resets_and_short_episodes_are_not_judged() -> None:
    recorder = RecordingWatch()
    for number in range(1, 20):
        recorder.watch.add(episode(number, 100, kind=Kind.RESET))
        recorder.watch.add(episode(number, 5, steps=10))
    assert not recorder.watch.withdrawn


def test_a_successor_does_not_withdraw_again() -> None:
    recorder = RecordingWatch(withdrawn=True)
    for number in range(1, 6):
        recorder.watch.add(episode(number, 100))
    assert (recorder.n_withdrawals, recorder.events, recorder.check.n_checked) == (0, [], 0)


def test_false_alarms_are_as_rare_as_stated() -> None:
    """For independent episodes it is even rarer than the bound, which holds for any dependence."""
    rate, rng = 0.01, np.random.default_rng(0)
    n_alarms = 0
    for _ in range(2000):
        test = SlidingWindowTest(0.0)
        n_alarms += max([test.add(int(is_exceeded), 20) for is_exceeded in rng.random(WINDOW) < rate])
    assert n_alarms / 2000 <= false_alarm_rate(rate) == pytest.approx(0.0333, abs=1e-4)


def test_a_proved_box_claims_no_step_beyond_it() -> None:
    assert claimed_fraction(PENDULUM.limits.predicted) == claimed_fraction(None) == 0.0


def test_a_plant_whose_code_fails_ends_only_the_comparison() -> None:
    recorder = RecordingWatch()

    def fail(records: NDArray[np.void]) -> tuple[int, int]:
        raise LookupError("no entry")

    recorder.check.count = fail  # type: ignore[method-assign]
    for number in range(1, 6):
        recorder.watch.add(episode(number, 100))
    assert [e["kind"] for e in recorder.events] == ["promise_unchecked"]
    assert "LookupError: no entry" in recorder.events[0]["reason"]
    assert not recorder.watch.withdrawn


def test_a_resumed_run_continues_with_the_earlier_episodes_and_a_withdrawn_promise_remains_withdrawn() -> None:
    original, successor, later_successor = RecordingWatch(), RecordingWatch(), RecordingWatch()
    for number in (1, 2):
        original.watch.add(episode(number, 50))
    original.watch.add(episode(3, 0))
    successor.watch.resume(original.watch.counts())
    assert successor.watch.counts() == original.watch.counts()
    assert not successor.watch.withdrawn
    successor.watch.add(episode(4, 50))
    assert successor.n_withdrawals == 1
    later_successor.watch.resume(successor.watch.counts())
    assert later_successor.watch.withdrawn
    assert later_successor.n_withdrawals == 1
    assert not later_successor.events
