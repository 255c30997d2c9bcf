"""Stopping and resuming a run whose shared memory is of another version."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_loading import load_run, save_resolved
from onrig.runtime.run_state.running import Running
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.segment import Segment
from onrig.tools import active_runs
from onrig.tools.cli import main

WAIT_PROGRAM = "import signal, sys; print(flush=True); sys.exit(signal.sigwait({{signal.{}}}) and 0)"


@pytest.fixture
def older_supervisor(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor that ends on the signal."""
    Segment.create(tmp_path / "board", 64, "an older board").close()
    code = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{request.param}]); {WAIT_PROGRAM}"
    with subprocess.Popen([sys.executable, "-c", code.format(request.param)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("older_supervisor", "options"), [("SIGTERM", []), ("SIGQUIT", ["--now"])], indirect=["older_supervisor"]
)
def test_an_older_run_is_stopped_by_a_signal_and_unconfirmed_safety_is_reported(
    older_supervisor: subprocess.Popen[bytes],
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(active_runs, "running_rigs", lambda: [Running(older_supervisor.pid, tmp_path, tmp_path)])
    assert main(["stop", *options]) == ExitCode.HARDWARE
    assert older_supervisor.wait() == 0
    captured = capsys.readouterr()
    assert "has the layout of another schema; requesting the stop with a signal instead" in captured.out
    assert "actuators unconfirmed" in captured.err


def test_an_older_run_is_not_resumed_and_not_reported_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Segment.create(tmp_path / "board", 64, "an older board").close()
    monkeypatch.setattr(active_runs, "running_rigs", lambda: [Running(1, tmp_path, tmp_path)])
    assert main(["resume", str(tmp_path)]) == ExitCode.PREFLIGHT
    assert "has the layout of another schema" in capsys.readouterr().err


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class PausedBoard:
    """The board of a run that resumes as soon as requested."""

    resumed: ClassVar[list[int]] = []

    def __init__(self, running: Running) -> None:
        self._pid = running.pid
        self.state = State.PAUSED

    def __enter__(self) -> PausedBoard:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def resume(self) -> None:
        self.state = State.READY
        self.resumed.append(self._pid)


@pytest.fixture
def paused_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paused run of this user, the only one, and a working directory next to it."""
    folder = tmp_path / "bench" / "run"
    folder.mkdir(parents=True)
    save_resolved(load_run("pendulum"), folder / "config.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(active_runs, "running_rigs", lambda: [Running(1, tmp_path, folder)])
    monkeypatch.setattr(active_runs, "RemoteControl", PausedBoard)
    monkeypatch.setattr(active_runs, "_MIN_RUNNING_S", 0.0)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(PausedBoard, "resumed", [])
    return folder


@pytest.mark.parametrize("verb", ["resume", "web"])
def test_a_verb_does_not_pick_a_run_outside_the_working_directory(
    paused_run_folder: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert main([verb]) == ExitCode.CONFIGURATION
    working_folder = Path.cwd()
    assert (
        capsys.readouterr().err
        == f"onrig {verb}: no run under '{working_folder}' is active; name one of {paused_run_folder}\n"
    )
    assert not PausedBoard.resumed


def test_a_stop_finds_the_only_run_from_anywhere(paused_run_folder: Path) -> None:
    chosen = active_runs.choose_run("stop", None, anywhere=True)
    assert isinstance(chosen, Running)
    assert chosen.folder == paused_run_folder


def test_an_unnamed_run_in_a_subfolder_is_resumed_only_after_confirmation(
    paused_run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(paused_run_folder.parent)
    assert main(["resume"]) == ExitCode.CONFIGURATION
    assert "rig 'pendulum' would move again; confirm with --yes, or name the run" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", FakeTerminal("no\n"))
    assert main(["resume"]) == ExitCode.CONFIGURATION
    assert "rig 'pendulum' will move again.  Continue? (yes)" in capsys.readouterr().out
    assert not PausedBoard.resumed
    monkeypatch.setattr(sys, "stdin", FakeTerminal("yes\n"))
    assert main(["resume"]) == ExitCode.OK
    assert "rig 'pendulum' resumed" in capsys.readouterr().out
    assert main(["resume", "--yes"]) == ExitCode.OK
    assert len(PausedBoard.resumed) == 2


def test_a_named_run_needs_no_confirmation(paused_run_folder: Path) -> None:
    assert main(["resume", str(paused_run_folder)]) == ExitCode.OK
    assert PausedBoard.resumed == [1]
