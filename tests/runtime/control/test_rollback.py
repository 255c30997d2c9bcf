"""A policy that behaves on the probe states but not on the rig: admitted, acting, rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from onrig.runtime.link.messages import Attach, Pull, Rows, Verdict
from onrig.runtime.link.server import Ticket
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.policy.probation import Reason, probation_limits
from onrig.runtime.record import Flag, Rule
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.learners.admission_terms import examination
from onrig.runtime.replay.learners.learner_requests import LearnerRequests, RunIdentity
from onrig.runtime.replay.learners.policy_admission import PolicyAdmission
from onrig.runtime.replay.learners.policy_folder import PolicyFolder
from onrig.runtime.replay.learners.policy_watch import PolicyWatch
from onrig.runtime.replay.learners.succession import FromCheckpoint
from onrig.runtime.shm.board import Word
from tests.runtime.control.test_loop import STEPS, Bench
from tests.runtime.policy import models

EPISODE_RECORDS: Final = STEPS + 1
FAILING_STEP: Final = 25
"""The step of an episode at whose state the bad policy fails."""
GOOD, BAD = 1, 2
TICKET: Final = Ticket(b"peer", b"00000001")
Records = npt.NDArray[np.void]


class Rig:
    """A lockstep loop, and the replay process's handling of it, without processes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> None:
        self.bench = bench = Bench(folder, monkeypatch, *settings)
        self.config = bench.config
        self.events: list[dict[str, object]] = []
        self.sent: list[tuple[int, ...]] = []
        self.policies = PolicyAdmission(
            examination(self.config), bench.slot, PolicyFolder(folder / "policies"), self._note
        )
        self.desk = LearnerRequests(
            Memory(self.config),
            self.policies,
            RunIdentity("", "run", b""),
            FromCheckpoint(),
            self._note,
        )
        self.desk.handle(TICKET, Attach(role="push"), ())
        self.watch = PolicyWatch(probation_limits(self.config), self.config.rate_hz, self._note, self.desk.add_ruling)
        send = bench.session.send_command

        def record_and_send(frame: int, command: tuple[int, ...]) -> None:
            self.sent.append(command)
            send(frame, command)

        monkeypatch.setattr(bench.session, "send_command", record_and_send)

    def _note(self, kind: str, **fields: object) -> None:
        self.events.append({"kind": kind, **fields})

    def events_of_kind(self, kind: str) -> list[dict[str, object]]:
        return [event for event in self.events if event["kind"] == kind]

    def offer(self, policy_id: int, model: bytes) -> Verdict:
        return self.policies.admit(model, np.zeros((0, 2), np.float32), learner="test")

    def run(self) -> Records:
        """Run to the end; returns what the watch derives from the records, in batches of odd sizes."""
        self.bench.loop.run()
        raw = bytes(self.bench.ring._records[: len(self.bench.ring) * self.bench.layout.size])
        records = np.frombuffer(raw, self.bench.layout.dtype)
        for start in range(0, len(records), 7):
            self.watch.add(records[start : start + 7])
        self.watch.close(None)
        return records

    def model(self, policy_id: int, nan_state: Sequence[float] | None = None, hidden: int = 50) -> bytes:
        """The policy of the bench under another id, with NaN near a state if one is given."""
        rig, rate_hz = self.config.rig, self.config.rate_hz
        contract = contract_for(rig, rate_hz, policy_id=policy_id, parent_run="", training_step=0)
        if nan_state is None:
            return models.serialized(models.policy(contract=contract, hidden=hidden))
        return models.serialized(models.nan_near(nan_state, (0.01, 0.1), contract, hidden))


@pytest.fixture
def visited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The state of the first episode's step AT."""
    (tmp_path / "before").mkdir()
    state: list[float] = Rig(tmp_path / "before", monkeypatch).run()[FAILING_STEP]["observation"].tolist()
    return state


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def offer_bad_policy_after_first_episode(rig: Rig, nan_state: Sequence[float]) -> None:
    def offer(n: int) -> None:
        if n == EPISODE_RECORDS:
            rig.offer(BAD, rig.model(BAD, nan_state))

    rig.bench.ring.at_push = offer


def test_a_policy_with_a_hidden_nan_is_admitted_acts_and_is_rolled_back_in_the_next_tick(
    rig: Rig, visited: list[float]
) -> None:
    offer_bad_policy_after_first_episode(rig, visited)
    records = rig.run()
    assert [event["policy"] for event in rig.events_of_kind("policy_admitted")] == [BAD], (
        "no probe state of admission is near the fault"
    )
    action_records = records[(records["flags"] & Flag.NO_ACTION) == 0]
    by_episode = [action_records[action_records["episode"] == episode] for episode in (1, 2, 3)]
    assert [set(e["policy_id"].tolist()) for e in by_episode] == [{GOOD}, {GOOD, BAD}, {GOOD}]
    second_episode = by_episode[1]
    (failed_index,) = np.flatnonzero(second_episode["rule"] == Rule.FINITE)
    assert 0 < failed_index <= FAILING_STEP
    assert np.isnan(second_episode["policy"][failed_index]).all()
    assert second_episode["policy_id"].tolist() == [BAD] * (failed_index + 1) + [GOOD] * (STEPS - failed_index - 1)
    assert np.isfinite(second_episode["policy"][failed_index + 1 :]).all()
    marked_indices = np.flatnonzero(action_records["flags"] & Flag.ROLLED_BACK)
    assert marked_indices.tolist() == [STEPS + failed_index + 1]


