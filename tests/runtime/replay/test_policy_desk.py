from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from runtime.policy.contract import contract_for
from runtime.replay.policy_desk import PolicyDesk, admission_limits
from runtime.shm.segment import Segment
from runtime.shm.slot import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from tests.runtime.policy import models
from tests.runtime.samples import PENDULUM

NOTHING = np.zeros((0, 2), np.float32)


def model(policy_id: int, *, hidden: int = 4, scale: float = 3.0, rate_hz: float = PENDULUM.rate_hz) -> bytes:
    contract = contract_for(PENDULUM.rig, rate_hz, policy_id=policy_id, parent_run="run", training_step=0)
    return models.serialized(models.policy(scale, contract, hidden))


class Desk(PolicyDesk):
    """A desk on a slot and a folder of the test's own, with what it told of."""

    def __init__(self, folder: Path, slot: PolicySlot) -> None:
        self.events: list[tuple[str, object]] = []
        self.slot, self.folder = slot, folder / "policies"
        limits = msgspec.structs.replace(admission_limits(PENDULUM), latency_is_advisory=True)
        super().__init__(PENDULUM.rig, PENDULUM.rate_hz, 0, limits, slot, self.folder, self._note)

    def _note(self, kind: str, **what: object) -> None:
        if kind != "policy_warning":  # of latency: a matter of this machine's load
            self.events.append((kind, what["policy"]))

    @property
    def tally(self) -> tuple[int, int, int]:
        return self.offered, self.admitted, self.refused


@pytest.fixture
def slot(tmp_path: Path) -> PolicySlot:
    return PolicySlot(Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA))


@pytest.fixture
def desk(tmp_path: Path, slot: PolicySlot) -> Desk:
    return Desk(tmp_path, slot)


def test_an_admitted_policy_is_in_the_slot_and_in_the_run_folder(desk: Desk) -> None:
    verdict = desk.judge(1, model(1), NOTHING)
    assert (verdict.accepted, verdict.policy_id) == (True, 1)
    assert desk.slot.take() == (1, 1, model(1))
    assert [(p.name, p.read_bytes()) for p in desk.folder.iterdir()] == [("1.onnx", model(1))]
    assert (desk.tally, desk.active_id) == ((1, 1, 0), 1)
    assert desk.events == [("policy_admitted", 1)]


@pytest.mark.parametrize(
    ("offer", "stage"),
    [
        (b"", "format"),
        (b"\x80\x04pickle", "format"),
        (bytes(5 << 20), "size"),
        (model(1, rate_hz=100.0), "contract"),
        (model(2), "contract"),
        (model(1, scale=30.0), "bounds"),
        (model(1, scale=float("nan")), "finite"),
    ],
    ids=["empty", "garbage", "too large", "another rate", "the id of another", "beyond the limits", "NaN"],
)
def test_a_refused_policy_reaches_neither_slot_nor_folder_and_the_reason_is_told(
    desk: Desk, offer: bytes, stage: str
) -> None:
    verdict = desk.judge(1, offer, NOTHING)
    assert (verdict.accepted, verdict.stage) == (False, stage)
    assert verdict.reason
    assert desk.slot.take() is None
    assert list(desk.folder.iterdir()) == []
    assert (desk.tally, desk.active_id) == ((1, 0, 1), 0)
    assert desk.events == [("policy_refused", 1)]


@pytest.mark.parametrize("offer", [model(1), model(1, scale=30.0)], ids=["admitted", "refused"])
def test_an_offer_that_is_repeated_gets_the_same_answer_and_changes_nothing(desk: Desk, offer: bytes) -> None:
    first = desk.judge(1, offer, NOTHING)
    before = (desk.tally, desk.slot.version, list(desk.events))
    assert desk.judge(1, offer, NOTHING) == first
    assert (desk.tally, desk.slot.version, desk.events) == before


def test_an_id_is_not_used_twice(desk: Desk) -> None:
    desk.judge(1, model(1), NOTHING)
    again = desk.judge(1, model(1, hidden=5), NOTHING)
    assert (again.accepted, again.stage) == (False, "contract")
    assert "used" in again.reason
    assert desk.slot.take() == (1, 1, model(1))
    assert desk.judge(1, model(1), NOTHING).accepted, "the first one's verdict stands"


def test_the_id_of_a_policy_that_was_refused_is_used_up_too(desk: Desk) -> None:
    desk.judge(1, b"garbage", NOTHING)
    assert not desk.judge(1, model(1), NOTHING).accepted
    assert desk.next_id == 2


def test_an_id_is_not_used_twice_however_long_ago_that_was(desk: Desk) -> None:
    for policy_id in range(1, 101):
        desk.judge(policy_id, b"garbage %d" % policy_id, NOTHING)
    for policy_id in (1, 36, 37, 100):
        verdict = desk.judge(policy_id, model(policy_id), NOTHING)
        assert (verdict.accepted, verdict.stage) == (False, "contract")
    assert desk.slot.version == 0
    assert desk.judge(101, model(101), NOTHING).accepted


@pytest.mark.parametrize("policy_id", [-1, 1 << 31, 1 << 63])
def test_an_impossible_id_is_refused_and_does_not_count(desk: Desk, policy_id: int) -> None:
    assert not desk.judge(policy_id, model(1), NOTHING).accepted
    assert desk.next_id == 1
    assert desk.judge(1, model(1), NOTHING).accepted


