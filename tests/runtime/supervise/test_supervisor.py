"""What a supervisor does where it fails itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.supervise.supervisor import Supervisor

from tests.runtime.samples import PENDULUM


class Ended:
    """A child that notes how long it was given."""

    def __init__(self, name: str, graces: dict[str, float]) -> None:
        self.name, self._graces = name, graces

    def end(self, grace_s: float, *, ask: bool = True) -> int:
        assert ask
        self._graces[self.name] = grace_s
        return 0

    def close(self) -> None:
        pass


def test_a_supervisor_that_fails_lets_the_loop_disarm_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graces: dict[str, float] = {}

    def fail(self: Supervisor) -> tuple[int, str]:
        self.started = True
        crew: Any = self.crew
        crew.device, crew.control = Ended("device", graces), Ended("control", graces)
        crew.replay.child, crew.learner.child = Ended("replay", graces), Ended("learner", graces)
        raise RuntimeError("out of order")

    monkeypatch.setattr(Supervisor, "_supervise", fail)
    supervisor = Supervisor(PENDULUM, tmp_path, None, lambda report: None)
    with pytest.raises(RuntimeError, match="out of order"):
        supervisor.run()
    supervisor._chronicle.close(70, "out of order")
    assert list(graces) == ["control", "learner", "replay", "device"]
    assert graces["control"] >= 1.0
    assert graces["learner"] == graces["replay"] == graces["device"] == 0.0


def test_without_room_in_shared_memory_a_run_ends_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    supervisor = Supervisor(PENDULUM, tmp_path, None, lambda report: None)
    code, reason = supervisor.run()
    assert code == ExitCode.PREFLIGHT
    assert "No space left on device; a run of this rig needs" in reason
    assert not supervisor.started
    assert not list(Path("/dev/shm").glob(f"onrig-{os.getpid()}-*"))
