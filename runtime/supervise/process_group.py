"""Processes of a run: their arguments, restarts and reports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import UNSET

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.replay.seeds import NETWORKS
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.shm.board import Board, Word
from onrig.runtime.shm.images import Images
from onrig.runtime.supervise.child import Child
from onrig.runtime.supervise.reports import Reports
from onrig.runtime.supervise.revival import RestartableProcess

DEVICE: Final = "device"
CONTROL: Final = "control"
_MIN_CAMERA_HANG_S: Final = 2.0
_CAMERA_HANG_AGES: Final = 5
"""Time without an image after which a camera's process is restarted, as a multiple of the images' maximum age."""


class StartFailed(Exception):
    """Raised if a process did not start; ``code`` is the run's exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ProcessGroup:
    """Device (twin or driver), cameras, control process, replay process and learner; all but the device and the control
    process are restarted."""

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
        self.cameras: list[RestartableProcess] = []
        """Processes of the cameras in use, in the rig's order; empty if a twin renders their images."""
        self._images: Images | None = None
        self.device_failure: tuple[FaultName, str] | None = None
        """Fault and message of the twin or driver, if it has failed."""
        self.peaks_mb: dict[str, float] = {}
        """Peak resident memory (MB) of each process."""

    @property
    def running(self) -> Iterator[Child]:
        """Running processes, in the order of their start."""
        cameras = [process.child for process in self.cameras]
        for child in (self.device, *cameras, self.replay.child, self.learner.child, self.control):
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

    def start_cameras(self) -> Iterator[Child]:
        """Start the processes of the cameras and yield each, unless a twin of this run renders the images."""
        if self._config.device.cameras is UNSET or not self._config.cameras:
            return
        self._images = Images(self._shm, self._config.cameras)
        for camera in self._config.cameras:
            limit_s = max(_MIN_CAMERA_HANG_S, _CAMERA_HANG_AGES * camera.max_age_ms * 1e-3)
            name = f"camera '{camera.name}'"
            launch = partial(self._launch_camera, name, camera.name)
            limit_s = min(limit_s, self._config.supervision.hang_limit_s)
            process = RestartableProcess(
                name, launch, limit_s, self._reports.warn, transient_codes=(ExitCode.PREFLIGHT, ExitCode.HARDWARE)
            )
            self.cameras.append(process)
            yield self.start_restartable(process)

    def start_control(self, port: str) -> Child:
        """Start the loop on the device behind a port."""
        arguments = [str(self._folder), str(self._shm), port]
        self.control = self._start(CONTROL, "onrig.runtime.control.main", arguments)
        return self.control

    def start_restartable(self, process: RestartableProcess) -> Child:
        """Start the replay process, the learner or a camera for the first time."""
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

    def _launch_camera(self, name: str, camera: str) -> Child:
        arguments = [str(self._folder / "config.yaml"), str(self._shm), camera]
        return self._launch(name, "onrig.runtime.camera.main", arguments)

    # -- watching --------------------------------------------------------------------------------------------------

    def collect_reports(self, child: Child) -> None:
        """Store the reports of a process."""
        for report in child.reports():
            if self.device_failure is not None and report.values.get("fault") == FaultName.LINK_CLOSED:
                continue  # not an unplugged cable: the connection closed because the twin or driver failed
            self._reports.record(report)
            if child.name == DEVICE and report.kind == "error" and "fault" in report.values:
                self.device_failure = FaultName(str(report.values["fault"])), report.message
        self.peaks_mb[child.name] = max(self.peaks_mb.get(child.name, 0.0), child.peak_rss_mb)

    def revive(self) -> None:
        """Restart processes that have ended or hang, unless they do so repeatedly."""
        board, now_s = self._board, time.monotonic()
        run_progress = board[Word.BARRIER]  # always 0 in real time, where only the lifetime matters
        has_loop_ended = board[Word.ENDED] == 1  # the other processes then end as well, possibly before the loop's own
        self.replay.check(
            now_s, progress=board[Word.REPLAY_HEARTBEATS], run_progress=run_progress, may_end=has_loop_ended
        )
        learner = self.learner.child
        self.learner.check(
            now_s,
            progress=0 if learner is None else learner.n_reports,
            run_progress=run_progress,
            may_end=has_loop_ended,
        )
        if self._images is not None and not has_loop_ended:
            for index, camera in enumerate(self.cameras):
                camera.check(now_s, progress=self._images.count(index), may_end=False)

    def take_cameras(self) -> list[Child]:
        """Return the running processes of the cameras, and stop watching them."""
        if self._images is not None:
            self._images.close()
            self._images = None
        children = [camera.child for camera in self.cameras if camera.child is not None]
        for camera in self.cameras:
            camera.child = None
        return children

    def statistics(self) -> dict[str, object]:
        """Return the figures for ``summary.json``."""
        restartable = (self.replay, self.learner, *self.cameras)
        return {
            "started_again": {p.name: max(0, p.n_starts - 1) for p in restartable},
            "hung": {p.name: p.n_hangs for p in restartable},
            "peak_rss_mb": {name: round(peak, 1) for name, peak in self.peaks_mb.items()},
        }


def _cannot_start(name: str, error: OSError) -> StartFailed:
    return StartFailed(f"{name} could not be started: {error.strerror or error}", ExitCode.PREFLIGHT)
