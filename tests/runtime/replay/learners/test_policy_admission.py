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

NO_STATES = np.zeros((0, 2), np.float32)
UNTRUSTED_IDS = (2147483646, -1, (1 << 63) - 1, -(1 << 63), 0)
"""Ids that a policy may claim."""


def model(policy_id: int, *, hidden: int = 4, scale: float = 3.0, rate_hz: float = PENDULUM.rate_hz) -> bytes:
    contract = contract_for(PENDULUM.rig, rate_hz, policy_id=policy_id, parent_run="run", training_step=0)
    return models.serialized(models.policy(scale, contract, hidden))


class RecordingAdmission(PolicyAdmission):
    """A desk with a slot and a folder for the test, and its reports."""

    def __init__(
        self, folder: Path, slot: PolicySlot, rate: AdmissionRate | None = None, *, lockstep: bool = False
    ) -> None:
        self.events: list[tuple[str, object]] = []
        self.slot, self.folder = slot, folder / "policies"
        limits = msgspec.structs.replace(admission_limits(PENDULUM), latency_is_advisory=True)
        required = required_contract(PENDULUM.rig, PENDULUM.rate_hz, stochastic=False)
        policy_folder = RepeatedPolicyFolder(self.folder) if lockstep else PolicyFolder(self.folder)
        super().__init__(Examination(required, limits, seed=0), slot, policy_folder, self._note, rate)

    def _note(self, kind: str, **fields: object) -> None:
        if kind != "policy_warning":  # latency depends on the load of this machine
            self.events.append((kind, fields["policy"]))

    def offer(self, policy_id: int, **options: float) -> Verdict:
        """Offer a policy that claims this id."""
        return self.admit(model(policy_id, **options), NO_STATES)  # type: ignore[arg-type]

    def record_actions(self, *policy_ids: int, dropped: int = 0) -> None:
        """Report records of the acting policies, in order."""
        records = np.zeros(len(policy_ids), [("policy_id", "<u4")])
        records["policy_id"] = policy_ids
        self.record_acting(records, dropped)

    @property
    def filed_ids(self) -> list[int]:
        return sorted(int(p.stem) for p in self.folder.glob("*.onnx"))

    @property
    def tally(self) -> tuple[int, int, int]:
        return self.n_offered, self.n_admitted, self.n_refused


@pytest.fixture
def slot(tmp_path: Path) -> PolicySlot:
    return PolicySlot(Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA))


@pytest.fixture
def admission(tmp_path: Path, slot: PolicySlot) -> RecordingAdmission:
    return RecordingAdmission(tmp_path, slot)


def summarise(policy: SlotPolicy | None) -> tuple[int, int, bytes] | None:
    return None if policy is None else (policy.version, policy.policy_id, policy.model)


def test_an_admitted_policy_is_in_the_slot_and_in_the_run_folder(admission: RecordingAdmission) -> None:
    verdict = admission.admit(model(1), NO_STATES)
    assert (verdict.accepted, verdict.policy_id) == (True, 1)
    assert summarise(admission.slot.take()) == (1, 1, model(1))
    assert [(p.name, p.read_bytes()) for p in admission.folder.glob("*.onnx")] == [("1.onnx", model(1))]
    assert read_index(admission.folder / "index.csv") == {1: extent_of(model(1))}
    assert (admission.tally, admission.active_id) == ((1, 1, 0), 1)
    assert admission.events == [("policy_admitted", 1)]


