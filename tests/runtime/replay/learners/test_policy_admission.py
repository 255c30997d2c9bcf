from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.link.messages import RATE, Verdict
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.record import MAX_POLICY_ID
from onrig.runtime.replay.learners.admission_rate import AdmissionRate, PerBarrier, PerSecond
from onrig.runtime.replay.learners.admission_terms import Examination, admission_limits, examination, required_contract
from onrig.runtime.replay.learners.policy_admission import PolicyAdmission
from onrig.runtime.replay.learners.policy_folder import PolicyFolder, RepeatedPolicyFolder
from onrig.runtime.run_state.checksums import extent_of
from onrig.runtime.run_state.policy_index import read_index
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot, SlotPolicy
from onrig.runtime.shm.segment import Segment
from tests.runtime.policy import models
from tests.runtime.samples import PENDULUM

NOTHING = np.zeros((0, 2), np.float32)
HOSTILE = (2147483646, -1, (1 << 63) - 1, -(1 << 63), 0)
"""What a policy may call itself."""


def model(policy_id: int, *, hidden: int = 4, scale: float = 3.0, rate_hz: float = PENDULUM.rate_hz) -> bytes:
    contract = contract_for(PENDULUM.rig, rate_hz, policy_id=policy_id, parent_run="run", training_step=0)
    return models.serialized(models.policy(scale, contract, hidden))


class Desk(PolicyAdmission):
    """A desk on a slot and a folder of the test's own, with what it told of."""

    def __init__(
        self, folder: Path, slot: PolicySlot, rate: AdmissionRate | None = None, *, lockstep: bool = False
    ) -> None:
        self.events: list[tuple[str, object]] = []
        self.slot, self.folder = slot, folder / "policies"
        limits = msgspec.structs.replace(admission_limits(PENDULUM), latency_is_advisory=True)
        required = required_contract(PENDULUM.rig, PENDULUM.rate_hz, stochastic=False)
        filed = RepeatedPolicyFolder(self.folder) if lockstep else PolicyFolder(self.folder)
        super().__init__(Examination(required, limits, seed=0), slot, filed, self._note, rate)

    def _note(self, kind: str, **what: object) -> None:
        if kind != "policy_warning":  # of latency: a matter of this machine's load
            self.events.append((kind, what["policy"]))

    def offer(self, policy_id: int, **what: float) -> Verdict:
        """Offer a policy that calls itself by this id."""
        return self.admit(model(policy_id, **what), NOTHING)  # type: ignore[arg-type]

    def acts(self, *policy_ids: int, dropped: int = 0) -> None:
        """Let records name who acted, in order."""
        records = np.zeros(len(policy_ids), [("policy_id", "<u4")])
        records["policy_id"] = policy_ids
        self.record_acting(records, dropped)

    @property
    def filed(self) -> list[int]:
        return sorted(int(p.stem) for p in self.folder.glob("*.onnx"))

    @property
    def tally(self) -> tuple[int, int, int]:
        return self.n_offered, self.n_admitted, self.n_refused


@pytest.fixture
def slot(tmp_path: Path) -> PolicySlot:
    return PolicySlot(Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA))


@pytest.fixture
def desk(tmp_path: Path, slot: PolicySlot) -> Desk:
    return Desk(tmp_path, slot)


def seen(policy: SlotPolicy | None) -> tuple[int, int, bytes] | None:
    return None if policy is None else (policy.version, policy.policy_id, policy.model)


def test_an_admitted_policy_is_in_the_slot_and_in_the_run_folder(desk: Desk) -> None:
    verdict = desk.admit(model(1), NOTHING)
    assert (verdict.accepted, verdict.policy_id) == (True, 1)
    assert seen(desk.slot.take()) == (1, 1, model(1))
    assert [(p.name, p.read_bytes()) for p in desk.folder.glob("*.onnx")] == [("1.onnx", model(1))]
    assert read_index(desk.folder / "index.csv") == {1: extent_of(model(1))}
    assert (desk.tally, desk.active_id) == ((1, 1, 0), 1)
    assert desk.events == [("policy_admitted", 1)]


