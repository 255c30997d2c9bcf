"""A learner that hangs while the loop runs in real time."""

from __future__ import annotations

import signal
from pathlib import Path

from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from tests.lab.rig.processes import LEARNER
from tests.lab.rig.run import ENDLESS, Run


def test_the_rig_is_safe_while_the_learner_hangs_and_continues_when_it_is_back(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "staleness={after_s: 1, then: fall_back}") as run:
        learner = run.child(LEARNER)
        run.until_ticks(50)
        learner.kill(signal.SIGSTOP)
        run.until(lambda: run.word(Word.STATE) == State.PAUSED, "a pause")
        run.until(lambda: run.word(Word.SAFE_NS) > 0, "a frame that says so")
        learner.kill(signal.SIGCONT)
        run.until_ticks(50)
        run.process.kill(signal.SIGTERM)
        run.ended()
        assert run.leftover_paths() == []
    reported = [event["what"] for kind in ("warning", "event") for event in run.events(kind) if "what" in event]
    assert "learner_silent" in reported
    assert "learner_heard" in reported
