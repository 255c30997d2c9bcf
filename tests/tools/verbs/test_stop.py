"""Stopping and resuming a run whose shared memory is of another version."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.running import Running
from onrig.runtime.shm.segment import Segment
from onrig.tools.verbs import stop

WAITS = "import signal, sys; print(flush=True); sys.exit(signal.sigwait({{signal.{}}}) and 0)"


@pytest.fixture
def older(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor that ends when it gets the signal."""
    Segment.create(tmp_path / "board", 64, "an older board").close()
    code = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{request.param}]); {WAITS}"
    with subprocess.Popen([sys.executable, "-c", code.format(request.param)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize(("older", "options"), [("SIGTERM", []), ("SIGQUIT", ["--now"])], indirect=["older"])
def test_it_is_stopped_by_a_signal_and_what_nobody_confirms_is_told(
    older: subprocess.Popen[bytes],
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(stop, "running_rigs", lambda: [Running(older.pid, tmp_path, tmp_path)])
    assert stop.main(options) == ExitCode.HARDWARE
    assert older.wait() == 0
    said = capsys.readouterr()
    assert "laid out for another schema; asked by a signal instead" in said.out
    assert "actuators unconfirmed" in said.err


def test_it_is_not_resumed_and_not_taken_for_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Segment.create(tmp_path / "board", 64, "an older board").close()
    monkeypatch.setattr(stop, "running_rigs", lambda: [Running(1, tmp_path, tmp_path)])
    assert stop.resume([]) == ExitCode.PREFLIGHT
    assert "laid out for another schema" in capsys.readouterr().err