def test_nan_never_reaches_the_wire(rig: Rig, visited: list[float]) -> None:
    offer_bad_policy_after_first_episode(rig, visited)
    records = rig.run()
    low, high = (rig.config.rig.actuators[0].low, rig.config.rig.actuators[0].high)
    resolution = rig.config.rig.actuators[0].resolution
    assert len(rig.sent) == len(records)
    assert all(round(low / resolution) <= command[0] <= round(high / resolution) for command in rig.sent)
    for name in ("commanded", "applied", "reward"):
        assert np.isfinite(records[name]).all()


def test_event_verdict_summary_and_learner_report_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visited: list[float]
) -> None:
    rig = Rig(tmp_path, monkeypatch, "probation.duration_s=0.6")
    offer_bad_policy_after_first_episode(rig, visited)
    records = rig.run()
    (rollback_event,) = rig.events_of_kind("policy_rolled_back")
    assert (
        rollback_event["policy"],
        rollback_event["back_to"],
        rollback_event["reason"],
        rollback_event["episode"],
    ) == (BAD, GOOD, Reason.FINITE, 2)
    failed_record = records[records["rule"] == Rule.FINITE][0]
    assert rollback_event["tick"] == failed_record["tick"]
    assert [event["policy"] for event in rig.events_of_kind("policy_probation_passed")] == [GOOD]
    assert rig.policies.rolled_back == 1
    assert rig.bench.board[Word.ROLLED_BACK] == BAD + 1
    answer = rig.desk.handle(TICKET, Pull(0, 0), ())
    assert answer is not None
    assert isinstance(answer.message, Rows)
    rulings = [(r.number, r.policy_id, r.verdict) for r in answer.message.rulings]
    assert rulings == [(1, GOOD, "passed"), (2, BAD, "rolled_back")]
    assert "non-finite" in answer.message.rulings[1].reason


def test_it_is_not_installed_again_however_often_it_is_offered(rig: Rig, visited: list[float], tmp_path: Path) -> None:
    bad_model = rig.model(BAD, visited)
    offer_bad_policy_after_first_episode(rig, visited)
    rig.run()
    version = rig.bench.slot.version
    repeated_verdict = rig.offer(BAD, bad_model)
    assert (repeated_verdict.accepted, repeated_verdict.stage) == (False, "probation")
    folder = PolicyFolder(tmp_path / "policies")
    successor = PolicyAdmission(examination(rig.config), rig.bench.slot, folder, lambda kind, **fields: None)
    assert successor.rolled_back == 1
    for verdict in (successor.admit(bad_model, np.zeros((0, 2), np.float32)), successor.adopt(bad_model)):
        assert (verdict.accepted, verdict.stage) == (False, "probation")
        assert "rolled back" in verdict.reason
    assert rig.bench.slot.version == version
    assert successor.admit(rig.model(3), np.zeros((0, 2), np.float32)).accepted


def test_equal_runs_are_rolled_back_identically_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visited: list[float]
) -> None:
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        rig = Rig(tmp_path / name, monkeypatch, "exploration={process: ou, amplitude: [[1, 0.01]]}")
        offer_bad_policy_after_first_episode(rig, visited)
        runs.append(rig.run())
    for name in ("tick", "flags", "policy_id", "rule", "observation", "command", "reward"):
        assert runs[0][name].tobytes() == runs[1][name].tobytes()
    assert np.count_nonzero(runs[0]["flags"] & Flag.ROLLED_BACK) == 1


def test_the_first_policy_continues_under_the_shield_and_this_is_reported(rig: Rig, visited: list[float]) -> None:
    rig.bench.slot.put(GOOD, rig.model(GOOD, visited))
    records = rig.run()
    assert set(records[(records["flags"] & Flag.NO_ACTION) == 0]["policy_id"].tolist()) == {GOOD}
    (rollback_event,) = rig.events_of_kind("policy_probation_failed")
    assert (rollback_event["policy"], rollback_event["reason"]) == (GOOD, Reason.FINITE)
    assert "no predecessor remains: only the shield and its fallback guard the rig" in str(rollback_event["detail"])
    assert rig.events_of_kind("policy_rolled_back") == []
    assert np.isfinite(records["commanded"]).all()


def test_a_rollback_in_the_last_tick_of_an_episode_is_in_its_closing_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "before").mkdir()
    last_state = Rig(tmp_path / "before", monkeypatch).run()[STEPS - 1]["observation"].tolist()
    rig = Rig(tmp_path, monkeypatch)
    offer_bad_policy_after_first_episode(rig, last_state)
    records = rig.run()
    closing_record = records[2 * EPISODE_RECORDS - 1]
    assert (int(closing_record["flags"]) & (Flag.NO_ACTION | Flag.ROLLED_BACK)) == Flag.NO_ACTION | Flag.ROLLED_BACK
    (rollback_event,) = rig.events_of_kind("policy_rolled_back")
    assert (rollback_event["policy"], rollback_event["back_to"]) == (BAD, GOOD)
    assert set(records[2 * EPISODE_RECORDS :]["policy_id"][:-1].tolist()) == {GOOD}


def test_without_probation_it_continues_to_answer_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visited: list[float]
) -> None:
    rig = Rig(tmp_path, monkeypatch, "probation=null")
    offer_bad_policy_after_first_episode(rig, visited)
    records = rig.run()
    assert np.count_nonzero(records["rule"] == Rule.FINITE) > 1
    assert not (records["flags"] & (Flag.PROBATION | Flag.ROLLED_BACK)).any()
    assert rig.events_of_kind("policy_rolled_back") == []
    assert np.isfinite(records["commanded"]).all(), "the shield works without probation"
