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


class EndedChild:
    """A child that records how much time it was given."""

    def __init__(self, name: str, grace_periods_s: dict[str, float]) -> None:
        self.name, self._grace_periods_s = name, grace_periods_s

    def end(self, grace_s: float, *, send_sigterm: bool = True) -> int:
        assert send_sigterm
        self._grace_periods_s[self.name] = grace_s
        return 0

    def close(self) -> None:
        pass


def test_a_supervisor_that_fails_lets_the_loop_disarm_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grace_periods_s: dict[str, float] = {}

    def raise_error(self: Supervisor) -> tuple[int, str]:
        self.has_started = True
        process_group: Any = self.process_group
        process_group.device, process_group.control = (
            EndedChild("device", grace_periods_s),
            EndedChild("control", grace_periods_s),
        )
        process_group.replay.child, process_group.learner.child = (
            EndedChild("replay", grace_periods_s),
            EndedChild("learner", grace_periods_s),
        )
        raise RuntimeError("out of order")

    monkeypatch.setattr(Supervisor, "_supervise", raise_error)
    supervisor = Supervisor(PENDULUM, tmp_path, None, lambda report: None)
    with pytest.raises(RuntimeError, match="out of order"):
        supervisor.run()
    supervisor._reports.close(70, "out of order")
    assert list(grace_periods_s) == ["control", "learner", "replay", "device"]
    assert grace_periods_s["control"] >= 1.0
    assert grace_periods_s["learner"] == grace_periods_s["replay"] == grace_periods_s["device"] == 0.0


class EndingSupervisor(Supervisor):
    """A supervisor whose loop has ended, and whose replay process is absent until restarted."""

    def __init__(self, folder: Path, *, starts_at_poll: int, impatient_at_poll: int) -> None:
        super().__init__(PENDULUM, folder, None, lambda report: None)
        self._reports.close(ExitCode.OK, "")  # nothing more is written
        self.n_polls = 0
        self.has_started = True
        self._starts_at_poll, self._impatient_at_poll = starts_at_poll, impatient_at_poll
        self.replay = SimpleNamespace(child=None, n_starts=2, is_abandoned=False)
        self._process_group: Any = SimpleNamespace(replay=self.replay, revive=self._revive)
        self._requests: Any = SimpleNamespace(has_repeated_request=False)
        self.finish_graces_s: list[float] = []

    def _listen(self, timeout_s: float) -> None:
        self.n_polls += 1
        self._requests.has_repeated_request = self.n_polls >= self._impatient_at_poll
        assert self.n_polls < 100, "the supervisor waits forever"

    def _revive(self) -> None:
        if self.n_polls == self._starts_at_poll:
            self.replay.child = SimpleNamespace(poll=lambda: ExitCode.OK)

    def _finish(self, child: Child, grace_s: float, *, send_sigterm: bool) -> None:
        self.finish_graces_s.append(grace_s)


def test_a_replay_process_due_for_a_restart_is_awaited_until_the_user_is_impatient(tmp_path: Path) -> None:
    patient = EndingSupervisor(tmp_path, starts_at_poll=50, impatient_at_poll=1000)
    patient._finish_replay()
    assert (patient.n_polls, patient.finish_graces_s) == (50, [5.0])
    impatient = EndingSupervisor(tmp_path, starts_at_poll=50, impatient_at_poll=3)
    impatient._finish_replay()
    assert (impatient.n_polls, impatient.finish_graces_s) == (3, [])


def test_a_freshly_started_process_is_ended_at_once_if_the_user_is_impatient(tmp_path: Path) -> None:
    supervisor = EndingSupervisor(tmp_path, starts_at_poll=3, impatient_at_poll=3)
    supervisor._finish_replay()
    assert (supervisor.n_polls, supervisor.finish_graces_s) == (3, [0.0])


class CrashedSupervisor(Supervisor):
    """A supervisor whose loop has just ended."""

    def _end(self) -> None:
        pass


@pytest.mark.parametrize(
    ("latched_fault", "code", "fault"),
    [
        (None, 1, FaultName.PROGRAM),  # a traceback
        (FaultName.DEVICE_ESTOP, 1, FaultName.DEVICE_ESTOP),
        (None, ExitCode.HARDWARE, None),
    ],
)
def test_a_crashed_loop_is_a_program_fault_unless_another_fault_exists(
    tmp_path: Path, latched_fault: FaultName | None, code: int, fault: FaultName | None
) -> None:
    supervisor = CrashedSupervisor(PENDULUM, tmp_path, None, lambda report: None)
    supervisor._requests = SimpleNamespace(stop_level=0)  # type: ignore[assignment]
    supervisor._reports.fault = latched_fault
    exit_code, _ = supervisor._exit_result(code)
    assert exit_code == (ExitCode.INTERNAL if code == 1 else code)
    assert supervisor._reports.fault is fault
    supervisor._reports.close(exit_code, "")


def test_without_room_in_shared_memory_a_run_ends_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_fallocate(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail_fallocate)
    supervisor = Supervisor(PENDULUM, tmp_path, None, lambda report: None)
    code, reason = supervisor.run()
    assert code == ExitCode.PREFLIGHT
    assert "No space left on device; a run of this rig needs" in reason
    assert not supervisor.has_started
    assert not list(Path("/dev/shm").glob(f"onrig-{os.getpid()}-*"))