@pytest.mark.parametrize(
    ("offer", "stage"),
    [
        (b"", "format"),
        (b"\x80\x04pickle", "format"),
        (bytes(5 << 20), "size"),
        (model(1, rate_hz=100.0), "contract"),
        (model(1, scale=30.0), "bounds"),
        (model(1, scale=float("nan")), "finite"),
    ],
    ids=["empty", "garbage", "too large", "another rate", "beyond the limits", "NaN"],
)
def test_a_refused_policy_reaches_neither_slot_nor_folder_and_the_reason_is_told(
    desk: Desk, offer: bytes, stage: str
) -> None:
    verdict = desk.admit(offer, NOTHING)
    assert (verdict.accepted, verdict.stage) == (False, stage)
    assert verdict.reason
    assert desk.slot.take() is None
    assert list(desk.folder.iterdir()) == []
    assert (desk.tally, desk.active_id) == ((1, 0, 1), 0)
    assert (verdict.policy_id, desk.events, desk.next_id) == (0, [("policy_refused", 0)], 1)


@pytest.mark.parametrize("offer", [model(1), model(1, scale=30.0)], ids=["admitted", "refused"])
def test_an_offer_that_is_repeated_gets_the_same_answer_and_changes_nothing(desk: Desk, offer: bytes) -> None:
    first = desk.admit(offer, NOTHING)
    before = (desk.tally, desk.slot.version, list(desk.events))
    assert desk.admit(offer, NOTHING) == first
    assert (desk.tally, desk.slot.version, desk.events) == before


def test_ids_count_up_by_one_for_the_admitted_alone(desk: Desk) -> None:
    ids = [desk.offer(n, scale=30.0 if n % 2 else 3.0).policy_id for n in (8, 9, 10, 11, 12)]
    assert ids == [1, 0, 2, 0, 3]
    assert desk.next_id == 4


@pytest.mark.parametrize("says", HOSTILE)
def test_the_rig_gives_the_id_whatever_a_policy_calls_itself(desk: Desk, says: int) -> None:
    assert desk.offer(says, scale=30.0).policy_id == 0
    assert desk.next_id == 1
    verdict = desk.offer(says)
    assert (verdict.accepted, verdict.policy_id) == (True, 1)
    assert seen(desk.slot.take()) == (1, 1, model(says))
    assert desk.offer(1).policy_id == 2, "nobody is locked out"


@pytest.mark.parametrize("says", HOSTILE)
def test_a_file_is_given_its_id_by_the_rig_too(desk: Desk, says: int) -> None:
    assert desk.adopt(model(says)).policy_id == 1
    assert seen(desk.slot.take()) == (1, 1, model(says))
    assert (desk.next_id, desk.filed) == (2, [1])


def test_an_id_beyond_64_bits_is_malformed(desk: Desk) -> None:
    assert (desk.offer(1 << 63).stage, desk.offer(1 << 200).stage) == ("contract", "contract")


def test_when_ids_have_run_out_nothing_more_is_admitted(desk: Desk) -> None:
    desk.reserve_ids(MAX_POLICY_ID - 1)
    assert desk.offer(1).policy_id == MAX_POLICY_ID
    verdict = desk.offer(2)
    assert (verdict.accepted, verdict.stage, desk.slot.version) == (False, "ids", 1)


def test_junk_leaves_nothing_behind_that_grows(desk: Desk) -> None:
    for n in range(200):
        assert not desk.admit(n.to_bytes(8, "little"), NOTHING).accepted
    assert (desk.next_id, desk.counts()["next_policy"], desk.unsynced, desk.filed) == (1, 1, [], [])
    assert len(desk._refusals) == 64


def test_a_repeated_offer_is_known_by_its_bytes_however_many_refused_ones_came_between(desk: Desk) -> None:
    first = desk.offer(1)
    for n in range(100):
        desk.admit(b"junk %d" % n, NOTHING)
    assert desk.offer(1) == first
    assert desk.slot.version == 1