def test_ids_count_up(desk: Desk) -> None:
    assert desk.next_id == 1
    desk.judge(1, model(1), NOTHING)
    assert desk.next_id == 2
    desk.judge(7, model(7), NOTHING)
    assert desk.next_id == 8


def test_a_policy_is_tried_on_what_the_rig_has_seen_as_well(desk: Desk) -> None:
    """A network that is sound wherever the probes look may still fail where the rig goes: at 40 rad/s."""
    contract = contract_for(PENDULUM.rig, PENDULUM.rate_hz, policy_id=1, parent_run="run", training_step=0)
    nodes = [
        models.node("Sub", ["observation", "edge"], ["beyond"]),
        models.node("Relu", ["beyond"], ["excess"]),
        models.node("MatMul", ["excess", "gain"], ["action"]),
    ]
    constants = {"edge": np.array([[0, 3000]], np.float32), "gain": np.array([[0], [1]], np.float32)}
    offer = models.serialized(models.proto(nodes, constants, contract=contract))
    far = np.array([[0.0, 120.0]], np.float32)  # normalised: 3600 rad/s
    verdict = desk.judge(1, offer, far)
    assert (verdict.accepted, verdict.stage) == (False, "bounds")
    assert "velocity 3600" in verdict.reason


def test_a_desk_that_takes_over_knows_the_ids_that_were_used(desk: Desk, tmp_path: Path) -> None:
    for policy_id in (1, 2):
        desk.judge(policy_id, model(policy_id), NOTHING)
    after = Desk(tmp_path, desk.slot)
    assert after.next_id == 3
    assert not after.judge(2, model(2, hidden=5), NOTHING).accepted
    assert after.judge(2, model(2), NOTHING).accepted, "the very policy, offered again because the answer was lost"
    assert after.judge(3, model(3), NOTHING).accepted


def test_a_policy_from_a_file_bears_the_id_of_its_metadata(desk: Desk) -> None:
    assert desk.adopt(model(41)).accepted
    assert desk.slot.take() == (1, 41, model(41))
    assert desk.next_id == 42


def test_a_policy_from_a_file_that_is_refused_reaches_no_slot(desk: Desk) -> None:
    verdict = desk.adopt(model(41, scale=30.0))
    assert (verdict.accepted, verdict.stage) == (False, "bounds")
    assert desk.slot.version == 0


def test_the_policy_a_run_started_with_does_not_come_back_when_the_desk_is_taken_over(
    desk: Desk, tmp_path: Path
) -> None:
    desk.adopt(model(1))
    desk.judge(2, model(2), NOTHING)
    after = Desk(tmp_path, desk.slot)
    assert after.adopt(model(1)).accepted
    assert desk.slot.take() == (2, 2, model(2))


# -- rolled back -------------------------------------------------------------------------------------------------------


def test_a_policy_that_was_rolled_back_is_refused_by_every_desk_of_its_run_folder(desk: Desk, tmp_path: Path) -> None:
    for policy_id in (1, 2):
        desk.judge(policy_id, model(policy_id), NOTHING)
    desk.take_back(2, "too slow")
    version = desk.slot.version
    for d in (desk, Desk(tmp_path, desk.slot)):
        verdict = d.judge(2, model(2), NOTHING)
        assert (verdict.accepted, verdict.stage, verdict.reason) == (False, "probation", "it was rolled back: too slow")
        assert (d.rolled_back, d.was_rolled_back(2), d.was_rolled_back(1)) == (1, True, False)
        assert not d.adopt(model(2)).accepted
    assert desk.slot.version == version
    assert desk.judge(3, model(3), NOTHING).accepted


def test_one_that_another_replay_process_admitted_may_be_taken_back_too(desk: Desk, tmp_path: Path) -> None:
    desk.judge(1, model(1), NOTHING)
    after = Desk(tmp_path, desk.slot)
    after.take_back(1, "no number")
    assert not after.judge(1, model(1), NOTHING).accepted


def test_what_was_never_admitted_cannot_be_taken_back(desk: Desk) -> None:
    desk.take_back(5, "no number")
    assert desk.rolled_back == 0


def test_a_full_disk_does_not_let_it_come_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    desk.judge(1, model(1), NOTHING)
    monkeypatch.setattr(Path, "open", full)
    desk.take_back(1, "no number")
    monkeypatch.undo()
    assert desk.events[-1] == ("rolled_back_not_filed", 1)
    assert not desk.judge(1, model(1), NOTHING).accepted


def test_a_list_of_them_that_cannot_be_read_is_told_of(desk: Desk, tmp_path: Path) -> None:
    (desk.folder / "rolled_back.json").write_bytes(b"[{")
    told: list[str] = []
    arguments = (PENDULUM.rig, PENDULUM.rate_hz, 0, admission_limits(PENDULUM), desk.slot, desk.folder)
    PolicyDesk(*arguments, lambda kind, **what: told.append(kind))
    assert told == ["rolled_back_unreadable"]


def test_the_training_step_of_a_policy_is_known_as_long_as_it_is_among_the_latest(desk: Desk) -> None:
    desk.judge(1, model(1), NOTHING)
    assert (desk.training_step(1), desk.training_step(2)) == (0, None)
    for policy_id in range(2, 67):
        desk.judge(policy_id, model(policy_id), NOTHING)
    assert (desk.training_step(1), desk.training_step(66)) == (None, 0)
