"""A camera whose process is killed or stopped: the rig is safe, and the run continues once images arrive again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.actuators import SAFE_TEXT
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from tests.lab.rig.run import Run
from tests.lab.rig.seen import CAMERA, MAX_AGE_S, camera_run, twin
from tests.processes.test_stop import onrig, transitions

SLACK_S = 5.0
"""Longer than a busy machine delays the loop."""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    with twin(tmp_path) as port:
        yield port


def has_continued(run: Run, ticks: int) -> bool:
    """Resume if necessary; returns whether the loop has made more than a frame or two since."""
    if run.word(Word.STATE) == State.FAULT:
        onrig("resume", str(run.folder))
    return run.word(Word.TICK) > ticks + 50


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_without_images_the_rig_is_safe_until_an_operator_resumes(
    tmp_path: Path, port: str, signum: signal.Signals
) -> None:
    source = tmp_path / "images.py"
    with camera_run(tmp_path, port) as run:
        run.until(lambda: run.word(Word.TICK) > 50, "the loop to go on")
        camera, original = run.child(CAMERA), source.read_text()
        source.write_text("raise SystemExit(3)\n")  # a restarted process finds no camera
        camera.kill(signum)
        signalled_s = time.monotonic()
        run.until(lambda: run.word(Word.STATE) == State.FAULT, "the missing images to be noticed")
        assert MAX_AGE_S - 0.1 < time.monotonic() - signalled_s < MAX_AGE_S + SLACK_S
        run.until(lambda: "ended with code 3" in str(run.events("error")), "the camera to be looked for")
        source.write_text(original)
        ticks = run.word(Word.TICK)
        run.until(lambda: has_continued(run, ticks), "the loop to go on")
        assert run.interrupt() == ExitCode.INTERRUPTED
        assert {e["fault"] for e in run.events("fault") if e["source"] == "control"} == {"camera_silent"}
        assert {"running -> fault", "fault -> ready"} <= set(transitions(run))
        assert (run.summary()["fault"], run.summary()["actuators"]) == (None, SAFE_TEXT)
        assert run.leftover_paths() == []


def test_a_run_whose_camera_does_not_start_is_refused_before_the_loop(tmp_path: Path, port: str) -> None:
    with camera_run(tmp_path, port, 'device.cameras.front.command=["false"]') as run:
        assert run.ended() == ExitCode.HARDWARE
    assert "camera 'front' does not start: false ended with code 1" in run.output
    assert not run.rows()


def test_an_image_of_another_size_ends_the_camera_with_its_message(tmp_path: Path, port: str) -> None:
    with camera_run(tmp_path, port, replacement=(".astype(np.uint8)", "")) as run:
        assert run.ended() == ExitCode.HARDWARE
    assert "read() returned shape (32, 32) of float64, expected shape (32, 32) of uint8" in run.output