# -- how often ---------------------------------------------------------------------------------------------------------


def test_what_comes_too_soon_is_neither_judged_nor_remembered(tmp_path: Path, slot: PolicySlot) -> None:
    rate_hz = PENDULUM.rate_hz
    desk = Desk(tmp_path, slot, PerSecond(1.0, rate_hz, lambda: 0.0))
    desk.acts(0)
    assert desk.offer(1).accepted
    for _ in range(50):
        verdict = desk.offer(2)
        assert (verdict.accepted, verdict.policy_id, verdict.stage) == (False, 0, RATE)
    assert (desk.tally, desk.n_too_soon, desk.events) == ((1, 1, 0), 50, [("policy_admitted", 1)])
    assert desk.offer(1).accepted, "a repeated offer is answered at any time"
    desk.acts(*[1] * round(rate_hz))
    assert desk.offer(2).policy_id == 2
    assert desk.counts()["too_soon_policies"] == 50


def test_junk_uses_up_the_allowance_as_well(tmp_path: Path, slot: PolicySlot) -> None:
    desk = Desk(tmp_path, slot, PerSecond(1.0, PENDULUM.rate_hz, lambda: 0.0))
    stages = [desk.admit(b"junk %d" % n, NOTHING).stage for n in range(5)]
    assert stages == ["format", *[RATE] * 4]


def test_in_lockstep_one_is_judged_at_each_barrier(tmp_path: Path, slot: PolicySlot) -> None:
    desk = Desk(tmp_path, slot, PerBarrier(), lockstep=True)
    verdicts = [desk.admit(model(n), NOTHING, closed_episode=episode) for n, episode in enumerate((0, 0, 1, 1, 1, 3))]
    assert [v.policy_id for v in verdicts] == [1, 0, 2, 0, 0, 3]
    assert desk.admit(model(0), NOTHING, closed_episode=3) == verdicts[0]


# -- which files stay --------------------------------------------------------------------------------------------------


def test_what_never_acted_goes_once_a_later_one_acts(desk: Desk) -> None:
    for n in range(1, 6):
        desk.slot.take()  # the loop takes each of them
        desk.offer(n)
    assert desk.filed == [1, 2, 3, 4, 5], "any of them may yet act"
    desk.acts(1, 1, 0, 4, 4)
    assert desk.filed == [1, 4, 5]
    desk.offer(6)
    desk.acts(4, 1, 6)
    assert desk.filed == [1, 4, 6], "5 has been superseded; 1 acted, and acts again"


def test_what_the_loop_never_takes_goes_at_once(desk: Desk) -> None:
    desk.offer(1)
    desk.slot.take()
    for n in range(2, 200):
        desk.offer(n)
    assert desk.filed == [1, 199]
    desk.slot.take()
    desk.offer(200)
    assert desk.filed == [1, 199, 200], "199 may be under preparation"


def test_what_may_have_acted_in_records_that_were_lost_stays(desk: Desk) -> None:
    for n in range(1, 5):
        desk.slot.take()
        desk.offer(n)
    desk.acts(1, 4, dropped=7)
    assert desk.filed == [1, 2, 3, 4]
    for n in range(5, 8):
        desk.slot.take()
        desk.offer(n)
    desk.acts(4, 7, dropped=7)
    assert desk.filed == [1, 2, 3, 4, 7]


def test_in_lockstep_files_go_at_barriers_and_by_the_records_alone(tmp_path: Path, slot: PolicySlot) -> None:
    desk = Desk(tmp_path, slot, lockstep=True)
    for n in range(1, 5):
        desk.offer(n)
    assert desk.filed == [1, 2, 3, 4]
    desk.acts(3)
    assert desk.filed == [1, 2, 3, 4]
    desk.prune()
    assert desk.filed == [3, 4]


