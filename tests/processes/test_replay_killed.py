"""A replay process that dies: the loop remains in control, a new one takes over the ring."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import cast

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from onrig.tools.load import load
from tests.lab.rig.processes import CONTROL, LEARNER, REPLAY, TWIN
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import ENDLESS, Run
from tests.processes.observer import Observer, digest_of


def test_the_loop_remains_in_control_and_another_replay_process_takes_over_the_ring(tmp_path: Path) -> None:
    policy = tmp_path / "policy.onnx"
    policy.write_bytes(steady_policy(load("pendulum")))
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "local_learner=false", f"policy={policy}") as run:
        first, control, twin = run.child(REPLAY), run.child(CONTROL), run.child(TWIN)
        run.until(lambda: run.rows(), "the first episode to be filed")
        run.process.kill(signal.SIGSTOP)  # so that no other one is started yet
        first.kill()
        first.wait()
        n_rows = len(run.rows())
        run.until(lambda: run.word(Word.CLOSED) >= n_rows + 10, "ten more episodes")
        assert len(run.rows()) == n_rows
        run.process.kill(signal.SIGCONT)
        second = run.child(REPLAY, other_than=first)
        run.until(lambda: run.word(Word.REPLAY_PID) == second.pid, "another one to take over")
        run.until(lambda: len(run.rows()) >= n_rows + 20, "it to file what waited, and what came since")
        assert not control.has_ended
        assert not twin.has_ended
        run.process.kill(signal.SIGINT)
        assert run.ended() == ExitCode.INTERRUPTED
        assert run.leftover_paths() == []
        episodes = {int(row["episode"]) for row in run.rows()}
        assert episodes == set(range(1, run.word(Word.CLOSED) + 1))
        assert run.summary()["dropped_records"] == 0
        assert run.policies() == [1]
        assert run.word(Word.POLICY) == 1
        assert run.events("policy_refused") == []


def test_the_learner_attaches_to_the_new_memory_and_policy_ids_continue(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS) as run:
        first, learner = run.child(REPLAY), run.child(LEARNER)
        run.until(lambda: run.word(Word.POLICY) >= 3, "the third policy to act")
        first.kill()
        first.wait()
        last = run.policies()[-1]
        run.until(lambda: len(run.events("learner_attached")) >= 2, "the learner to attach anew")
        run.until(lambda: run.word(Word.POLICY) >= last + 2, "its next policies to act")
        assert not learner.has_ended
        run.until(lambda: len(run.rows()) > 60, "the memory to be written over")
        observer = Observer(run)
        rows = observer.pull(0)
        assert observer.mirror.storage.stored == 500, "a new learner receives the complete memory"
        assert rows.upto > 500
        run.process.kill(signal.SIGINT)
        observer.follow()
        assert run.ended() == ExitCode.INTERRUPTED
        admitted = [cast(int, event["policy"]) for event in run.events("policy_admitted")]
        assert admitted == sorted(set(admitted)), "no number was used twice"
        assert run.events("policy_refused") == []
        assert {int(row["policy_id"]) for row in run.rows()} <= set(run.policies())
        assert digest_of(run) == observer.digest, "and every write after it"
