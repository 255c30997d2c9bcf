"""Failures of the supervisor itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.supervise.child import Child
from onrig.runtime.supervise.supervisor import Supervisor
from tests.runtime.samples import PENDULUM


class Ended:
    """A child that notes how long it was given."""

    def __init__(self, name: str, graces: dict[str, float]) -> None:
        self.name, self._graces = name, graces

    def end(self, grace_s: float, *, send_sigterm: bool = True) -> int:
        assert send_sigterm
        self._graces[self.name] = grace_s
        return 0

    def close(self) -> None:
        pass


def test_a_supervisor_that_fails_lets_the_loop_disarm_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graces: dict[str, float] = {}

    def fail(self: Supervisor) -> tuple[int, str]:
        self.has_started = True
        process_group: Any = self.process_group
        process_group.device, process_group.control = Ended("device", graces), Ended("control", graces)
        process_group.replay.child, process_group.learner.child = Ended("replay", graces), Ended("learner", graces)
        raise RuntimeError("out of order")

    monkeypatch.setattr(Supervisor, "_supervise", fail)
    supervisor = Supervisor(PENDULUM, tmp_path, None, lambda report: None)
    with pytest.raises(RuntimeError, match="out of order"):
        supervisor.run()
    supervisor._reports.close(70, "out of order")
    assert list(graces) == ["control", "learner", "replay", "device"]
    assert graces["control"] >= 1.0
    assert graces["learner"] == graces["replay"] == graces["device"] == 0.0


class Ending(Supervisor):
    """A supervisor whose loop has ended, and whose replay process is out of the way until it is started again."""

    def __init__(self, folder: Path, *, starts_in: int, impatient_at: int) -> None:
        super().__init__(PENDULUM, folder, None, lambda report: None)
        self._reports.close(ExitCode.OK, "")  # nothing more is written
        self.looks = 0
        self.has_started = True
        self._starts_in, self._impatient_at = starts_in, impatient_at
        self.replay = SimpleNamespace(child=None, n_starts=2, is_abandoned=False)
        self._process_group: Any = SimpleNamespace(replay=self.replay, revive=self._revive)
        self._requests: Any = SimpleNamespace(has_repeated_request=False)
        self.finished: list[float] = []

    def _listen(self, timeout_s: float) -> None:
        self.looks += 1
        self._requests.has_repeated_request = self.looks >= self._impatient_at
        assert self.looks < 100, "it waits for ever"

    def _revive(self) -> None:
        if self.looks == self._starts_in:
            self.replay.child = SimpleNamespace(poll=lambda: ExitCode.OK)

    def _finish(self, child: Child, grace_s: float, *, send_sigterm: bool) -> None:
        self.finished.append(grace_s)


def test_a_replay_process_that_is_to_be_started_again_is_awaited_until_somebody_is_impatient(tmp_path: Path) -> None:
    patient = Ending(tmp_path, starts_in=50, impatient_at=1000)
    patient._finish_replay()
    assert (patient.looks, patient.finished) == (50, [5.0])
    impatient = Ending(tmp_path, starts_in=50, impatient_at=3)
    impatient._finish_replay()
    assert (impatient.looks, impatient.finished) == (3, [])


def test_one_that_has_just_been_started_is_ended_at_once_when_somebody_is_impatient(tmp_path: Path) -> None:
    supervisor = Ending(tmp_path, starts_in=3, impatient_at=3)
    supervisor._finish_replay()
    assert (supervisor.looks, supervisor.finished) == (3, [0.0])


class Crashed(Supervisor):
    """A supervisor whose loop has just ended."""

    def _end(self) -> None:
        pass


@pytest.mark.parametrize(
    ("standing", "code", "fault"),
    [
        (None, 1, FaultName.PROGRAM),  # a traceback
        (FaultName.DEVICE_ESTOP, 1, FaultName.DEVICE_ESTOP),
        (None, ExitCode.HARDWARE, None),
    ],
)
def test_a_loop_that_crashed_is_a_fault_of_the_program_unless_one_stands(
    tmp_path: Path, standing: FaultName | None, code: int, fault: FaultName | None
) -> None:
    supervisor = Crashed(PENDULUM, tmp_path, None, lambda report: None)
    supervisor._requests = SimpleNamespace(stop_level=0)  # type: ignore[assignment]
    supervisor._reports.fault = standing
    ended, _ = supervisor._exit_result(code)
    assert ended == (ExitCode.INTERNAL if code == 1 else code)
    assert supervisor._reports.fault is fault
    supervisor._reports.close(ended, "")


def test_without_room_in_shared_memory_a_run_ends_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    supervisor = Supervisor(PENDULUM, tmp_path, None, lambda report: None)
    code, reason = supervisor.run()
    assert code == ExitCode.PREFLIGHT
    assert "No space left on device; a run of this rig needs" in reason
    assert not supervisor.has_started
    assert not list(Path("/dev/shm").glob(f"onrig-{os.getpid()}-*"))
