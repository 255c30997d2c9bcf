"""Stopping and resuming from another terminal, and faults reported by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.tools.load import load
from tests.lab.rig.processes import CONTROL
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import ENDLESS, Run


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """Override that starts a run with a fixed policy, so that it needs no learner."""
    path = tmp_path / "policy.onnx"
    path.write_bytes(steady_policy(load("pendulum")))
    return f"policy={path}"


def onrig(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onrig.tools.cli", *arguments], capture_output=True, text=True, timeout=60
    )


def transitions(run: Run) -> list[str]:
    return [str(e["message"]) for e in run.events("transition")]


@pytest.mark.parametrize("how", [(), ("--now",)])
def test_onrig_stop_ends_a_run_and_reports_how_soon_it_was_safe(
    tmp_path: Path, policy: str, how: tuple[str, ...]
) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "task.episode_s=100", "local_learner=false", policy) as run:
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        stopped = onrig("stop", str(run.folder), *how)
        assert stopped.returncode == ExitCode.OK
        assert f"{run.folder}: actuators safe after " in stopped.stdout
        assert run.ended() == ExitCode.INTERRUPTED
        assert run.leftover_paths() == []
        assert run.summary()["exit_reason"] == "stopped by `onrig stop`"
        last = ["running -> fading", "fading -> disconnected"] if not how else ["running -> disconnected"]
        assert transitions(run)[-len(last) :] == last
        again = onrig("stop", str(run.folder))
        assert again.returncode == ExitCode.CONFIGURATION
        assert "is not active; it ended: stopped by `onrig stop`" in again.stderr


def test_onrig_stop_reaches_the_loop_even_if_the_supervisor_hangs(tmp_path: Path, policy: str) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "task.episode_s=100", "local_learner=false", policy) as run:
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        run.process.kill(signal.SIGSTOP)
        with subprocess.Popen(
            [sys.executable, "-m", "onrig.tools.cli", "stop", str(run.folder), "--now"],
            stdout=subprocess.PIPE,
            text=True,
        ) as stop:
            run.until(lambda: run.word(Word.STATE) == State.DISCONNECTED, "the loop to disarm")
            run.process.kill(signal.SIGCONT)
            out, _ = stop.communicate(timeout=60)
        assert "actuators safe" in out
        assert run.ended() == ExitCode.INTERRUPTED


def test_after_an_emergency_stop_of_the_device_the_run_waits_for_onrig_resume_and_continues(
    tmp_path: Path, policy: str
) -> None:
    pressed = "device.twin.faults={scheduled: [{kind: estop, frame: 60, frames: 40}]}"
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "local_learner=false", policy, pressed) as run:
        run.until(lambda: run.word(Word.STATE) == State.FAULT, "the fault")
        run.until(lambda: bool(run.events("fault")), "the fault's event")
        ticks = run.word(Word.TICK)
        run.until(lambda: onrig("resume", str(run.folder)).returncode == ExitCode.OK, "it to be resumed")
        run.until(lambda: run.word(Word.TICK) > ticks + 50, "the loop to go on")
        run.process.kill(signal.SIGINT)
        assert run.ended() == ExitCode.INTERRUPTED
        assert [e["fault"] for e in run.events("fault")] == ["device_estop"]
        assert "fault -> ready" in transitions(run)
        assert run.summary()["fault"] is None


def test_a_hung_loop_is_reported_and_continues_when_it_recovers(tmp_path: Path, policy: str) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "task.episode_s=100", "local_learner=false", policy) as run:
        control = run.child(CONTROL)
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        control.kill(signal.SIGSTOP)
        run.until(lambda: bool(run.events("fault")), "the supervisor to notice")
        control.kill(signal.SIGCONT)
        run.until_ticks(20)
        run.process.kill(signal.SIGINT)
        assert run.ended() == ExitCode.INTERRUPTED
        assert "loop_hung" in [e["fault"] for e in run.events("fault")]


def test_a_rebooted_device_is_named(tmp_path: Path, policy: str) -> None:
    reboot = "device.twin.faults={scheduled: [{kind: reboot, frame: 60}]}"
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "local_learner=false", policy, reboot) as run:
        assert run.ended() == ExitCode.HARDWARE
        assert run.summary()["fault"] == "device_rebooted"
        assert run.events("ended")[0]["fault"] == "device_rebooted"
        assert run.leftover_paths() == []


def test_without_a_run_there_is_nothing_to_stop_or_resume(tmp_path: Path) -> None:
    for verb in ("stop", "resume"):
        result = onrig(verb, str(tmp_path))
        assert result.returncode == ExitCode.CONFIGURATION
        assert result.stderr == f"onrig {verb}: '{tmp_path}' is not a run folder\n"
    assert os.listdir(tmp_path) == []
