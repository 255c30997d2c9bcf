"""A learner that dies: the loop continues, nothing stored is lost, another learner takes over."""

from __future__ import annotations

import signal
from pathlib import Path

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from tests.lab.rig.processes import CONTROL, LEARNER, REPLAY
from tests.lab.rig.run import ENDLESS, LOCKSTEP, Run


def test_the_loop_continues_under_its_last_policy_and_another_learner_takes_over(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS) as run:
        first, control, replay = run.child(LEARNER), run.child(CONTROL), run.child(REPLAY)
        run.until(lambda: run.word(Word.POLICY) >= 3, "the third policy to act")
        run.process.kill(signal.SIGSTOP)  # so that no other learner is started yet
        first.kill()
        first.wait()
        run.until(lambda: run.word(Word.POLICY) == run.policies()[-1], "what it offered last to act")
        last, episode = run.word(Word.POLICY), run.word(Word.EPISODE)
        run.until(lambda: run.word(Word.EPISODE) >= episode + 5, "five more episodes")
        assert run.word(Word.POLICY) == last
        run.process.kill(signal.SIGCONT)
        second = run.child(LEARNER, other_than=first)
        run.until(lambda: len(run.events("learner_attached")) >= 2, "another learner to attach")
        run.until(lambda: run.word(Word.POLICY) >= last + 2, "its policies to act")
        admitted = [event["policy"] for event in run.events("policy_admitted")]
        assert admitted == list(range(1, len(admitted) + 1))
        assert {int(row["policy_id"]) for row in run.rows()} <= set(run.policies())
        assert not any(process.has_ended for process in (second, control, replay))


def test_a_lockstep_run_whose_learner_is_gone_for_good_ends_at_once(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *LOCKSTEP, "barrier_timeout_s=600") as run:
        last = None
        for _ in range(6):  # it is restarted five times
            last = run.child(LEARNER, other_than=last)
            last.kill(signal.SIGSEGV)
            last.wait()
        assert run.ended() == ExitCode.INTERNAL
        assert str(run.summary()["exit_reason"]).startswith("the learner exited and will not be restarted")
        assert not run.leftover_paths()
