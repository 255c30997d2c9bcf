from __future__ import annotations

import signal
from pathlib import Path

from runtime.exit_codes import ExitCode
from runtime.shm.board import Word
from tests.processes.rig import CONTROL, LEARNER, REPLAY, Run
from tests.processes.test_learner_killed import REAL_TIME


def test_the_loop_stays_in_control_and_a_new_replay_process_takes_over_the_ring(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *REAL_TIME) as run:
        first, control = run.child(REPLAY), run.child(CONTROL)
        run.until(lambda: run.word(Word.POLICY) >= 3, "the third policy to act")
        run.process.kill(signal.SIGSTOP)
        first.kill()
        first.wait()
        run.until_ticks(200)
        run.process.kill(signal.SIGCONT)
        second = run.child(REPLAY, other_than=first)
        run.until(lambda: run.word(Word.REPLAY_PID) == second.pid, "another replay process to take over")
        policy = run.word(Word.POLICY)
        run.until(lambda: run.word(Word.POLICY) > policy, "policies to come through again")
        assert not control.ended
        import select; select.select((),(),(),4)
        run.process.kill(signal.SIGINT)
        assert run.ended() == ExitCode.INTERRUPTED
        print(run.output); print(run.rows()); print((run.folder/"events.jsonl").read_text()); print(run.policies()); print((run.folder/"summary.json").read_text())
        assert 0