def test_a_run_in_lockstep_ends_with_the_same_files_however_often_it_goes_back(
    tmp_path: Path, slot: PolicySlot
) -> None:
    first = Desk(tmp_path, slot, lockstep=True)
    first.offer(1)
    first.offer(2)
    counts = first.counts()
    first.acts(2)
    again = Desk(tmp_path, slot, lockstep=True)
    again.resume(counts)
    again.acts(2)
    again.prune()
    assert again.filed == [2]
    counts = again.counts()
    again.offer(3)
    last = Desk(tmp_path, slot, lockstep=True)
    last.resume(counts)
    last.acts(3)
    last.prune()
    assert last.filed == [2, 3]


def test_a_new_process_keeps_what_may_have_acted_under_the_one_before(desk: Desk, tmp_path: Path) -> None:
    for n in range(1, 4):
        desk.offer(n)
        desk.slot.take()
    desk.acts(1)
    after = Desk(tmp_path, desk.slot)
    after.acts(3)
    assert after.filed == [1, 2, 3]
    for n in range(4, 50):
        after.offer(n)
    assert after.filed == [1, 2, 3, 49]


def test_what_acted_in_an_earlier_life_of_the_run_stays_whoever_goes_on_from_it(desk: Desk, tmp_path: Path) -> None:
    for n in range(1, 5):
        desk.offer(n)
        desk.slot.take()
        desk.acts(n)
    desk.note_rollback(4, "no number")
    slot = PolicySlot(Segment.create(tmp_path / "another", SLOT_BYTES, SLOT_SCHEMA))
    resumed = Desk(tmp_path, slot)
    assert resumed.reinstate() == 3
    after = Desk(tmp_path, slot)  # the one before was killed before the loop had taken anything
    assert after.next_id == 5
    after.acts(3)
    for n in range(5, 9):
        after.offer(n)
        slot.take()
    after.acts(3, 8)
    assert after.filed == [1, 2, 3, 4, 8]


