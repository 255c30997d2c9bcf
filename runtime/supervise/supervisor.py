"""Supervisor: starts the processes of a run, watches them, and ends them in order, the actuators first.

A learner or replay process that dies is restarted and does not stop the loop.  The run ends when the control process or
the device ends.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode, run_exit_code
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.actuators import Actuators
from onrig.runtime.run_state.completeness import Completeness, assess_without_account
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import Report
from onrig.runtime.run_state.running import announce
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.shm.segment import create_folder, remove_folder, sweep_folders
from onrig.runtime.supervise.child import Child
from onrig.runtime.supervise.notify import Notifier, status_line
from onrig.runtime.supervise.post_mortem import PostMortem
from onrig.runtime.supervise.process_group import CONTROL, ProcessGroup, StartFailed
from onrig.runtime.supervise.reports import ReportCallback, Reports
from onrig.runtime.supervise.requests import Operator, Requests
from onrig.runtime.supervise.revival import Verdict, Watchdog
from onrig.runtime.supervise.run_folder import complete_summary, seal_run_folder
from onrig.runtime.supervise.segments import create_segments, shared_bytes

_START_TIMEOUT_S: Final = 60.0
_IMMEDIATE_STOP_GRACE_S: Final = 2.0
"""Grace period of the loop for an immediate stop; when it expires, the loop is killed, and the lease makes the device
safe."""
_FADE_PERIODS: Final = 4
_REPORT_GRACE_S: Final = 1.0
"""Time from SIGTERM to SIGKILL for a loop that has exceeded its grace period, in which it disarms if it still can."""
_TICKING_STATES: Final = (State.RESETTING, State.RUNNING, State.FALLBACK, State.FADING)
_CONTROL_GRACE_S, _LEARNER_GRACE_S, _CAMERA_GRACE_S, _DEVICE_GRACE_S = 5.0, 10.0, 2.0, 5.0
"""Grace periods of the processes; that of the replay process is unlimited while it makes progress."""


class InsufficientResources(Exception):
    """Raised if there are too few descriptors, or too little shared memory, for a run."""


class Supervisor:
    """Supervisor of one run from start to end, which leaves no process and no shared memory behind."""

    def __init__(
        self,
        config: RunConfig,
        run_folder: Path,
        port: str | None,
        on_report: ReportCallback,
        operator: Operator | None = None,
        *,
        resumes: bool = False,
        signals: bool = True,
    ) -> None:
        """``signals``: whether signals to this process stop the run, which is possible only in its main thread."""
        self._resumes, self._signals = resumes, signals
        self._config, self._folder, self._port = config, run_folder, port
        self._operator = operator
        self._watchdog = Watchdog(config.wall_period_ns * 1e-9)
        self._reported_stop_level = 0
        self._notifier = Notifier.from_environment(os.environ, os.getpid())
        self._reports = Reports(run_folder / "events.jsonl", on_report)
        self._post_mortem = PostMortem(config, run_folder, self._reports.write)
        self._reports.listeners.append(self._post_mortem.record)
        self._shm: Path | None = None
        self._process_group: ProcessGroup | None = None
        self.has_started = False
        """Whether the loop has started; until then the device is disarmed and nothing is recorded."""
        self.completeness: Completeness | None = None
        """Completeness of the run's data; None until the run has ended."""
        self.actuators = ""
        """State of the actuators at the end of the run, as confirmed by the device."""

    def run(self) -> tuple[int, str]:
        """Run to the end; return (exit code, reason in one line)."""
        for folder in sweep_folders():
            self._reports.write("swept", folder=str(folder))
        self._requests = Requests(signals=self._signals)
        try:
            code, reason = self._run()
            if self.has_started:
                code = self._complete_summary(code, reason)
            self._reports.close(code, reason)
            if self.has_started:
                seal_run_folder(self._folder)
        finally:
            self._requests.restore()  # only now, because an interrupt during the above would leave the files incomplete
        return code, reason

    def _run(self) -> tuple[int, str]:
        """Prepare and supervise the run; end all of its processes in every case."""
        try:
            self._prepare()
            return self._supervise()
        except InsufficientResources as error:
            return ExitCode.PREFLIGHT, str(error)
        finally:
            running_processes = [] if self._process_group is None else list(self._process_group.running)
            for child in reversed(running_processes):  # control first
                child.end(_IMMEDIATE_STOP_GRACE_S if child.name == CONTROL and self.has_started else 0.0)
                child.close()
            self._post_mortem.close()
            if self._shm is not None:
                remove_folder(self._shm)
            self._notifier.close()

    def _prepare(self) -> None:
        """Create the shared memory and the process group; raises InsufficientResources."""
        try:
            self._shm = create_folder()
            self._board = create_segments(self._shm, self._config)
            announce(self._shm, self._folder)
        except OSError as error:
            location, need_mb = error.filename or "/dev/shm", shared_bytes(self._config) / 1e6
            raise InsufficientResources(
                f"{location}: {error.strerror}; a run of this rig needs {need_mb:.0f} MB of shared memory and a few "
                "descriptors (see `df /dev/shm`, `ulimit -n`)"
            ) from None
        self._process_group = ProcessGroup(
            self._config, self._folder, self._shm, self._board, self._reports, resumes=self._resumes
        )
        self._post_mortem.open(self._shm)
        self._requests.attach_board(self._board)

    def _complete_summary(self, code: int, reason: str) -> int:
        """Add the supervisor's entries to the summary; return the exit code, corrected if data are missing."""
        rows = self._board[Word.ROWS_BEFORE] + self._board[Word.ROWS]
        code, self.actuators = Actuators.read(self._board).final_verdict(code, time.monotonic_ns(), time.time())
        self._reports.write("actuators", message=self.actuators)
        self.completeness = complete_summary(
            self._folder,
            {"exit_reason": reason, "fault": self._reports.fault_name(code), "actuators": self.actuators},
            self.process_group.statistics(),
            lambda: assess_without_account(rows, self._folder),
        )
        may_override = code in (ExitCode.OK, ExitCode.INTERRUPTED)  # other exit codes take precedence
        return ExitCode.INCOMPLETE if may_override and not self.completeness.complete else code

    @property
    def process_group(self) -> ProcessGroup:
        """Processes of the run; available once their shared memory has been created."""
        assert self._process_group is not None
        return self._process_group

    # -- starting --------------------------------------------------------------------------------------------------

    def _supervise(self) -> tuple[int, str]:
        try:
            port, process_group = self._port, self.process_group
            if port is None:
                port = str(self._await_ready(process_group.start_device()).values["path"])
            for camera in process_group.start_cameras():
                self._await_ready(camera)
            self._await_ready(process_group.start_restartable(process_group.replay))
            if self._config.local_learner:
                process_group.start_restartable(process_group.learner)
            self._await_ready(process_group.start_control(port))
            self.has_started = True
            self._notifier.ready(self._status())
        except StartFailed as failure:
            self._end()
            return failure.code, str(failure)
        return self._watch()

    def _await_ready(self, child: Child) -> Report:
        limit = time.monotonic() + _START_TIMEOUT_S
        while True:
            code = child.poll()
            for report in child.reports():
                self._reports.record(report)
                if report.kind == "ready":
                    return report
            if code is not None:
                code, reason = self._process_result(child.name, code)
                raise StartFailed(reason, code)
            self._poll_operator()
            if self._requests.stop_level:
                raise StartFailed(self._requests.reason, ExitCode.INTERRUPTED)
            if time.monotonic() > limit:
                raise StartFailed(f"{child.name} did not start within {_START_TIMEOUT_S:g} s", ExitCode.INTERNAL)
            time.sleep(0.005)

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> tuple[int, str]:
        while True:
            self._listen(0.1)
            self._notify_service()
            control = self.process_group.control
            assert control is not None
            code = control.poll()
            if code is not None:
                self._listen(0.0)
                return self._exit_result(code)
            if self._requests.stop_level:
                self._end()
                return ExitCode.INTERRUPTED, self._requests.reason
            if self._is_hung():
                self._end()
                return ExitCode.INTERNAL, f"the control process hung; {FAULTS[FaultName.LOOP_HUNG].hint}"
            self.process_group.revive()
            loss = self._fatal_loss()
            if loss is not None:
                self._end()
                return loss

    def _fatal_loss(self) -> tuple[ExitCode, str] | None:
        """Return the exit code and reason if a process that the run needs will not be restarted; otherwise None."""
        for camera in self.process_group.cameras:
            if camera.is_abandoned:
                reason = f"{camera.name} sends no images and will not be restarted: {self._last_error}"
                self._reports.latch(FaultName.CAMERA_SILENT, reason)
                return FAULTS[FaultName.CAMERA_SILENT].code, reason
        # In lockstep no barrier would open any more; in real time the loop needs the learner only for its first policy.
        if not self._config.lockstep and self._board[Word.POLICY]:
            return None
        reason = self._last_error
        if self.process_group.learner.is_abandoned and self._board[Word.ENDED] == 0:
            self._reports.latch(FaultName.LEARNER_GONE, reason)
            return ExitCode.INTERNAL, f"the learner exited and will not be restarted: {reason}"
        if self.process_group.replay.is_abandoned:
            return ExitCode.INTERNAL, f"the replay process exited and will not be restarted: {reason}"
        return None

    @property
    def _last_error(self) -> str:
        return self._reports.errors[-1] if self._reports.errors else "see stderr.log"

    def _notify_service(self) -> None:
        n_polls, is_hung = self._board[Word.POLLS], self._watchdog.is_hung
        self._notifier.update(time.monotonic(), n_polls, self._status(), is_hung=is_hung)

    def _status(self) -> str:
        board = self._board
        return status_line(board[Word.STATE], board[Word.EPISODE], board[Word.MISSED], is_hung=self._watchdog.is_hung)

    def _is_hung(self) -> bool:
        """Return whether the loop must be ended; report when it hangs and when it recovers."""
        board = self._board
        # Virtual time has no deadlines and some states have no ticks, but the loop polls for requests in all of them.
        is_ticking = not self._config.lockstep and board[Word.STATE] in _TICKING_STATES
        verdict = self._watchdog.check(
            time.monotonic(), board[Word.TICK if is_ticking else Word.POLLS], is_ticking=is_ticking
        )
        if verdict is Verdict.HUNG:
            self._reports.latch(FaultName.LOOP_HUNG, "without commands its device's lease expires")
        elif verdict is Verdict.RECOVERED:
            self._reports.fault = None
            self._reports.warn("the control process is ticking again")
        return verdict is Verdict.EXPIRED

    def _poll_operator(self) -> None:
        """Poll the operator; report the source of a stop request."""
        if self._operator is not None:
            for request in self._operator.requests():
                self._requests.add(request, self._operator.name)
        level = self._requests.stop_level
        if level > self._reported_stop_level:
            self._reported_stop_level = level
            self._reports.write("stop", by=self._requests.source, how="at once" if level > 1 else "fade out")

    def _listen(self, timeout_s: float) -> None:
        poll = select.poll()  # needs no descriptor
        descriptors = [child.fileno() for child in self.process_group.running if child.poll() is None]
        if self._operator is not None and self._operator.is_listening:
            descriptors.append(self._operator.fileno())
        for fd in descriptors:
            poll.register(fd, select.POLLIN)
        poll.poll(1000 * timeout_s)
        self._poll_operator()
        self._post_mortem.poll()
        for child in self.process_group.running:
            self.process_group.collect_reports(child)

    def _exit_result(self, code: int) -> tuple[int, str]:
        """End the run after its loop has ended by itself; return the exit code and the reason."""
        self._end()
        if self._requests.stop_level or code == ExitCode.INTERRUPTED:
            return ExitCode.INTERRUPTED, self._requests.reason
        if code == 0:
            return ExitCode.OK, "completed"
        if code < 0:
            self._reports.latch(FaultName.LOOP_KILLED, f"signal {-code}")
            return ExitCode.INTERNAL, f"control was killed by signal {-code}"
        if run_exit_code(code) != code and self._reports.fault is None:
            self._reports.latch(FaultName.PROGRAM, f"code {code}")
        return self._process_result(CONTROL, code)

    def _process_result(self, name: str, code: int) -> tuple[int, str]:
        """Return the exit code and reason for a run that ends because a process has ended; a failure of the twin or
        driver takes precedence."""
        failure = None if self._process_group is None else self._process_group.device_failure
        if failure is None:
            return run_exit_code(code), self._reports.end_reason(name, code)
        self._reports.fault, reason = failure  # regardless of the other processes' errors
        return FAULTS[self._reports.fault].code, reason

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Make the actuators safe, then finish the run's files and end its processes; once the actuators are safe, a
        second interrupt cuts the waits short."""
        self._notifier.stopping(f"ending, {self._status()}")
        self._requests.forward(1)
        process_group = self.process_group
        control, process_group.control = process_group.control, None
        # The loop, the other writer of this word, has ended by the time the replay process reads it.
        if control is not None:
            # A loop that never started has not armed anything, and may be waiting for a missing device.
            self._finish(control, _CONTROL_GRACE_S if self.has_started else 0.0, send_sigterm=False)
        self._board[Word.ENDED] = 1
        self._finish_replay()
        learner, process_group.learner.child = process_group.learner.child, None
        device, process_group.device = process_group.device, None
        cameras = [(camera, _CAMERA_GRACE_S) for camera in process_group.take_cameras()]
        for child, grace_s in ((learner, _LEARNER_GRACE_S), *cameras, (device, _DEVICE_GRACE_S)):
            if child is not None:
                self._finish(child, grace_s, send_sigterm=True)

    def _finish_replay(self) -> None:
        """Let the replay process finish the remaining records of the loop, restarting it if necessary."""
        replay = self.process_group.replay
        while not (replay.is_abandoned or replay.n_starts == 0):
            self._listen(0.02)
            self._notifier.extend_timeout(time.monotonic())
            if self.has_started:
                self.process_group.revive()
            child = replay.child
            if child is None and self._requests.has_repeated_request:
                return
            if child is not None and (
                child.poll() == ExitCode.OK or not self.has_started or self._requests.has_repeated_request
            ):
                replay.child = None
                self._finish(
                    child, 0.0 if self._requests.has_repeated_request else _CONTROL_GRACE_S, send_sigterm=False
                )
                return

    def _finish(self, child: Child, grace_s: float, *, send_sigterm: bool) -> None:
        start, min_s = time.monotonic(), min(grace_s, _IMMEDIATE_STOP_GRACE_S)
        if child.name == CONTROL:  # it may wait for one frame before fading, and for three more to confirm safe outputs
            period_s = self._config.wall_period_ns * 1e-9
            min_s += _FADE_PERIODS * period_s
            grace_s += _FADE_PERIODS * period_s + self._config.supervision.fade_s * max(
                1.0, period_s * self._config.rate_hz
            )
        while not send_sigterm and child.poll() is None:
            self._poll_operator()
            is_immediate = self._requests.stop_level > 1
            if child.name != CONTROL and self._requests.has_repeated_request:
                break
            if time.monotonic() - start > (min_s if is_immediate else grace_s):
                break
            self.process_group.collect_reports(child)
            time.sleep(0.01)
        child.end(grace_s if send_sigterm else _REPORT_GRACE_S if child.name == CONTROL else 0.0)
        self.process_group.collect_reports(child)
        child.close()
