"""``onrig run`` after the end of a run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.completeness import Completeness, ItemCount
from onrig.tools import run, running
from onrig.tools.reports.run import charts
from onrig.tools.running import Plan
from tests.runtime.samples import PENDULUM


class EndedSupervisor:
    """A supervisor whose run ends at once."""

    has_started = True
    actuators = "safe"
    completeness = Completeness(complete=True, rows=ItemCount(3, 3))

    def __init__(self, *args: object, resumes: bool, signals: bool) -> None:
        pass

    def run(self) -> tuple[int, str]:
        return ExitCode.OK, "completed"


def test_an_interrupt_after_the_end_of_the_run_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers_seen: list[object] = []

    def record_handler(folder: Path, config: RunConfig) -> None:
        handlers_seen.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(running, "Supervisor", EndedSupervisor)
    monkeypatch.setattr(run, "open_keyboard", lambda: None)
    monkeypatch.setattr(run, "_conclude", record_handler)
    handler_before = signal.getsignal(signal.SIGINT)
    assert run._supervise(Plan("pendulum", PENDULUM, tmp_path, None), lambda: None) == ExitCode.OK
    assert handlers_seen == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is handler_before
    assert "data complete: 3 rows" in capsys.readouterr().out


def test_a_plot_that_cannot_be_drawn_costs_a_line_and_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_error(folder: Path, config: RunConfig) -> None:
        raise ValueError("Key backend: 'module://nowhere' is not a valid value\nfor backend")

    (tmp_path / "summary.json").write_text('{"normalized_last20": 0.75}')
    monkeypatch.setattr(running, "Supervisor", EndedSupervisor)
    monkeypatch.setattr(run, "open_keyboard", lambda: None)
    monkeypatch.setattr(charts, "draw_learning_curve", raise_error)
    assert run._supervise(Plan("pendulum", PENDULUM, tmp_path, None), lambda: None) == ExitCode.OK
    captured = capsys.readouterr()
    assert "performance: normalised reward 0.75, last 20 training episodes (0 random, 1 reference)\n" in captured.out
    assert "data complete: 3 rows" in captured.out
    line = captured.err.splitlines()[-1]
    assert line == "onrig run: learning_curve.png was not drawn: Key backend: 'module://nowhere' is not a valid value"


@pytest.mark.parametrize("has_started", [True, False])
def test_an_interrupt_removes_only_a_run_that_never_started(
    has_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedSupervisor(EndedSupervisor):
        def run(self) -> tuple[int, str]:
            self.has_started = has_started
            raise KeyboardInterrupt

    undo_calls: list[None] = []
    monkeypatch.setattr(running, "Supervisor", InterruptedSupervisor)
    monkeypatch.setattr(run, "open_keyboard", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        run._supervise(Plan("pendulum", PENDULUM, tmp_path, None), lambda: undo_calls.append(None))
    assert bool(undo_calls) is not has_started