@pytest.mark.parametrize(
    ("policy", "stage"),
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
def test_a_refused_policy_reaches_neither_slot_nor_folder_and_the_reason_is_reported(
    admission: RecordingAdmission, policy: bytes, stage: str
) -> None:
    verdict = admission.admit(policy, NO_STATES)
    assert (verdict.accepted, verdict.stage) == (False, stage)
    assert verdict.reason
    assert admission.slot.take() is None
    assert list(admission.folder.iterdir()) == []
    assert (admission.tally, admission.active_id) == ((1, 0, 1), 0)
    assert (verdict.policy_id, admission.events, admission.next_id) == (0, [("policy_refused", 0)], 1)


@pytest.mark.parametrize("policy", [model(1), model(1, scale=30.0)], ids=["admitted", "refused"])
def test_a_repeated_offer_gets_the_same_answer_and_changes_nothing(
    admission: RecordingAdmission, policy: bytes
) -> None:
    first_verdict = admission.admit(policy, NO_STATES)
    before = (admission.tally, admission.slot.version, list(admission.events))
    assert admission.admit(policy, NO_STATES) == first_verdict
    assert (admission.tally, admission.slot.version, admission.events) == before


def test_only_admitted_policies_increment_the_id(admission: RecordingAdmission) -> None:
    ids = [admission.offer(n, scale=30.0 if n % 2 else 3.0).policy_id for n in (8, 9, 10, 11, 12)]
    assert ids == [1, 0, 2, 0, 3]
    assert admission.next_id == 4


@pytest.mark.parametrize("claimed_id", UNTRUSTED_IDS)
def test_the_rig_assigns_the_id_whatever_a_policy_calls_itself(admission: RecordingAdmission, claimed_id: int) -> None:
    assert admission.offer(claimed_id, scale=30.0).policy_id == 0
    assert admission.next_id == 1
    verdict = admission.offer(claimed_id)
    assert (verdict.accepted, verdict.policy_id) == (True, 1)
    assert summarise(admission.slot.take()) == (1, 1, model(claimed_id))
    assert admission.offer(1).policy_id == 2, "no learner is locked out"


@pytest.mark.parametrize("claimed_id", UNTRUSTED_IDS)
def test_the_rig_also_assigns_an_id_to_a_policy_file(admission: RecordingAdmission, claimed_id: int) -> None:
    assert admission.adopt(model(claimed_id)).policy_id == 1
    assert summarise(admission.slot.take()) == (1, 1, model(claimed_id))
    assert (admission.next_id, admission.filed_ids) == (2, [1])


def test_an_id_beyond_64_bits_is_malformed(admission: RecordingAdmission) -> None:
    assert (admission.offer(1 << 63).stage, admission.offer(1 << 200).stage) == ("contract", "contract")


def test_when_ids_are_exhausted_nothing_more_is_admitted(admission: RecordingAdmission) -> None:
    admission.reserve_ids(MAX_POLICY_ID - 1)
    assert admission.offer(1).policy_id == MAX_POLICY_ID
    verdict = admission.offer(2)
    assert (verdict.accepted, verdict.stage, admission.slot.version) == (False, "ids", 1)


def test_junk_does_not_accumulate(admission: RecordingAdmission) -> None:
    for n in range(200):
        assert not admission.admit(n.to_bytes(8, "little"), NO_STATES).accepted
    assert (admission.next_id, admission.counts()["next_policy"], admission.unsynced, admission.filed_ids) == (
        1,
        1,
        [],
        [],
    )
    assert len(admission._refusals) == 64


def test_a_repeated_offer_is_known_by_its_bytes_however_many_refused_ones_came_between(
    admission: RecordingAdmission,
) -> None:
    first_verdict = admission.offer(1)
    for n in range(100):
        admission.admit(b"junk %d" % n, NO_STATES)
    assert admission.offer(1) == first_verdict
    assert admission.slot.version == 1


# -- how often ---------------------------------------------------------------------------------------------------------


def test_an_offer_that_comes_too_soon_is_neither_judged_nor_remembered(tmp_path: Path, slot: PolicySlot) -> None:
    rate_hz = PENDULUM.rate_hz
    admission = RecordingAdmission(tmp_path, slot, PerSecond(1.0, rate_hz, lambda: 0.0))
    admission.record_actions(0)
    assert admission.offer(1).accepted
    for _ in range(50):
        verdict = admission.offer(2)
        assert (verdict.accepted, verdict.policy_id, verdict.stage) == (False, 0, RATE)
    assert (admission.tally, admission.n_too_soon, admission.events) == ((1, 1, 0), 50, [("policy_admitted", 1)])
    assert admission.offer(1).accepted, "a repeated offer is answered at any time"
    admission.record_actions(*[1] * round(rate_hz))
    assert admission.offer(2).policy_id == 2
    assert admission.counts()["too_soon_policies"] == 50


def test_junk_uses_up_the_allowance_too(tmp_path: Path, slot: PolicySlot) -> None:
    admission = RecordingAdmission(tmp_path, slot, PerSecond(1.0, PENDULUM.rate_hz, lambda: 0.0))
    stages = [admission.admit(b"junk %d" % n, NO_STATES).stage for n in range(5)]
    assert stages == ["format", *[RATE] * 4]


def test_in_lockstep_one_policy_is_judged_at_each_barrier(tmp_path: Path, slot: PolicySlot) -> None:
    admission = RecordingAdmission(tmp_path, slot, PerBarrier(), lockstep=True)
    verdicts = [
        admission.admit(model(n), NO_STATES, closed_episode=episode) for n, episode in enumerate((0, 0, 1, 1, 1, 3))
    ]
    assert [v.policy_id for v in verdicts] == [1, 0, 2, 0, 0, 3]
    assert admission.admit(model(0), NO_STATES, closed_episode=3) == verdicts[0]


# -- which files are kept ----------------------------------------------------------------------------------------------


def test_a_policy_that_never_acted_is_deleted_once_a_later_one_acts(admission: RecordingAdmission) -> None:
    for n in range(1, 6):
        admission.slot.take()  # the loop takes each of them
        admission.offer(n)
    assert admission.filed_ids == [1, 2, 3, 4, 5], "any of them may still act"
    admission.record_actions(1, 1, 0, 4, 4)
    assert admission.filed_ids == [1, 4, 5]
    admission.offer(6)
    admission.record_actions(4, 1, 6)
    assert admission.filed_ids == [1, 4, 6], "5 has been superseded; 1 acted, and acts again"


def test_a_policy_that_the_loop_never_takes_is_deleted_at_once(admission: RecordingAdmission) -> None:
    admission.offer(1)
    admission.slot.take()
    for n in range(2, 200):
        admission.offer(n)
    assert admission.filed_ids == [1, 199]
    admission.slot.take()
    admission.offer(200)
    assert admission.filed_ids == [1, 199, 200], "199 may be under preparation"


def test_a_policy_that_may_have_acted_in_lost_records_is_kept(admission: RecordingAdmission) -> None:
    for n in range(1, 5):
        admission.slot.take()
        admission.offer(n)
    admission.record_actions(1, 4, dropped=7)
    assert admission.filed_ids == [1, 2, 3, 4]
    for n in range(5, 8):
        admission.slot.take()
        admission.offer(n)
    admission.record_actions(4, 7, dropped=7)
    assert admission.filed_ids == [1, 2, 3, 4, 7]


def test_in_lockstep_files_are_deleted_only_at_barriers_and_by_the_records(tmp_path: Path, slot: PolicySlot) -> None:
    admission = RecordingAdmission(tmp_path, slot, lockstep=True)
    for n in range(1, 5):
        admission.offer(n)
    assert admission.filed_ids == [1, 2, 3, 4]
    admission.record_actions(3)
    assert admission.filed_ids == [1, 2, 3, 4]
    admission.prune()
    assert admission.filed_ids == [3, 4]


def test_a_lockstep_run_ends_with_the_same_files_however_often_it_is_rewound(tmp_path: Path, slot: PolicySlot) -> None:
    original = RecordingAdmission(tmp_path, slot, lockstep=True)
    original.offer(1)
    original.offer(2)
    counts = original.counts()
    original.record_actions(2)
    repeated = RecordingAdmission(tmp_path, slot, lockstep=True)
    repeated.resume(counts)
    repeated.record_actions(2)
    repeated.prune()
    assert repeated.filed_ids == [2]
    counts = repeated.counts()
    repeated.offer(3)
    third = RecordingAdmission(tmp_path, slot, lockstep=True)
    third.resume(counts)
    third.record_actions(3)
    third.prune()
    assert third.filed_ids == [2, 3]


def test_a_new_process_keeps_what_may_have_acted_under_the_previous_one(
    admission: RecordingAdmission, tmp_path: Path
) -> None:
    for n in range(1, 4):
        admission.offer(n)
        admission.slot.take()
    admission.record_actions(1)
    successor = RecordingAdmission(tmp_path, admission.slot)
    successor.record_actions(3)
    assert successor.filed_ids == [1, 2, 3]
    for n in range(4, 50):
        successor.offer(n)
    assert successor.filed_ids == [1, 2, 3, 49]


def test_policies_that_acted_in_an_earlier_lifetime_of_the_run_are_kept(
    admission: RecordingAdmission, tmp_path: Path
) -> None:
    for n in range(1, 5):
        admission.offer(n)
        admission.slot.take()
        admission.record_actions(n)
    admission.note_rollback(4, "no number")
    slot = PolicySlot(Segment.create(tmp_path / "another", SLOT_BYTES, SLOT_SCHEMA))
    resumed_admission = RecordingAdmission(tmp_path, slot)
    assert resumed_admission.reinstate() == 3
    successor = RecordingAdmission(tmp_path, slot)  # the previous one was killed before the loop had taken anything
    assert successor.next_id == 5
    successor.record_actions(3)
    for n in range(5, 9):
        successor.offer(n)
        slot.take()
    successor.record_actions(3, 8)
    assert successor.filed_ids == [1, 2, 3, 4, 8]


def test_a_full_disk_prevents_the_file_of_a_policy_but_not_its_use_by_the_loop(
    admission: RecordingAdmission, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_replace(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail_replace)
    assert admission.offer(1).accepted
    assert (admission.slot.version, [*admission.folder.glob("*.onnx")], admission.unfiled) == (1, [], 1)
    assert admission.events == [("policy_not_filed", 1), ("policy_admitted", 1)]
    monkeypatch.undo()
    admission.record_actions(1)
    admission.prune()
    assert ((admission.folder / "1.onnx").read_bytes(), admission.unfiled) == (model(1), 0)
    assert admission.unsynced == [admission.folder / "1.onnx"]


@pytest.mark.parametrize("damaged_bytes", ["altered", "not listed"])
def test_a_file_that_is_not_the_filed_policy_is_not_used_for_it(
    damaged_bytes: str, admission: RecordingAdmission, tmp_path: Path
) -> None:
    for policy_id in (1, 2):
        admission.offer(policy_id)
    if damaged_bytes == "altered":
        content = bytearray(model(2))
        content[-40] ^= 1
        (admission.folder / "2.onnx").write_bytes(content)
    else:
        (admission.folder / "9.onnx").write_bytes(model(1))
    successor = RecordingAdmission(tmp_path, admission.slot)
    assert successor.reinstate() == (0 if damaged_bytes == "altered" else 2)
    assert successor.next_id == 3
    assert (("policy_not_reinstated", 2) in successor.events) is (damaged_bytes == "altered")


def test_the_id_of_a_policy_that_a_killed_process_did_not_file_is_not_reused(
    admission: RecordingAdmission, tmp_path: Path
) -> None:
    admission.offer(1)
    (admission.folder / "1.onnx").unlink()
    successor = RecordingAdmission(tmp_path, admission.slot)
    assert (successor.next_id, successor.filed_ids) == (2, [1])
    assert successor.offer(1).policy_id == 1


def test_a_policy_filed_but_not_handed_over_by_a_killed_process_reaches_the_loop(
    admission: RecordingAdmission, tmp_path: Path
) -> None:
    admission.offer(1)
    slot = PolicySlot(Segment.create(tmp_path / "another", SLOT_BYTES, SLOT_SCHEMA))
    successor = RecordingAdmission(tmp_path, slot)
    successor.submit_filed()
    passed_policy = slot.peek()
    assert passed_policy is not None
    assert (passed_policy.policy_id, passed_policy.model, successor.active_id) == (1, model(1), 1)
    successor.submit_filed()
    assert slot.version == 1, "once"
    successor.offer(2)
    successor.note_rollback(2, "no number")
    restored_slot = PolicySlot(Segment.create(tmp_path / "third", SLOT_BYTES, SLOT_SCHEMA))
    third = RecordingAdmission(tmp_path, restored_slot)
    third.submit_filed()
    assert third.active_id == 1, "the rolled-back policy does not return"


def test_no_file_is_read_before_it_is_requested(
    admission: RecordingAdmission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1, 40):
        admission.offer(n)
        admission.record_actions(n)
    paths_read: list[Path] = []
    read_bytes = Path.read_bytes

    def record_and_read(path: Path) -> bytes:
        paths_read.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", record_and_read)
    successor = RecordingAdmission(tmp_path, admission.slot)
    assert [path for path in paths_read if path.suffix == ".onnx"] == []
    assert successor.offer(30).policy_id == 30
    assert successor.offer(39).policy_id == 39
    assert len([path for path in paths_read if path.suffix == ".onnx"]) <= 16


def test_foreign_names_in_the_folder_are_ignored(tmp_path: Path, slot: PolicySlot) -> None:
    (tmp_path / "policies").mkdir()
    for name in ("0.onnx", "²3.onnx", "99999999999999999999.onnx", "notes.onnx", "-4.onnx", "7.txt", "4294967296.onnx"):
        (tmp_path / "policies" / name).write_bytes(b"")
    assert RecordingAdmission(tmp_path, slot).next_id == 1


def test_a_policy_is_also_tested_on_states_that_the_rig_has_seen(admission: RecordingAdmission) -> None:
    """A network that is valid at all probes may still fail at a state of the rig, here 3600 rad/s."""
    contract = contract_for(PENDULUM.rig, PENDULUM.rate_hz, policy_id=1, parent_run="run", training_step=0)
    nodes = [
        models.node("Sub", ["observation", "edge"], ["beyond"]),
        models.node("Relu", ["beyond"], ["excess"]),
        models.node("MatMul", ["excess", "gain"], ["action"]),
    ]
    constants = {"edge": np.array([[0, 3000]], np.float32), "gain": np.array([[0], [1]], np.float32)}
    policy = models.serialized(models.proto(nodes, constants, contract=contract))
    far_state = np.array([[0.0, 120.0]], np.float32)  # normalised: 3600 rad/s
    verdict = admission.admit(policy, far_state)
    assert (verdict.accepted, verdict.stage) == (False, "bounds")
    assert "velocity 3600" in verdict.reason


def test_a_desk_that_takes_over_knows_the_used_ids(admission: RecordingAdmission, tmp_path: Path) -> None:
    for policy_id in (1, 2):
        admission.admit(model(policy_id), NO_STATES)
    successor = RecordingAdmission(tmp_path, admission.slot)
    assert successor.next_id == 3
    assert successor.offer(2).policy_id == 2, "the same policy, offered again because the answer was lost"
    assert successor.offer(2, hidden=5).policy_id == 3


def test_a_refused_policy_from_a_file_reaches_no_slot(admission: RecordingAdmission) -> None:
    verdict = admission.adopt(model(41, scale=30.0))
    assert (verdict.accepted, verdict.stage) == (False, "bounds")
    assert admission.slot.version == 0


def test_the_initial_policy_of_a_run_does_not_return_when_the_desk_is_taken_over(
    admission: RecordingAdmission, tmp_path: Path
) -> None:
    admission.adopt(model(1))
    admission.admit(model(2), NO_STATES)
    successor = RecordingAdmission(tmp_path, admission.slot)
    assert successor.adopt(model(1)).accepted
    assert summarise(admission.slot.take()) == (2, 2, model(2))


# -- repeated next to a loop that has seen it (lockstep) ---------------------------------------------------------------


def test_repeated_offers_get_the_same_ids_and_do_not_reach_the_loop_again(tmp_path: Path, slot: PolicySlot) -> None:
    original = RecordingAdmission(tmp_path, slot, lockstep=True)
    original.offer(1)
    counts = original.counts()
    original.offer(2)
    original.offer(3)
    version = slot.version
    repeated = RecordingAdmission(tmp_path, slot, lockstep=True)
    repeated.resume(counts)
    repeated.repeat_after(1)
    assert [repeated.offer(n).policy_id for n in (2, 3)] == [2, 3]
    assert slot.version == version, "the loop is not sent back to policy 2"
    assert summarise(slot.peek()) == (version, 3, model(3))
    assert (repeated.tally, repeated.events) == (original.tally, original.events[1:]), (
        "each is judged and reported again"
    )
    assert repeated.filed_ids == [1, 2, 3]
    assert repeated.offer(4).policy_id == 4
    assert summarise(slot.peek()) == (version + 1, 4, model(4))


def test_a_policy_filed_and_not_handed_over_reaches_the_loop_when_it_is_offered_again(
    tmp_path: Path, slot: PolicySlot
) -> None:
    original = RecordingAdmission(tmp_path, slot, lockstep=True)
    original.offer(1)
    counts = original.counts()
    original.offer(2)
    (original.folder / "3.onnx").write_bytes(model(3))  # the process was killed here
    repeated = RecordingAdmission(tmp_path, slot, lockstep=True)
    repeated.resume(counts)
    repeated.repeat_after(1)
    assert [repeated.offer(n).policy_id for n in (2, 3)] == [2, 3]
    assert summarise(slot.peek()) == (3, 3, model(3))


def test_an_offer_that_differs_from_before_gets_an_unused_id(tmp_path: Path, slot: PolicySlot) -> None:
    original = RecordingAdmission(tmp_path, slot, lockstep=True)
    original.offer(1)
    original.offer(2)
    repeated = RecordingAdmission(tmp_path, slot, lockstep=True)
    repeated.repeat_after(0)
    assert [repeated.offer(n, hidden=5).policy_id for n in (1, 2)] == [3, 4]
    assert summarise(slot.peek()) == (4, 4, model(2, hidden=5))


def test_the_initial_policy_of_a_run_does_not_return_when_everything_is_repeated(
    tmp_path: Path, slot: PolicySlot
) -> None:
    original = RecordingAdmission(tmp_path, slot, lockstep=True)
    original.adopt(model(1))
    original.offer(2)
    repeated = RecordingAdmission(tmp_path, slot, lockstep=True)
    repeated.repeat_after(0)
    assert repeated.adopt(model(1)) == Verdict(1, accepted=True)
    assert repeated.tally == (1, 1, 0)
    assert summarise(slot.peek()) == (2, 2, model(2))


# -- rolled back -------------------------------------------------------------------------------------------------------


def test_a_rolled_back_policy_is_refused_by_every_desk_of_its_run_folder(
    admission: RecordingAdmission, tmp_path: Path
) -> None:
    for policy_id in (1, 2):
        admission.admit(model(policy_id), NO_STATES)
    admission.note_rollback(2, "too slow")
    version = admission.slot.version
    for d in (admission, RecordingAdmission(tmp_path, admission.slot)):
        verdict = d.admit(model(2), NO_STATES)
        assert (verdict.accepted, verdict.stage, verdict.reason) == (False, "probation", "it was rolled back: too slow")
        assert (d.rolled_back, d.was_rolled_back(2), d.was_rolled_back(1)) == (1, True, False)
        assert not d.adopt(model(2)).accepted
    assert admission.slot.version == version
    assert admission.admit(model(3), NO_STATES).accepted


def test_a_policy_admitted_by_another_replay_process_can_also_be_withdrawn(
    admission: RecordingAdmission, tmp_path: Path
) -> None:
    admission.admit(model(1), NO_STATES)
    successor = RecordingAdmission(tmp_path, admission.slot)
    successor.note_rollback(1, "no number")
    assert not successor.admit(model(1), NO_STATES).accepted


def test_a_policy_that_was_never_admitted_cannot_be_withdrawn(admission: RecordingAdmission) -> None:
    admission.note_rollback(5, "no number")
    assert admission.rolled_back == 0


def test_a_full_disk_does_not_let_a_withdrawn_policy_return(
    admission: RecordingAdmission, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_replace(*arguments: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    admission.admit(model(1), NO_STATES)
    monkeypatch.setattr(Path, "open", fail_replace)
    admission.note_rollback(1, "no number")
    monkeypatch.undo()
    assert admission.events[-1] == ("rolled_back_not_filed", 1)
    assert not admission.admit(model(1), NO_STATES).accepted


def test_an_unreadable_list_of_withdrawn_policies_is_reported(admission: RecordingAdmission, tmp_path: Path) -> None:
    (admission.folder / "rolled_back.json").write_bytes(b"[{")
    event_kinds: list[str] = []
    PolicyAdmission(
        examination(PENDULUM),
        admission.slot,
        PolicyFolder(admission.folder),
        lambda kind, **fields: event_kinds.append(kind),
    )
    assert event_kinds == ["rolled_back_unreadable"]


def test_the_training_step_of_a_policy_is_known_while_it_is_among_the_latest(
    admission: RecordingAdmission,
) -> None:
    admission.admit(model(1), NO_STATES)
    assert (admission.training_step(1), admission.training_step(2)) == (0, None)
    for policy_id in range(2, 67):
        admission.admit(model(policy_id), NO_STATES)
    assert (admission.training_step(1), admission.training_step(66)) == (None, 0)
