from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from onrig.hw.native import library
from onrig.runtime.control import policy_switch
from onrig.runtime.control.loop_state import LoopState, decode_state, encode_state, load_stored_session
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.policy.probation import ProbationLimits
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Rule
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment
from tests.runtime.policy import models

AMPLE_SLACK_NS = 10**9
BUILD_NS = 300_000


class FakeSession:
    """Replaces a session: knows its model, takes 300 us of virtual time to build, fails if the model says so."""

    now_ns = 0
    built: list[bytes]

    def __init__(self, model: bytes, *, native: bool = False, parsed_model: bytes | None = None) -> None:
        assert (parsed_model == model) is native
        FakeSession.now_ns += BUILD_NS * (100 if b"slow" in model else 1)
        FakeSession.built.append(model)
        if b"unbuildable" in model:
            raise ValueError("no such operator")
        self.model, self.native = model, native
        self.hidden = np.zeros((1, 3), np.float32) if b"recurrent" in model else None
        self.is_warm = False
        self.runs = 0

    def run(self) -> None:
        self.runs += 1
        if b"fails" in self.model:
            raise RuntimeError("not now")

    def warm_up(self, runs: int) -> None:
        if b"unrunnable" in self.model:
            raise RuntimeError("it fails to run")
        self.is_warm = True


def parsed_model(model: bytes) -> bytes:
    """Replaces a parsed model, and takes as long as a session."""
    FakeSession.now_ns += BUILD_NS * (100 if b"slow" in model else 1)
    if b"unreadable" in model:
        raise ValueError("no such field")
    return model


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PolicySlot:
    FakeSession.built, FakeSession.now_ns = [], 0
    monkeypatch.setattr(policy_switch, "PolicySession", FakeSession)
    monkeypatch.setattr(policy_switch, "read_model", parsed_model)
    monkeypatch.setattr(time, "monotonic_ns", lambda: FakeSession.now_ns)
    return PolicySlot(Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA))


def active_model(switch: PolicySwitch) -> bytes | None:
    """The active model."""
    model: bytes | None = getattr(switch.active, "model", None)
    return model


def prepare(switch: PolicySwitch, times: int = 3, slack_ns: int = AMPLE_SLACK_NS) -> None:
    for _ in range(times):
        switch.prepare(slack_ns)


