"""Damaged messages of every type, a few of each; `make study` sends a hundred thousand of each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from onrig.runtime.link.messages import ReplyMessage, RequestMessage, encode
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_loading import load_run
from onrig.tools.bench.link.rig_end import random_policy
from tests.runtime.link.damaged_messages import FuzzResult, damage_frames, fuzz_learner, fuzz_rig
from tests.runtime.link.sound_messages import REPLIES, REQUESTS

QUICK_MUTATIONS, LONG_MUTATIONS = 300, 100_000
GROWTH_BYTES = 48 << 20


def model() -> bytes:
    config = load_run("pendulum")
    contract = contract_for(config.rig, config.rate_hz, policy_id=5, parent_run="bench", training_step=0)
    return random_policy(config, contract)


def check(outcomes: list[FuzzResult], types: set[str], n_mutations: int) -> None:
    assert {o.kind for o in outcomes} == types
    for outcome in outcomes:
        assert outcome.n_mutations == n_mutations
        assert n_mutations / 20 < outcome.n_refused < n_mutations, f"{outcome}: damage too coarse or too slight"
        assert outcome.grown_bytes < GROWTH_BYTES, outcome


REQUEST_TYPES = {t.__name__ for t in RequestMessage.__args__}
REPLY_TYPES = {t.__name__ for t in ReplyMessage.__args__}


@pytest.mark.parametrize("n_mutations", [QUICK_MUTATIONS, pytest.param(LONG_MUTATIONS, marks=pytest.mark.study)])
def test_no_damaged_request_harms_the_rig(tmp_path: Path, n_mutations: int) -> None:
    check(list(fuzz_rig(n_mutations, 1, tmp_path, model())), REQUEST_TYPES, n_mutations)


@pytest.mark.parametrize("n_mutations", [QUICK_MUTATIONS, pytest.param(LONG_MUTATIONS, marks=pytest.mark.study)])
def test_no_damaged_reply_harms_the_learner(n_mutations: int) -> None:
    check(list(fuzz_learner(n_mutations, 1)), REPLY_TYPES, n_mutations)


def test_the_fuzzer_detects_a_rig_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.runtime.replay.learners.feedback.MAX_FEEDBACK_EXPERIENCES", "no number")
    with pytest.raises(TypeError):
        list(fuzz_rig(50, 1, tmp_path, b""))


def test_damage_changes_the_message_and_is_the_same_for_the_same_seed() -> None:
    frames = [encode(message) for message in (*REQUESTS, *REPLIES)]
    assert len(frames) == len(REQUEST_TYPES) + len(REPLY_TYPES)
    first, repeated = ([damage_frames(frames, random.Random(n)) for n in range(200)] for _ in range(2))
    assert first == repeated
    assert sum(out != frames for out in first) > 190
