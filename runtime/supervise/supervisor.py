"""Starts the processes of a run, watches them, and ends them in order: the actuators first.

What may fail does not stop the loop: a dead learner or replay process is started again.  What drives (control) or is
driven (the device) ends the run when it ends.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from runtime.config.schema import RunConfig
from runtime.exit_codes import ExitCode
from runtime.record import RecordLayout
from runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from runtime.shm.ring import ring_bytes
from runtime.shm.segment import Segment, create_folder, remove_folder, sweep_folders
from runtime.shm.slot import SLOT_BYTES, SLOT_SCHEMA
from runtime.supervise.child import Child
from runtime.supervise.events import EventFile
from runtime.supervise.report import Report
from runtime.supervise.run_folder import complete_summary

RING_RECORDS: Final = 8192
"""At 1 kHz the loop goes on recording for eight seconds without a replay process."""
_START_TIMEOUT_S: Final = 30.0
_RESTARTS: Final = 5
_TWIN, _REPLAY, _LEARNER, _CONTROL = "device", "replay", "learner", "control"
_ENDING: Final = ((_CONTROL, 5.0, False), (_REPLAY, 20.0, False), (_LEARNER, 10.0, True), (_TWIN, 5.0, True))
"""Order of ending; seconds to wait; whether to ask with SIGTERM or to expect the process to end by itself."""

_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OnReport = Callable[[Report], None]


class StartFailed(Exception):
    """A process did not come up; ``code`` is the run's exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _may_interrupt(signum: int) -> bool:
    """Whether a signal asks for the end: not a hang-up that was set to be ignored (nohup)."""
    return signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN


def _known(code: int) -> int:
    """A process's exit code as a run's: whatever is none of ours was a crash."""
    return code if code in set(ExitCode) else ExitCode.INTERNAL


