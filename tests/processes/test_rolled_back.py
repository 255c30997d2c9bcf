"""A policy with a hidden fault, offered to a complete rig: it acts, is rolled back, and is not admitted again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.learner.attachment import Attachment
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.messages import Confirm, Done, Offer, Ruling, Verdict
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from tests.lab.rig.processes import REPLAY
from tests.lab.rig.run import LOCKSTEP, Run
from tests.runtime.policy import models

GOOD, BAD, BETTER = 1, 2, 3
STEPS = 50
SETTINGS = (*LOCKSTEP, "exploration={process: none}", "local_learner=false", "episodes=5", "probation.duration_s=0.8")


class Learner:
    """Attaches to a run and acts as directed, episode by episode."""

    def __init__(self, run: Run) -> None:
        run.until(lambda: run.shm is not None and (run.shm / "learner").exists(), "the learners' door")
        self.config: RunConfig = load_resolved(run.folder / "config.yaml")
        self.rulings: list[Ruling] = []
        self._client = LinkClient(f"ipc://{run.shm}/learner", lambda: False)
        self._link = Attachment(self.config, self._client, "push", on_ruling=self.rulings.append)
        self._link.attach()

    def offer(self, policy_id: int, model: bytes) -> Verdict:
        verdict = self._link.ask(Offer(0), model)
        assert isinstance(verdict, Verdict)
        return verdict

    def done(self, episode: int) -> None:
        if episode:
            assert self._link.mirror is not None
            self._link.ask(Confirm(episode, self._link.mirror.storage.digest()))
        self._link.ask(Done(episode, 0, 0.0))

    def follow(self, until: Callable[[int, bool], bool]) -> None:
        """Mirror until a condition on (last closed episode, whether the run is over) holds."""
        while True:
            rows, _ = self._link.pull(1 << 32, 200)
            if rows.upto == rows.inserted and until(rows.closed, rows.ending):
                return

    def until_closed(self, episode: int) -> None:
        """Mirror until a training episode is closed."""
        self.follow(lambda closed, ending: closed >= episode)

    def unprobed_state(self) -> list[float]:
        """A state (SI) that both of the first two episodes visit and that admission does not probe.

        Admission probes 64 of the stored states, evenly spread.
        """
        assert self._link.mirror is not None
        storage = self._link.mirror.storage
        probed = set(np.linspace(0, 2 * STEPS - 1, 64).astype(int).tolist())
        step = next(k for k in range(20, STEPS) if not {k, k + STEPS} & probed)
        visited = storage.observation[step].astype(float)
        assert (storage.observation[step + STEPS] == storage.observation[step]).all()
        signals = self.config.rig.signals
        return [0.5 * (s.low + s.high) + 0.5 * (s.high - s.low) * v for s, v in zip(signals, visited, strict=True)]

    def model(self, policy_id: int, at: list[float] | None = None) -> bytes:
        rig, rate_hz = self.config.rig, self.config.rate_hz
        contract = contract_for(rig, rate_hz, policy_id=policy_id, parent_run="test", training_step=0)
        if at is None:
            return models.serialized(models.policy(contract=contract))
        return models.serialized(models.nan_near(at, (0.01, 0.1), contract))

    def close(self) -> None:
        self._client.close()


def restart_replay(run: Run) -> None:
    before = run.child(REPLAY)
    before.kill()
    run.child(REPLAY, other_than=before)


def follow_until_rollback(learner: Learner) -> bytes:
    """Act as a learner until the second policy is rolled back; returns its bytes."""
    learner.until_closed(1)
    learner.done(1)
    learner.until_closed(2)
    bad_model = learner.model(BAD, learner.unprobed_state())
    verdict = learner.offer(BAD, bad_model)
    assert (verdict.accepted, verdict.policy_id) == (True, BAD), "no probe state of admission is near the fault"
    learner.done(2)
    learner.until_closed(3)
    assert [(r.policy_id, r.verdict) for r in learner.rulings] == [(GOOD, "passed"), (BAD, "rolled_back")]
    assert learner.rulings[1].reason == "its output is non-finite"
    return bad_model


@pytest.mark.parametrize("restart", [False, True], ids=["in one go", "with a new replay process"])
def test_a_rolled_back_policy_acts_until_it_fails_and_never_again(tmp_path: Path, *, restart: bool) -> None:
    with Run(tmp_path / "run", "pendulum", *SETTINGS) as run, contextlib.ExitStack() as stack:
        learner = Learner(run)
        stack.callback(lambda: learner.close())
        assert learner.offer(GOOD, learner.model(GOOD)).accepted
        learner.done(0)
        bad_model = follow_until_rollback(learner)
        if restart:  # everything after the checkpoint is repeated while the loop waits
            learner.close()
            restart_replay(run)
            learner = Learner(run)
            assert follow_until_rollback(learner) == bad_model
        verdict_again = learner.offer(BAD, bad_model)
        assert (verdict_again.accepted, verdict_again.stage) == (False, "probation")
        learner.done(3)
        learner.until_closed(4)
        assert learner.offer(BETTER, learner.model(BETTER)).accepted
        learner.done(4)
        learner.until_closed(5)
        learner.done(5)
        learner.follow(lambda closed, ending: ending)
        stack.close()
        assert run.ended() == ExitCode.OK
        assert run.leftover_paths() == []
    assert [row["policy_id"] for row in run.rows()] == ["1", "1", "2", "1", "3"]
    *_, event = run.events("policy_rolled_back")  # twice if repeated
    assert (event["policy"], event["back_to"], event["reason"], event["episode"]) == (BAD, GOOD, "finite", 3)
    policies = msgspec.convert(run.summary()["policies"], dict[str, int])
    assert (policies["rolled_back"], policies["active"]) == (1, BETTER)
    listed = msgspec.json.decode((run.folder / "policies" / "rolled_back.json").read_bytes())
    assert [entry["policy"] for entry in listed] == [BAD]
    assert not any(np.isnan(float(row["return"])) for row in run.rows())
