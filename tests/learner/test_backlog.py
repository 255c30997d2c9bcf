"""Updates due in real time: none is lost below the bound, and portions are bounded in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.learner.backlog import PORTION_DURATION_S, Backlog


def ignore(line: str) -> None:
    pytest.fail(line)


@given(st.floats(0.01, 64), st.lists(st.integers(0, 50), max_size=30))
def test_every_update_is_due_once(updates_per_experience: float, steps: list[int]) -> None:
    backlog, n_inserted, n_done = Backlog(updates_per_experience, 2000, ignore), 0, 0
    for n_new in steps:
        n_inserted += n_new
        backlog.add_writes(n_inserted)
        while updates := backlog.n_due:
            backlog.record_updates(updates)
            n_done += updates
    assert n_done == pytest.approx(updates_per_experience * n_inserted, abs=1 + 1e-6)
    assert n_done <= updates_per_experience * n_inserted + 1e-6


def test_pending_experiences_are_bounded_and_the_excess_is_reported_once() -> None:
    messages = list[str]()
    backlog = Backlog(64.0, 100, messages.append)
    backlog.record_duration(1, 1e-9)
    for n_inserted in (100, 150, 300):
        backlog.add_writes(n_inserted)
    assert backlog.n_due == 6400
    assert backlog.n_dropped_updates == 64 * 200
    assert messages == ["the learner cannot keep up: updates beyond learner.backlog are dropped"]


def test_a_memory_that_shrank_has_no_updates_due() -> None:
    backlog = Backlog(2.0, 100, ignore)
    backlog.add_writes(10)
    backlog.record_updates(20)
    backlog.add_writes(4)
    assert backlog.n_due == 0
    backlog.add_writes(5)
    assert backlog.n_due == 2


@pytest.mark.parametrize("update_s", [1e-5, 117e-6, 0.002, 0.04, 3.0])
def test_a_portion_takes_about_its_target_time_or_is_one_update(update_s: float) -> None:
    backlog = Backlog(64.0, 2000, ignore)
    backlog.add_writes(2000)
    for _ in range(3):
        backlog.record_duration(backlog.n_due, backlog.n_due * update_s)
        assert backlog.n_due * update_s <= max(PORTION_DURATION_S, update_s) * 1.0001
        assert (backlog.n_due + 1) * update_s > PORTION_DURATION_S
