"""``onrig run`` after the end of a run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.wholeness import Counted, Whole
from onrig.tools import run
from tests.runtime.samples import PENDULUM


class Over:
    """A supervisor whose run ends at once."""

    started = True
    actuators = "safe"
    whole = Whole(complete=True, rows=Counted(3, 3))

    def __init__(self, *of: object, resumes: bool) -> None:
        pass

    def run(self) -> tuple[int, str]:
        return ExitCode.OK, "completed"


def test_an_interrupt_after_the_end_of_the_run_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meanwhile: list[object] = []

    def conclude(folder: Path, config: RunConfig) -> None:
        meanwhile.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(run, "Supervisor", Over)
    monkeypatch.setattr(run, "keyboard", lambda: None)
    monkeypatch.setattr(run, "_conclude", conclude)
    before = signal.getsignal(signal.SIGINT)
    assert run._supervise(PENDULUM, tmp_path, None, lambda: None, resumes=False) == ExitCode.OK
    assert meanwhile == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is before
    assert "data complete: 3 rows" in capsys.readouterr().out


@pytest.mark.parametrize("started", [True, False])
def test_an_interrupt_takes_back_only_a_run_that_never_started(
    started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Over):
        def run(self) -> tuple[int, str]:
            self.started = started
            raise KeyboardInterrupt

    taken_back: list[None] = []
    monkeypatch.setattr(run, "Supervisor", Interrupted)
    monkeypatch.setattr(run, "keyboard", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        run._supervise(PENDULUM, tmp_path, None, lambda: taken_back.append(None), resumes=False)
    assert bool(taken_back) is not started
