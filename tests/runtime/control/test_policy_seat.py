from __future__ import annotations

import time
from pathlib import Path

import pytest

from runtime.control import policy_seat
from runtime.control.policy_seat import PolicySeat
from runtime.shm.segment import Segment
from runtime.shm.slot import SLOT_BYTES, SLOT_SCHEMA, PolicySlot

AMPLE = 10**9
BUILD_NS = 300_000


class FakeSession:
    """Stands for a session: knows its model, takes 300 us of virtual time to build, fails where the model says so."""

    now_ns = 0
    built: list[bytes]

    def __init__(self, model: bytes) -> None:
        FakeSession.now_ns += BUILD_NS * (100 if b"slow" in model else 1)
        FakeSession.built.append(model)
        if b"unbuildable" in model:
            raise ValueError("no such operator")
        self.model = model
        self.warm = False

    def warm_up(self, runs: int) -> None:
        if b"unrunnable" in self.model:
            raise RuntimeError("it fails to run")
        self.warm = True


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PolicySlot:
    FakeSession.built, FakeSession.now_ns = [], 0
    monkeypatch.setattr(policy_seat, "PolicySession", FakeSession)
    monkeypatch.setattr(time, "monotonic_ns", lambda: FakeSession.now_ns)
    return PolicySlot(Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA))


def acting(seat: PolicySeat) -> bytes | None:
    """The model that decides."""
    model: bytes | None = getattr(seat.active, "model", None)
    return model


def prepare(seat: PolicySeat, times: int = 3, slack_ns: int = AMPLE) -> None:
    for _ in range(times):
        seat.prepare(slack_ns)


def test_nobody_sits_on_it_before_the_first_policy(slot: PolicySlot) -> None:
    seat = PolicySeat(slot)
    prepare(seat)
    assert not seat.swap()
    assert (seat.active, seat.policy_id, seat.swaps) == (None, 0, 0)


def test_a_policy_acts_from_the_next_edge_on_and_not_before(slot: PolicySlot) -> None:
    seat = PolicySeat(slot)
    slot.put(5, b"five")
    prepare(seat, times=10)
    assert seat.active is None, "prepared, but no edge has come"
    assert seat.swap()
    assert (acting(seat), seat.policy_id, seat.swaps) == (b"five", 5, 1)
    assert not seat.swap(), "it is not swapped for itself"


def test_it_is_prepared_one_piece_for_each_slack_and_warmed_up_before_it_acts(slot: PolicySlot) -> None:
    seat = PolicySeat(slot)
    slot.put(5, b"five")
    seat.prepare(AMPLE)
    assert (FakeSession.built, seat.swap()) == ([], False)
    seat.prepare(AMPLE)
    assert (FakeSession.built, seat.swap()) == ([b"five"], False)
    seat.prepare(AMPLE)
    assert seat.swap()
    assert getattr(seat.active, "warm", False)


def test_nothing_is_built_in_a_slack_that_may_not_suffice(slot: PolicySlot) -> None:
    seat = PolicySeat(slot)
    slot.put(1, b"one")
    prepare(seat, times=20, slack_ns=2 * BUILD_NS)
    assert FakeSession.built == [], "the first guess of a build is above what builds take here"
    prepare(seat, times=20, slack_ns=1_200_000)
    assert FakeSession.built == [b"one"]
    assert seat.swap()


def test_a_slow_build_asks_for_more_slack_and_is_forgotten_in_time(slot: PolicySlot) -> None:
    seat = PolicySeat(slot)
    slot.put(1, b"slow")
    prepare(seat)
    seat.swap()
    slot.put(2, b"two")
    prepare(seat, times=20, slack_ns=50 * BUILD_NS)
    assert FakeSession.built == [b"slow"], "it may take as long again"
    for policy_id in range(2, 60):
        slot.put(policy_id, b"quick")
        prepare(seat)
        seat.swap()
    slot.put(60, b"sixty")
    prepare(seat, slack_ns=3 * BUILD_NS)
    assert seat.swap()
    assert acting(seat) == b"sixty"


def test_the_predecessor_is_kept(slot: PolicySlot) -> None:
    seat = PolicySeat(slot)
    for policy_id, model in ((1, b"one"), (2, b"two"), (3, b"three")):
        slot.put(policy_id, model)
        prepare(seat)
        seat.swap()
    assert seat.predecessor is not None
    policy_id, session = seat.predecessor
    assert (policy_id, getattr(session, "model", None)) == (2, b"two")


@pytest.mark.parametrize("model", [b"unbuildable", b"unrunnable"])
def test_a_policy_that_cannot_be_built_or_run_leaves_the_present_one_acting(slot: PolicySlot, model: bytes) -> None:
    seat = PolicySeat(slot)
    slot.put(1, b"one")
    seat.take_newest()
    slot.put(2, model)
    prepare(seat, times=10)
    assert not seat.swap()
    seat.take_newest()
    assert (acting(seat), seat.policy_id, seat.refused) == (b"one", 1, 1)
    slot.put(3, b"three")
    seat.take_newest()
    assert (acting(seat), seat.policy_id) == (b"three", 3)


def test_between_episodes_the_newest_is_installed_at_once(slot: PolicySlot) -> None:
    seat = PolicySeat(slot)
    for policy_id in (1, 2, 3):
        slot.put(policy_id, b"%d" % policy_id)
    seat.take_newest()
    assert (acting(seat), seat.policy_id, FakeSession.built) == (b"3", 3, [b"3"])
    seat.take_newest()
    assert FakeSession.built == [b"3"], "what acts already is not built again"


@pytest.mark.parametrize("pieces", [0, 1, 2, 3])
def test_the_newest_is_installed_also_where_an_older_one_is_being_prepared(slot: PolicySlot, pieces: int) -> None:
    seat = PolicySeat(slot)
    slot.put(1, b"one")
    seat.take_newest()
    slot.put(2, b"two")
    prepare(seat, times=pieces)
    slot.put(3, b"three")
    seat.take_newest()
    assert (acting(seat), seat.policy_id) == (b"three", 3)


def test_a_slot_that_is_being_rewritten_holds_nobody_up(slot: PolicySlot, monkeypatch: pytest.MonkeyPatch) -> None:
    seat = PolicySeat(slot)
    slot.put(1, b"one")
    monkeypatch.setattr(slot, "take", lambda: None)
    seat.take_newest()
    assert seat.active is None
    monkeypatch.undo()
    monkeypatch.setattr(policy_seat, "PolicySession", FakeSession)
    seat.take_newest()
    assert acting(seat) == b"one"