def test_the_seat_is_empty_before_the_first_policy(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    prepare(switch)
    assert not switch.swap()
    assert (switch.active, switch.policy_id, switch.n_swaps) == (None, 0, 0)


def test_a_policy_acts_only_from_the_next_edge(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(5, b"five")
    prepare(switch, times=10)
    assert switch.active is None, "prepared, but not swapped before a tick edge"
    assert switch.swap()
    assert (active_model(switch), switch.policy_id, switch.n_swaps) == (b"five", 5, 1)
    assert not switch.swap(), "a policy is not swapped for itself"


def test_a_recurrent_policy_waits_for_the_start_of_an_episode(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(5, b"five")
    switch.install_newest()
    slot.put(6, b"recurrent")
    prepare(switch, times=10)
    assert not switch.swap()
    assert active_model(switch) == b"five"
    switch.install_newest()
    assert active_model(switch) == b"recurrent"
    slot.put(7, b"seven")
    prepare(switch)
    assert switch.swap(), "one without a state may follow at once"


def test_a_policy_is_prepared_one_piece_per_slack_and_warmed_up_before_it_acts(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(5, b"five")
    switch.prepare(AMPLE_SLACK_NS)
    assert (FakeSession.built, switch.swap()) == ([], False)
    switch.prepare(AMPLE_SLACK_NS)
    assert (FakeSession.built, switch.swap()) == ([b"five"], False)
    switch.prepare(AMPLE_SLACK_NS)
    assert switch.swap()
    assert getattr(switch.active, "is_warm", False)


def test_a_long_slack_covers_all_pieces_and_a_short_one_as_many_as_fit(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(5, b"five")
    switch.prepare_until(time.monotonic_ns() + AMPLE_SLACK_NS)
    assert switch.swap(), "fetched, built and warmed up between two ticks"
    switch.time_builds()
    FakeSession.built.clear()
    slot.put(6, b"six")
    switch.prepare_until(time.monotonic_ns() + round(3.5 * BUILD_NS))
    assert FakeSession.built == [], "fetched; a build may take several times as long as it usually does"
    switch.prepare_until(time.monotonic_ns() + round(4.5 * BUILD_NS))
    assert (FakeSession.built, switch.swap()) == ([b"six"], False), "built; what is left is too short for warming up"
    switch.prepare_until(time.monotonic_ns() + round(4.5 * BUILD_NS))
    assert switch.swap()


def test_a_native_policy_is_parsed_in_one_slack_and_built_in_another(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(1, b"one", is_native=True)
    switch.install_newest()
    switch.time_builds()
    FakeSession.built.clear()
    slot.put(2, b"two", is_native=True)
    prepare(switch, times=20, slack_ns=4 * BUILD_NS - 1)
    assert not switch.swap()
    prepare(switch, times=1, slack_ns=4 * BUILD_NS)
    assert FakeSession.built == [], "it was fetched before, and the next slack is for the session"
    prepare(switch, times=2, slack_ns=4 * BUILD_NS)
    assert switch.swap()
    assert switch.active is not None
    assert switch.active.native


def test_a_native_policy_that_cannot_be_parsed_leaves_the_current_one_acting(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1)
    slot.put(2, b"unreadable", is_native=True)
    prepare(switch, times=5)
    assert (switch.swap(), switch.n_refused, active_model(switch)) == (False, 1, b"1")
    slot.put(3, b"three", is_native=True)
    prepare(switch, times=4)
    assert switch.swap()


def test_nothing_is_built_in_a_slack_that_may_be_too_short(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(1, b"one")
    prepare(switch, times=20, slack_ns=7 * BUILD_NS)
    assert FakeSession.built == [], "the first guess of a build is above what builds take here"
    prepare(switch, times=20, slack_ns=2_400_000)
    assert FakeSession.built == [b"one"]
    assert switch.swap()


def test_a_slow_build_requires_more_slack_and_is_forgotten_in_time(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(1, b"slow")
    prepare(switch)
    switch.swap()
    slot.put(2, b"two")
    prepare(switch, times=20, slack_ns=50 * BUILD_NS)
    assert FakeSession.built == [b"slow"], "it may take as long again"
    for policy_id in range(2, 60):
        slot.put(policy_id, b"quick")
        prepare(switch)
        switch.swap()
    slot.put(60, b"sixty")
    prepare(switch, slack_ns=4 * BUILD_NS)
    assert switch.swap()
    assert active_model(switch) == b"sixty"


def test_the_predecessor_is_kept(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    for policy_id, model in ((1, b"one"), (2, b"two"), (3, b"three")):
        slot.put(policy_id, model)
        prepare(switch)
        switch.swap()
    assert switch.predecessor is not None
    policy_id, session = switch.predecessor
    assert (policy_id, getattr(session, "model", None)) == (2, b"two")


@pytest.mark.parametrize("model", [b"unbuildable", b"unrunnable"])
def test_a_policy_that_cannot_be_built_or_run_leaves_the_current_one_acting(slot: PolicySlot, model: bytes) -> None:
    switch = PolicySwitch(slot)
    slot.put(1, b"one")
    switch.install_newest()
    slot.put(2, model)
    prepare(switch, times=10)
    assert not switch.swap()
    switch.install_newest()
    assert (active_model(switch), switch.policy_id, switch.n_refused) == (b"one", 1, 1)
    slot.put(3, b"three")
    switch.install_newest()
    assert (active_model(switch), switch.policy_id) == (b"three", 3)


def test_between_episodes_the_newest_policy_is_installed_at_once(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    for policy_id in (1, 2, 3):
        slot.put(policy_id, b"%d" % policy_id)
    switch.install_newest()
    assert (active_model(switch), switch.policy_id, FakeSession.built) == (b"3", 3, [b"3"])
    switch.install_newest()
    assert FakeSession.built == [b"3"], "the acting policy is not built again"


@pytest.mark.parametrize("n_pieces", [0, 1, 2, 3])
def test_the_newest_policy_is_installed_even_while_an_older_one_is_being_prepared(
    slot: PolicySlot, n_pieces: int
) -> None:
    switch = PolicySwitch(slot)
    slot.put(1, b"one")
    switch.install_newest()
    slot.put(2, b"two")
    prepare(switch, times=n_pieces)
    slot.put(3, b"three")
    switch.install_newest()
    assert (active_model(switch), switch.policy_id) == (b"three", 3)


def test_a_slot_that_is_being_rewritten_delays_nothing(slot: PolicySlot, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = PolicySwitch(slot)
    slot.put(1, b"one")
    monkeypatch.setattr(slot, "take", lambda: None)
    switch.install_newest()
    assert switch.active is None
    monkeypatch.undo()
    monkeypatch.setattr(policy_switch, "PolicySession", FakeSession)
    switch.install_newest()
    assert active_model(switch) == b"one"


# -- probation ---------------------------------------------------------------------------------------------------------

LIMITS = ProbationLimits(ticks=5, slow_ns=None, slow_ticks=3, excess_fallback=0.5)


def seat_policies(
    slot: PolicySlot, *policy_ids: int, ticks: int = 5, limits: ProbationLimits | None = LIMITS
) -> PolicySwitch:
    """A switch on which these policies have acted in turn, each for ``ticks`` faultless ticks (the last for none)."""
    switch = PolicySwitch(slot, limits)
    for policy_id in policy_ids:
        for _ in range(ticks if switch.active is not None else 0):
            tick(switch)
        slot.put(policy_id, b"%d" % policy_id)
        switch.install_newest()
    return switch


def tick(switch: PolicySwitch, rule: Rule = Rule.NONE) -> tuple[int, bool]:
    """One tick: the record's marks, and whether the policy was rolled back."""
    return switch.record_flags(), switch.record_tick(rule, 0)


def test_after_a_failure_the_predecessor_acts_from_the_next_tick(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2)
    session = switch.predecessor
    assert tick(switch) == (Flag.PROBATION, False)
    assert tick(switch, Rule.FINITE) == (Flag.PROBATION, True)
    assert (switch.policy_id, switch.active) == session
    assert [tick(switch)[0] for _ in range(3)] == [Flag.ROLLED_BACK, 0, 0], "marked once; it passed probation long ago"
    assert switch.n_rollbacks == 1


def test_the_predecessor_acts_at_once_even_if_another_policy_is_ready(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2)
    slot.put(3, b"three")
    prepare(switch)
    tick(switch, Rule.FINITE)
    assert not switch.swap(), "the tick after belongs to the predecessor"
    assert tick(switch)[0] == Flag.ROLLED_BACK
    assert switch.policy_id == 1
    assert switch.swap()
    assert switch.policy_id == 3


def test_a_rolled_back_policy_is_not_installed_again(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2)
    tick(switch, Rule.FINITE)
    slot.put(2, b"2")
    switch.install_newest()
    prepare(switch)
    assert not switch.swap()
    assert (switch.policy_id, switch.n_refused, FakeSession.built) == (1, 1, [b"1", b"2"])
    slot.put(3, b"three")
    switch.install_newest()
    assert switch.policy_id == 3


def test_the_first_policy_has_no_predecessor_and_continues(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1)
    assert tick(switch, Rule.FINITE) == (Flag.PROBATION, False)
    assert tick(switch) == (0, False)
    assert (switch.policy_id, switch.n_rollbacks) == (1, 0)


def test_policies_replaced_too_fast_to_pass_probation_are_rolled_back_one_by_one(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2)
    for _ in range(5):
        tick(switch)  # 2 is proven
    for policy_id in (3, 4):
        slot.put(policy_id, b"%d" % policy_id)
        switch.install_newest()
        tick(switch)
    assert tick(switch, Rule.FINITE)[1]
    assert switch.policy_id == 3
    assert tick(switch) == (Flag.PROBATION | Flag.ROLLED_BACK, False), "its own probation continues"
    assert tick(switch, Rule.FINITE)[1]
    assert switch.policy_id == 2
    assert tick(switch, Rule.FINITE) == (Flag.ROLLED_BACK, False)


def test_the_last_proven_policy_is_kept_however_many_unproven_ones_follow_but_few_sessions_are(
    slot: PolicySlot,
) -> None:
    switch = seat_policies(slot, 1, 2)
    for policy_id in range(3, 40):
        slot.put(policy_id, b"%d" % policy_id)
        switch.install_newest()
        tick(switch)
    reinstated = []
    while tick(switch, Rule.FINITE)[1]:
        reinstated.append(switch.policy_id)
    assert reinstated == [38, 37, 1]


def test_a_policy_that_never_acted_is_not_a_predecessor(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2)
    slot.put(3, b"three")
    switch.install_newest()
    tick(switch, Rule.FINITE)
    assert switch.policy_id == 1


def test_the_allowed_fallback_share_is_measured_on_the_predecessor(slot: PolicySlot) -> None:
    for n_fallback_pairs, expected in ((0, 2), (1, 3)):
        switch = PolicySwitch(slot, LIMITS)
        slot.put(1, b"one")
        switch.install_newest()
        for k in range(10):
            tick(switch, Rule.FALLBACK if k < 2 * n_fallback_pairs else Rule.NONE)
        slot.put(2, b"two")
        switch.install_newest()
        n_acted = 0
        while not tick(switch, Rule.FALLBACK)[1]:
            n_acted += 1
        assert n_acted == expected


def test_without_probation_nothing_is_rolled_back_or_marked(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2, limits=None)
    assert [tick(switch, Rule.FINITE) for _ in range(3)] == [(0, False)] * 3


def test_the_predecessor_is_kept_warm_while_it_may_be_needed(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2)
    assert switch.predecessor is not None
    session = switch.predecessor[1]
    switch.prepare(100_000)
    assert getattr(session, "runs", 0) == 0, "not in a slack that is short"
    switch.prepare(AMPLE_SLACK_NS)
    assert getattr(session, "runs", 0) == 1
    for _ in range(5):
        tick(switch)
    switch.prepare(AMPLE_SLACK_NS)
    assert getattr(session, "runs", 0) == 1, "its successor is proven"


def test_a_predecessor_that_fails_while_kept_warm_disturbs_nothing(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot, LIMITS)
    for model in (b"fails", b"two"):
        slot.put(1 + slot.version, model)
        switch.install_newest()
        tick(switch)
    switch.prepare(AMPLE_SLACK_NS)
    assert active_model(switch) == b"two"


def test_the_seat_counts_how_long_its_policy_has_acted(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1, 2)
    for _ in range(3):
        tick(switch)
    assert switch.age_ticks == 3


def test_a_slow_first_build_does_not_prevent_swaps_once_builds_have_been_timed(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    slot.put(1, b"slow")  # like the first build of a process, which loads libraries
    switch.install_newest()
    slot.put(2, b"two")
    switch.install_newest()
    slot.put(3, b"three")
    prepare(switch, slack_ns=4 * BUILD_NS)
    assert not switch.swap(), "the slow build is remembered"
    switch.time_builds()
    prepare(switch, slack_ns=4 * BUILD_NS)
    assert switch.swap()
    assert active_model(switch) == b"three"


def test_a_larger_model_requires_more_slack_and_is_built_between_episodes_at_the_latest(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1)
    switch.time_builds()
    slot.put(2, b"2" * (1 << 17))
    extra_ns = 5 * (1 << 16)
    prepare(switch, times=20, slack_ns=4 * (BUILD_NS + extra_ns) - 1)
    assert not switch.swap()
    prepare(switch, slack_ns=4 * (BUILD_NS + extra_ns))
    assert switch.swap()
    slot.put(3, b"3" * (1 << 17))
    prepare(switch, slack_ns=4 * BUILD_NS)
    assert switch.swap(), "one of that size is known"
    slot.put(4, b"4" * (1 << 21))
    prepare(switch, times=20, slack_ns=20_000_000)
    assert not switch.swap()
    switch.install_newest()
    assert switch.policy_id == 4


def test_builds_are_timed_even_without_an_active_policy(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot)
    switch.time_builds()
    assert FakeSession.built == []


LENIENT = ProbationLimits(ticks=10, slow_ns=None, slow_ticks=3, excess_fallback=0.5)


def test_a_restored_switch_has_its_policies_and_their_results(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot, LENIENT)
    for policy_id in (1, 2):
        slot.put(policy_id, b"model %d" % policy_id)
        switch.install_newest()
        for tick in range(6):
            switch.record_tick(Rule.FALLBACK if policy_id == 1 and tick % 2 else Rule.NONE, 0)
    restored = PolicySwitch(slot, LENIENT)
    restored.restore(switch.state(), lambda i, native: FakeSession(b"model %d" % i))  # type: ignore[arg-type,return-value]
    assert restored.state() == switch.state()
    assert (restored.policy_id, active_model(restored)) == (2, b"model 2")
    restored.install_newest()  # the slot holds no newer one
    assert restored.state() == switch.state()
    verdicts = [
        [s.record_tick(Rule.FINITE if tick == 2 else Rule.NONE, 0) for tick in range(4)] for s in (switch, restored)
    ]
    assert verdicts[0] == verdicts[1]
    assert (restored.policy_id, restored.state()) == (1, switch.state())


def test_policies_keep_their_evaluator_when_restored(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot, LENIENT)
    for policy_id, native in ((1, True), (2, False), (3, True)):
        slot.put(policy_id, b"model", is_native=native)
        switch.install_newest()
        switch.record_tick(Rule.NONE, 0)
    requested: list[tuple[int, bool]] = []

    def make_session(policy_id: int, native: bool) -> PolicySession:
        requested.append((policy_id, native))
        model = b"model"
        return FakeSession(model, native=native, parsed_model=model if native else None)  # type: ignore[return-value]

    restored = PolicySwitch(slot, LENIENT)
    restored.restore(decode_state(encode_state(LoopState(switch=switch.state()))).switch, make_session)
    assert requested == [(1, True), (2, False), (3, True)]
    assert restored.state() == switch.state()
    assert restored.active is not None
    assert restored.active.native


@pytest.mark.skipif(library() is None, reason="needs the C library")
def test_a_filed_native_policy_answers_with_the_same_bits(tmp_path: Path) -> None:
    model = models.serialized(models.policy())
    (tmp_path / "7.onnx").write_bytes(model)
    restored, original = load_stored_session(tmp_path, 7, native=True), PolicySession(model, native=True)
    assert restored is not None
    assert restored.native
    observations = np.random.default_rng(0).uniform(-3, 3, (50, 2)).tolist()
    assert [restored.act(q) for q in observations] == [original.act(q) for q in observations]


def test_a_policy_whose_file_is_gone_is_not_restored(slot: PolicySlot) -> None:
    switch = PolicySwitch(slot, LENIENT)
    slot.put(1, b"model 1")
    switch.install_newest()
    restored = PolicySwitch(slot, LENIENT)
    restored.restore(switch.state(), lambda i, native: None)
    assert restored.active is None
    restored.install_newest()
    assert restored.policy_id == 1


def test_a_prepared_policy_that_had_not_acted_yet_acts_after_a_restore(slot: PolicySlot) -> None:
    switch = seat_policies(slot, 1)
    tick(switch)
    slot.put(2, b"2")
    prepare(switch)  # and the run ends before the next tick edge
    restored = PolicySwitch(slot)
    restored.restore(switch.state(), lambda i, native: FakeSession(b"%d" % i))  # type: ignore[arg-type,return-value]
    assert restored.policy_id == 1
    restored.install_newest()
    assert restored.policy_id == 2
