"""End of the replay process: final, or with a successor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from onrig.runtime.control.realtime import PARENT_VARIABLE
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.replay import main
from onrig.runtime.replay.checkpoint import CheckpointError
from tests.runtime.samples import PENDULUM


class ReplayProcessStub:
    """A replay process that only records how it ends."""

    endpoints = ("ipc://nowhere",)
    recovery = None
    is_finished = has_loop_ended = starts_run = took_over = False
    policy = 0

    def __init__(self, on_turn: Callable[[ReplayProcessStub], None]) -> None:
        self._on_turn = on_turn
        self.left: list[str] = []

    def run_once(self) -> bool:
        self._on_turn(self)
        return False

    def idle(self) -> None:
        pass

    def finish(self) -> None:
        self.left.append("finish")

    def abandon(self) -> None:
        self.left.append("abandon")


class Bench:
    """``main`` without anything that outlives it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.handlers: dict[str, Callable[[int, None], None]] = {}
        signals = SimpleNamespace(SIGTERM="term", SIGINT="int", SIG_IGN=None, signal=self.handlers.__setitem__)
        monkeypatch.setattr(main, "signal", signals)
        monkeypatch.setattr(main, "die_with_parent", lambda: None)
        monkeypatch.setattr(main, "claim", lambda *args: 0)
        monkeypatch.setattr(main, "load_started", lambda path: PENDULUM)
        monkeypatch.setattr(main, "report", lambda *args: True)

    def run(self, factory: Callable[..., ReplayProcessStub]) -> int:
        self._monkeypatch.setattr(main, "ReplayProcess", factory)
        return main.main(["run", "shm"])

    def terminate(self) -> None:
        self.handlers["term"](15, None)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getppid()))
    return Bench(monkeypatch)


def test_a_process_whose_loop_has_ended_finishes_the_run(bench: Bench) -> None:
    process = ReplayProcessStub(lambda p: setattr(p, "is_finished", True))
    assert bench.run(lambda *args, **kwargs: process) == ExitCode.OK
    assert process.left == ["finish"]


def test_a_process_asked_to_end_alone_leaves_the_run_to_a_successor(bench: Bench) -> None:
    process = ReplayProcessStub(lambda p: bench.terminate())
    assert bench.run(lambda *args, **kwargs: process) == ExitCode.INTERRUPTED
    assert process.left == ["abandon"]


def test_a_process_asked_to_end_after_the_loop_finishes_the_run(bench: Bench) -> None:
    def on_turn(process: ReplayProcessStub) -> None:
        process.has_loop_ended = True
        bench.terminate()

    process = ReplayProcessStub(on_turn)
    assert bench.run(lambda *args, **kwargs: process) == ExitCode.OK
    assert process.left == ["finish"]


@pytest.mark.parametrize("parent", [None, "nobody"], ids=["started by hand", "its supervisor is gone"])
def test_an_orphan_asked_to_end_finishes_the_run_because_no_successor_follows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, parent: str | None
) -> None:
    if parent is None:
        monkeypatch.delenv(PARENT_VARIABLE)
    else:
        monkeypatch.setenv(PARENT_VARIABLE, parent)
    process = ReplayProcessStub(lambda p: bench.terminate())
    assert bench.run(lambda *args, **kwargs: process) == ExitCode.OK
    assert process.left == ["finish"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device", "episodes.csv"), ExitCode.PREFLIGHT),
        (OSError(24, "Too many open files"), ExitCode.PREFLIGHT),
        (CheckpointError("no checkpoint is left"), ExitCode.CONFIGURATION),
    ],
)
def test_its_exit_code_distinguishes_temporary_from_permanent_failures(
    bench: Bench, error: Exception, code: ExitCode
) -> None:
    def raise_error(folder: Path, *args: object, **kwargs: object) -> ReplayProcessStub:
        raise error

    assert bench.run(raise_error) == code