def test_a_full_disk_keeps_a_policy_from_its_file_but_not_from_the_loop(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert desk.offer(1).accepted
    assert (desk.slot.version, [*desk.folder.glob("*.onnx")], desk.unfiled) == (1, [], 1)
    assert desk.events == [("policy_not_filed", 1), ("policy_admitted", 1)]
    monkeypatch.undo()
    desk.acts(1)
    desk.prune()
    assert ((desk.folder / "1.onnx").read_bytes(), desk.unfiled) == (model(1), 0)
    assert desk.unsynced == [desk.folder / "1.onnx"]


@pytest.mark.parametrize("damage", ["altered", "not listed"])
def test_a_file_that_is_not_the_policy_that_was_filed_is_not_taken_for_it(
    damage: str, desk: Desk, tmp_path: Path
) -> None:
    for policy_id in (1, 2):
        desk.offer(policy_id)
    if damage == "altered":
        content = bytearray(model(2))
        content[-40] ^= 1
        (desk.folder / "2.onnx").write_bytes(content)
    else:
        (desk.folder / "9.onnx").write_bytes(model(1))
    after = Desk(tmp_path, desk.slot)
    assert after.reinstate() == (0 if damage == "altered" else 2)
    assert after.next_id == 3
    assert (("policy_not_reinstated", 2) in after.events) is (damage == "altered")


def test_a_process_that_was_killed_before_it_had_filed_a_policy_leaves_its_id_to_nobody(
    desk: Desk, tmp_path: Path
) -> None:
    desk.offer(1)
    (desk.folder / "1.onnx").unlink()
    after = Desk(tmp_path, desk.slot)
    assert (after.next_id, after.filed) == (2, [1])
    assert after.offer(1).policy_id == 1


def test_what_was_filed_by_a_process_that_was_killed_before_handing_it_over_reaches_the_loop(
    desk: Desk, tmp_path: Path
) -> None:
    desk.offer(1)
    slot = PolicySlot(Segment.create(tmp_path / "another", SLOT_BYTES, SLOT_SCHEMA))
    after = Desk(tmp_path, slot)
    after.submit_filed()
    passed = slot.peek()
    assert passed is not None
    assert (passed.policy_id, passed.model, after.active_id) == (1, model(1), 1)
    after.submit_filed()
    assert slot.version == 1, "once"
    after.offer(2)
    after.note_rollback(2, "no number")
    rolled_back_to = PolicySlot(Segment.create(tmp_path / "third", SLOT_BYTES, SLOT_SCHEMA))
    last = Desk(tmp_path, rolled_back_to)
    last.submit_filed()
    assert last.active_id == 1, "not what was rolled back"


def test_no_file_is_read_before_somebody_asks_for_it(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1, 40):
        desk.offer(n)
        desk.acts(n)
    read: list[Path] = []
    real = Path.read_bytes

    def reading(path: Path) -> bytes:
        read.append(path)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    after = Desk(tmp_path, desk.slot)
    assert [path for path in read if path.suffix == ".onnx"] == []
    assert after.offer(30).policy_id == 30
    assert after.offer(39).policy_id == 39
    assert len([path for path in read if path.suffix == ".onnx"]) <= 16


def test_foreign_names_in_the_folder_count_for_nothing(tmp_path: Path, slot: PolicySlot) -> None:
    (tmp_path / "policies").mkdir()
    for name in ("0.onnx", "²3.onnx", "99999999999999999999.onnx", "notes.onnx", "-4.onnx", "7.txt", "4294967296.onnx"):
        (tmp_path / "policies" / name).write_bytes(b"")
    assert Desk(tmp_path, slot).next_id == 1


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
    verdict = desk.admit(offer, far)
    assert (verdict.accepted, verdict.stage) == (False, "bounds")
    assert "velocity 3600" in verdict.reason


def test_a_desk_that_takes_over_knows_the_ids_that_were_used(desk: Desk, tmp_path: Path) -> None:
    for policy_id in (1, 2):
        desk.admit(model(policy_id), NOTHING)
    after = Desk(tmp_path, desk.slot)
    assert after.next_id == 3
    assert after.offer(2).policy_id == 2, "the very policy, offered again because the answer was lost"
    assert after.offer(2, hidden=5).policy_id == 3


def test_a_policy_from_a_file_that_is_refused_reaches_no_slot(desk: Desk) -> None:
    verdict = desk.adopt(model(41, scale=30.0))
    assert (verdict.accepted, verdict.stage) == (False, "bounds")
    assert desk.slot.version == 0


def test_the_policy_a_run_started_with_does_not_come_back_when_the_desk_is_taken_over(
    desk: Desk, tmp_path: Path
) -> None:
    desk.adopt(model(1))
    desk.admit(model(2), NOTHING)
    after = Desk(tmp_path, desk.slot)
    assert after.adopt(model(1)).accepted
    assert seen(desk.slot.take()) == (2, 2, model(2))


# -- once more, beside a loop that has seen it (lockstep) --------------------------------------------------------------


def test_what_happens_once_more_gets_the_same_ids_and_does_not_reach_the_loop_again(
    tmp_path: Path, slot: PolicySlot
) -> None:
    first = Desk(tmp_path, slot, lockstep=True)
    first.offer(1)
    counts = first.counts()
    first.offer(2)
    first.offer(3)
    version = slot.version
    again = Desk(tmp_path, slot, lockstep=True)
    again.resume(counts)
    again.repeat_after(1)
    assert [again.offer(n).policy_id for n in (2, 3)] == [2, 3]
    assert slot.version == version, "the loop is not sent back to policy 2"
    assert seen(slot.peek()) == (version, 3, model(3))
    assert (again.tally, again.events) == (first.tally, first.events[1:]), "each is judged and told of once more"
    assert again.filed == [1, 2, 3]
    assert again.offer(4).policy_id == 4
    assert seen(slot.peek()) == (version + 1, 4, model(4))


def test_one_that_was_filed_and_not_handed_over_reaches_the_loop_when_it_comes_again(
    tmp_path: Path, slot: PolicySlot
) -> None:
    first = Desk(tmp_path, slot, lockstep=True)
    first.offer(1)
    counts = first.counts()
    first.offer(2)
    (first.folder / "3.onnx").write_bytes(model(3))  # the process was killed here
    again = Desk(tmp_path, slot, lockstep=True)
    again.resume(counts)
    again.repeat_after(1)
    assert [again.offer(n).policy_id for n in (2, 3)] == [2, 3]
    assert seen(slot.peek()) == (3, 3, model(3))


def test_what_comes_otherwise_than_before_gets_an_id_that_nobody_had(tmp_path: Path, slot: PolicySlot) -> None:
    first = Desk(tmp_path, slot, lockstep=True)
    first.offer(1)
    first.offer(2)
    again = Desk(tmp_path, slot, lockstep=True)
    again.repeat_after(0)
    assert [again.offer(n, hidden=5).policy_id for n in (1, 2)] == [3, 4]
    assert seen(slot.peek()) == (4, 4, model(2, hidden=5))


def test_the_policy_a_run_starts_with_does_not_come_back_when_all_happens_once_more(
    tmp_path: Path, slot: PolicySlot
) -> None:
    first = Desk(tmp_path, slot, lockstep=True)
    first.adopt(model(1))
    first.offer(2)
    again = Desk(tmp_path, slot, lockstep=True)
    again.repeat_after(0)
    assert again.adopt(model(1)) == Verdict(1, accepted=True)
    assert again.tally == (1, 1, 0)
    assert seen(slot.peek()) == (2, 2, model(2))


# -- rolled back -------------------------------------------------------------------------------------------------------


def test_a_policy_that_was_rolled_back_is_refused_by_every_desk_of_its_run_folder(desk: Desk, tmp_path: Path) -> None:
    for policy_id in (1, 2):
        desk.admit(model(policy_id), NOTHING)
    desk.note_rollback(2, "too slow")
    version = desk.slot.version
    for d in (desk, Desk(tmp_path, desk.slot)):
        verdict = d.admit(model(2), NOTHING)
        assert (verdict.accepted, verdict.stage, verdict.reason) == (False, "probation", "it was rolled back: too slow")
        assert (d.rolled_back, d.was_rolled_back(2), d.was_rolled_back(1)) == (1, True, False)
        assert not d.adopt(model(2)).accepted
    assert desk.slot.version == version
    assert desk.admit(model(3), NOTHING).accepted


def test_one_that_another_replay_process_admitted_may_be_taken_back_too(desk: Desk, tmp_path: Path) -> None:
    desk.admit(model(1), NOTHING)
    after = Desk(tmp_path, desk.slot)
    after.note_rollback(1, "no number")
    assert not after.admit(model(1), NOTHING).accepted


def test_what_was_never_admitted_cannot_be_taken_back(desk: Desk) -> None:
    desk.note_rollback(5, "no number")
    assert desk.rolled_back == 0


def test_a_full_disk_does_not_let_it_come_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    desk.admit(model(1), NOTHING)
    monkeypatch.setattr(Path, "open", full)
    desk.note_rollback(1, "no number")
    monkeypatch.undo()
    assert desk.events[-1] == ("rolled_back_not_filed", 1)
    assert not desk.admit(model(1), NOTHING).accepted


def test_a_list_of_them_that_cannot_be_read_is_told_of(desk: Desk, tmp_path: Path) -> None:
    (desk.folder / "rolled_back.json").write_bytes(b"[{")
    told: list[str] = []
    PolicyAdmission(examination(PENDULUM), desk.slot, PolicyFolder(desk.folder), lambda kind, **what: told.append(kind))
    assert told == ["rolled_back_unreadable"]


def test_the_training_step_of_a_policy_is_known_as_long_as_it_is_among_the_latest(desk: Desk) -> None:
    desk.admit(model(1), NOTHING)
    assert (desk.training_step(1), desk.training_step(2)) == (0, None)
    for policy_id in range(2, 67):
        desk.admit(model(policy_id), NOTHING)
    assert (desk.training_step(1), desk.training_step(66)) == (None, 0)
