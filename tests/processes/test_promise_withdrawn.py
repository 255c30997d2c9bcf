"""A rig on a port whose plant is not covered by its promise: the promise is withdrawn, and an operator re-arms."""

from __future__ import annotations

import json
from pathlib import Path

from onrig.runtime.control.withdrawal import CAUSE
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.replay.promise_watch import WINDOW
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from tests.lab.rig.processes import process_of, until
from tests.lab.rig.run import LOCKSTEP, Run
from tests.processes.test_stop import onrig

LIGHT = "device.twin.plant.inertia=4.5e-4"
"""Half the inertia: everything is about twice as fast, while the box covers 30 %."""


def test_a_promise_contradicted_by_the_rig_pauses_the_run_until_an_operator_rearms(tmp_path: Path) -> None:
    link = tmp_path / "link"
    light = ("--set", LIGHT, "--set", "limits.predicted=null")
    with process_of("onrig.tools.cli", "twin", "pendulum", "--link", link, *light) as twin:
        port = until(lambda: link.exists() and link.read_text().strip(), "the device", twin)
        settings = (*LOCKSTEP, "learner.updates_per_episode=1", f"episodes={2 * WINDOW}")
        with Run(tmp_path / "run", "pendulum", *settings, port=str(port)) as run:
            run.until(lambda: run.word(Word.STATE) == State.PAUSED, "the promise to be withdrawn")
            assert run.word(Word.PROMISE_WITHDRAWN) == 1
            assert run.word(Word.EPISODE) <= WINDOW
            run.until(lambda: onrig("resume", str(run.folder)).returncode == ExitCode.OK, "it to be resumed")
            assert run.ended() == ExitCode.OK
            (event,) = run.events("promise_withdrawn")
            assert (event["promise"], event["of"]) == ("proved", WINDOW)
            assert [e["cause"] for e in run.events("warning") if e.get("cause") == CAUSE] == [CAUSE]
            summary = run.summary()
            assert summary["promise_withdrawn"] is True
            assert summary["episodes"] == 2 * WINDOW
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["promise"]["word"] == "proved"
    reported = onrig("report", str(tmp_path / "run")).stdout
    assert "proved, withdrawn: the rig's data contradict it" in reported
