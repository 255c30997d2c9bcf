"""A device that is unplugged during a run and returns on the same port."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.tools.load import load
from tests.lab.rig.processes import process_of, until
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import ENDLESS, Run
from tests.processes.test_stop import onrig, transitions


@contextlib.contextmanager
def plugged_in(port: Path) -> Iterator[None]:
    """A device at ``port``; at the end its line closes."""
    link = port.with_suffix(".link")
    settings = [word for setting in ENDLESS for word in ("--set", setting)]
    with process_of("onrig.tools.cli", "twin", "pendulum", "--link", link, *settings) as twin:
        pty = until(lambda: link.exists() and link.read_text().strip(), "the device", twin)
        port.symlink_to(pty)
        yield
        port.unlink()  # before the line closes: afterwards the pty of another program may have that name
    link.unlink(missing_ok=True)


def test_an_unplugged_device_is_waited_for_and_resumes_only_by_onrig_resume(tmp_path: Path) -> None:
    port = tmp_path / "port"
    policy = tmp_path / "policy.onnx"
    policy.write_bytes(steady_policy(load("pendulum")))
    settings = (*ENDLESS, "task.episode_s=100", "local_learner=false", f"policy={policy}")
    with contextlib.ExitStack() as stack:
        with plugged_in(port):
            run = stack.enter_context(Run(tmp_path / "run", "pendulum", *settings, port=str(port)))
            run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        run.until(lambda: run.word(Word.STATE) == State.DISCONNECTED, "the closed line to be noticed")
        early = onrig("resume", str(run.folder))
        assert early.returncode == ExitCode.CONFIGURATION
        assert "its device is not connected; plug it in first" in early.stderr
        stack.enter_context(plugged_in(port))
        run.until(lambda: run.word(Word.STATE) == State.FAULT, "the device to be found")
        ticks = run.word(Word.TICK)
        run.until(lambda: onrig("resume", str(run.folder)).returncode == ExitCode.OK, "it to be resumed")
        run.until(lambda: run.word(Word.TICK) > ticks + 50, "the loop to go on")
        run.process.kill(2)
        assert run.ended() == ExitCode.INTERRUPTED
        assert [e["fault"] for e in run.events("fault")] == ["link_unplugged"]
        assert {"running -> disconnected", "disconnected -> fault", "fault -> ready"} <= set(transitions(run))
        assert [row["episode"] for row in run.rows()][:1] == ["1"]
        summary = run.summary()
        assert (summary["fault"], summary["actuators"]) == (None, "safe: shown by a state frame from the device")
        completeness = summary["whole"]
        assert isinstance(completeness, dict)
        assert completeness["complete"] is True
