"""Processes of a run: arguments, restarts and reports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import UNSET

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.replay.seeds import NETWORKS
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.shm.board import Board, Word
from onrig.runtime.supervise.child import Child
from onrig.runtime.supervise.reports import Reports
from onrig.runtime.supervise.revival import RestartableProcess

DEVICE: Final = "device"
CONTROL: Final = "control"


class StartFailed(Exception):
    """Raised if a process did not start; ``code`` is the run's exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ProcessGroup:
    """Device (twin or driver), control process, replay process and learner; the last two are restarted."""

    def __init__(
        self, config: RunConfig, folder: Path, shm: Path, board: Board, reports: Reports, *, resumes: bool
    ) -> None:
        self._config, self._folder, self._shm, self._board = config, folder, shm, board
        self._reports, self._resumes = reports, resumes
        self.device: Child | None = None
        self.control: Child | None = None
        limit_s = config.supervision.hang_limit_s
        self.replay = RestartableProcess("replay", self._launch_replay, limit_s, reports.warn)
        self.learner = RestartableProcess("learner", self._launch_learner, limit_s, reports.warn)
        self.device_failure: tuple[FaultName, str] | None = None
        """Fault and message of a twin or driver that failed."""
        self.peaks_mb: dict[str, float] = {}
        """Peak resident memory of each process."""

    @property
    def running(self) -> Iterator[Child]:
        """Running processes, in the order of their start."""
        for child in (self.device, self.replay.child, self.learner.child, self.control):
            if child is not None:
                yield child

    # -- starting --------------------------------------------------------------------------------------------------

    def start_device(self) -> Child:
        """Start the twin or the driver; raises StartFailed, like the methods below."""
        config = str(self._folder / "config.yaml")
        if self._config.device.driver is not UNSET:
            self.device = self._start(DEVICE, "onrig.runtime.driver.main", [config, str(self._shm)])
        else:
            self.device = self._start(DEVICE, "onrig.sim.twin.main", [config, "--folder", str(self._shm)])
        return self.device

    def start_control(self, port: str) -> Child:
        """Start the loop on the device behind a port."""
        arguments = [str(self._folder), str(self._shm), port]
        self.control = self._start(CONTROL, "onrig.runtime.control.main", arguments)
        return self.control

    def start_restartable(self, process: RestartableProcess) -> Child:
        """Start the replay process or the learner for the first time."""
        try:
            process.start()
        except OSError as error:
            raise _cannot_start(process.name, error) from None
        assert process.child is not None
        return process.child

    def _start(self, name: str, module: str, arguments: list[str]) -> Child:
        try:
            return self._launch(name, module, arguments)
        except OSError as error:
            raise _cannot_start(name, error) from None

    def _launch(self, name: str, module: str, arguments: list[str]) -> Child:
        self._board[Word.RESTARTS] += 1
        return Child(name, module, arguments, self._folder / "stderr.log")

    def _launch_replay(self) -> Child:
        resume = ["--resume"] if self._resumes else []
        return self._launch("replay", "onrig.sim.replay", [str(self._folder), str(self._shm), *resume])

    def _launch_learner(self) -> Child:
        state = self._folder / "learner"
        state.mkdir(exist_ok=True)
        arguments = [str(self._folder / "config.yaml"), f"ipc://{self._shm}/learner", "--state", str(state)]
        if (start := self._folder / NETWORKS).is_file():
            arguments += ["--start", str(start)]
        return self._launch("learner", "onrig.learner.main", arguments)

    # -- watching --------------------------------------------------------------------------------------------------

    def note(self, child: Child) -> None:
        """Store the reports of a process."""
        for report in child.reports():
            if self.device_failure is not None and report.values.get("fault") == FaultName.LINK_CLOSED:
                continue  # not an unplugged cable: the connection closed because twin or driver failed
            self._reports.note(report)
            if child.name == DEVICE and report.kind == "error" and "fault" in report.values:
                self.device_failure = FaultName(str(report.values["fault"])), report.message
        self.peaks_mb[child.name] = max(self.peaks_mb.get(child.name, 0.0), child.peak_rss_mb)

    def revive(self) -> None:
        """Restart processes that have ended or hang, unless they do so repeatedly."""
        board, now_s = self._board, time.monotonic()
        run_progress = board[Word.BARRIER]  # always 0 in real time, where only the lifetime matters
        ended = board[Word.ENDED] == 1  # the other processes end as well, possibly before the loop's
        self.replay.check(now_s, progress=board[Word.REPLAY_HEARTBEATS], run_progress=run_progress, may_end=ended)
        learner = self.learner.child
        self.learner.check(
            now_s, progress=0 if learner is None else learner.n_reports, run_progress=run_progress, may_end=ended
        )

    def statistics(self) -> dict[str, object]:
        """Return the figures for ``summary.json``."""
        restartable = (self.replay, self.learner)
        return {
            "started_again": {p.name: max(0, p.n_starts - 1) for p in restartable},
            "hung": {p.name: p.n_hangs for p in restartable},
            "peak_rss_mb": {name: round(peak, 1) for name, peak in self.peaks_mb.items()},
        }


def _cannot_start(name: str, error: OSError) -> StartFailed:
    return StartFailed(f"{name} could not be started: {error.strerror or error}", ExitCode.PREFLIGHT)