class Supervisor:
    """One run, from nothing to nothing: no process and no shared memory is left behind."""

    def __init__(self, config: RunConfig, run_folder: Path, port: str | None, on_report: OnReport) -> None:
        self._config, self._folder, self._port, self._on_report = config, run_folder, port, on_report
        self._children: dict[str, Child] = {}
        self._peaks: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        self._errors: list[str] = []
        self._interrupts = 0
        self._events = EventFile(run_folder / "events.jsonl")
        self._shm = Path()
        self.started = False
        """Whether the loop ever came up; before that nothing moved and nothing was recorded."""

    def run(self) -> tuple[int, str]:
        """Run to the end; returns (exit code, reason in one line)."""
        for folder in sweep_folders():
            self._events.write("swept", folder=str(folder))
        previous = {s: signal.signal(s, self._interrupt) for s in _INTERRUPTS if _may_interrupt(s)}
        self._shm = create_folder()
        try:
            layout = self._create_segments()
            self._board = Board(layout)
            code, reason = self._supervise()
        finally:
            for child in reversed(self._children.values()):  # what was started last drives
                child.end(0.0)
                child.close()
            for s, handler in previous.items():
                signal.signal(s, handler)
            remove_folder(self._shm)
        self._events.write("ended", code=code, reason=reason)
        self._events.close()
        complete_summary(self._folder, reason, {k: round(v, 1) for k, v in self._peaks.items()})
        return code, reason

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._interrupts += 1

    def _create_segments(self) -> Segment:
        rig = self._config.rig
        layout = RecordLayout(len(rig.sensors), len(rig.signals), len(rig.actuators))
        Segment.create(self._shm / "ring", ring_bytes(layout, RING_RECORDS), layout.schema).close()
        Segment.create(self._shm / "slot", SLOT_BYTES, SLOT_SCHEMA).close()
        return Segment.create(self._shm / "board", BOARD_BYTES, BOARD_SCHEMA)

    # -- starting --------------------------------------------------------------------------------------------------

    def _supervise(self) -> tuple[int, str]:
        try:
            port = self._port
            if port is None:
                self._start(_TWIN, "sim.twin.main", [str(self._folder / "config.yaml")])
                port = str(self._await_ready(_TWIN).values["path"])
            self._port = port
            self._start_replay()
            self._await_ready(_REPLAY)
            if self._config.local_learner:
                self._start_learner()
            self._start(_CONTROL, "runtime.control.main", [str(self._folder), str(self._shm), port])
            self._await_ready(_CONTROL)
            self.started = True
        except StartFailed as failure:
            self._end()
            return failure.code, str(failure)
        return self._watch()

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        self._children[name] = Child(name, module, arguments, self._folder / "stderr.log")

    def _start_replay(self) -> None:
        # Synthetic experiences need the plant, which only the twin's side of the house has.
        synthetic = self._config.selection.synthetic is not None
        module = "sim.synthetic.replay" if synthetic else "runtime.replay.main"
        self._start(_REPLAY, module, [str(self._folder), str(self._shm)])

    def _start_learner(self) -> None:
        state = self._folder / "learner"
        state.mkdir(exist_ok=True)
        arguments = [str(self._folder / "config.yaml"), self.endpoint, "--state", str(state)]
        self._start(_LEARNER, "learner.main", arguments)

    @property
    def endpoint(self) -> str:
        """Where learners of this run connect."""
        return f"ipc://{self._shm}/learner"

    def _await_ready(self, name: str) -> Report:
        child = self._children[name]
        limit = time.monotonic() + _START_TIMEOUT_S
        while True:
            code = child.poll()
            for report in child.reports():
                self._note(report)
                if report.kind == "ready":
                    return report
            if code is not None:
                raise StartFailed(self._why(name, code), _known(code))
            if self._interrupts:
                raise StartFailed("interrupted", ExitCode.INTERRUPTED)
            if time.monotonic() > limit:
                raise StartFailed(f"{name} did not come up within {_START_TIMEOUT_S:g} s", ExitCode.INTERNAL)
            time.sleep(0.005)

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> tuple[int, str]:
        while True:
            self._listen(0.1)
            code = self._children[_CONTROL].poll()
            if code is not None:
                self._listen(0.0)
                return self._ended(code)
            if self._interrupts:
                self._end()
                return ExitCode.INTERRUPTED, "interrupted"
            self._revive(_REPLAY, self._start_replay)
            if self._config.local_learner:
                self._revive(_LEARNER, self._start_learner)
                if _LEARNER not in self._children and self._cannot_go_on():
                    self._end()
                    why = self._errors[-1] if self._errors else "see stderr.log"
                    return ExitCode.INTERNAL, f"the learner is gone for good: {why}"

    def _cannot_go_on(self) -> bool:
        """Without a learner: in lockstep no barrier opens any more; elsewhere the loop only lacks its first policy."""
        return self._config.lockstep or self._board[Word.POLICY] == 0

    def _listen(self, timeout_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            for child in self._children.values():
                if child.poll() is None:
                    selector.register(child, selectors.EVENT_READ)
            if selector.get_map():
                selector.select(timeout_s)
            else:
                time.sleep(timeout_s)
        for child in self._children.values():
            for report in child.reports():
                self._note(report)
            self._peaks[child.name] = max(self._peaks.get(child.name, 0.0), child.peak_rss_mb)

    def _note(self, report: Report) -> None:
        if report.kind == "error":
            self._errors.append(report.message)
        if report.kind in ("error", "warning", "event"):
            self._events.write(report.kind, source=report.source, message=report.message, **report.values)
        with contextlib.suppress(OSError):  # whoever was watching is gone; the rig goes on
            self._on_report(report)

    def _revive(self, name: str, start: Callable[[], None]) -> None:
        """Start a process again that ended by itself, a bounded number of times."""
        child = self._children.get(name)
        if child is None:
            return
        code = child.poll()
        # Once the loop has ended, so do the others: the loop's process may merely be the last to be gone.
        done = name == _LEARNER or self._board[Word.ENDED] == 1
        if code is None or (done and code == ExitCode.OK):
            return
        child.close()
        del self._children[name]
        n = self._restarts[name] = self._restarts.get(name, 0) + 1
        if n > _RESTARTS or code == ExitCode.CONFIGURATION:
            message = f"{name} ended with code {code} and is not started again; the loop goes on without it"
        else:
            message = f"{name} ended with code {code}; started again"
            start()
        self._note(Report("supervisor", "warning", message))

    def _ended(self, code: int) -> tuple[int, str]:
        """The loop has ended by itself, well or badly."""
        self._end()
        if self._interrupts:
            return ExitCode.INTERRUPTED, "interrupted"
        if code == 0:
            return ExitCode.OK, "completed"
        if code < 0:
            return ExitCode.INTERNAL, f"control was killed by signal {-code}; the device falls safe by its lease"
        return _known(code), self._why(_CONTROL, code)

    def _why(self, name: str, code: int) -> str:
        """The reason a process gave, or what can be said of one that gave none."""
        if self._errors and _known(code) == code:
            return self._errors[-1]
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        return f"{name} {how}; see {self._folder / 'stderr.log'}"

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Actuators, then processes, then files; once the first are safe, a second interrupt cuts waits short."""
        self._board[Word.STOP] = 1
        for name, grace_s, ask in _ENDING:
            child = self._children.pop(name, None)
            if name == _CONTROL:
                # Whatever wrote this word before, it is dead by the time the replay process may act on it.
                if child is not None:
                    # One that never came up has armed nothing, and may be waiting for a device that is not there.
                    self._finish(child, grace_s if self.started else 0.0, ask)
                self._board[Word.ENDED] = 1
            elif child is not None:
                self._finish(child, grace_s, ask)

    def _finish(self, child: Child, grace_s: float, ask: bool) -> None:
        limit = time.monotonic() + grace_s
        while not ask and child.poll() is None and time.monotonic() < limit:
            if self._interrupts > 1 and child.name != _CONTROL:
                break
            for report in child.reports():
                self._note(report)
            time.sleep(0.01)
        child.end(grace_s if ask else 0.0)
        for report in child.reports():
            self._note(report)
        self._peaks[child.name] = max(self._peaks.get(child.name, 0.0), child.peak_rss_mb)
        child.close()
