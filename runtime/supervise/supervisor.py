"""Starts the processes of a run, watches them, and ends them in order: the actuators first.

What may fail does not stop the loop: a dead learner or replay process is started again.  What drives (control) or is
driven (the device) ends the run when it ends.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final

from runtime.config.schema import RunConfig
from runtime.exit_codes import ExitCode
from runtime.record import RecordLayout
from runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from runtime.shm.ring import ring_bytes
from runtime.shm.segment import Segment, create_folder, remove_folder, sweep_folders
from runtime.shm.slot import SLOT_BYTES, SLOT_SCHEMA
from runtime.shm.tape import TAPE_SCHEMA, tape_bytes
from runtime.supervise.actuators import Actuators
from runtime.supervise.child import Child
from runtime.supervise.chronicle import Chronicle, OnReport
from runtime.supervise.faults import FAULTS, FaultName
from runtime.supervise.keyboard import Keyboard
from runtime.supervise.notify import Notifier, status_line
from runtime.supervise.post_mortem import PostMortem
from runtime.supervise.report import Report
from runtime.supervise.requests import LIVE_VIEW, Requests
from runtime.supervise.restarts import Restarts
from runtime.supervise.run_folder import complete_summary
from runtime.supervise.running import announce
from runtime.supervise.states import State
from runtime.supervise.watchdog import Verdict, Watchdog
from runtime.view.layout import view_bytes, view_schema

RING_RECORDS: Final = 8192
"""At 1 kHz the loop goes on recording for eight seconds without a replay process."""
_START_TIMEOUT_S: Final = 60.0
_TWIN, _REPLAY, _LEARNER, _CONTROL = "device", "replay", "learner", "control"
_AT_ONCE_S: Final = 2.0
"""How long a loop that was told to stop at once may take before it is killed: its device then falls safe by itself."""
_MOVING: Final = (State.RESETTING, State.RUNNING, State.FALLBACK, State.FADING)
_ENDING: Final = ((_CONTROL, 5.0, False), (_REPLAY, 20.0, False), (_LEARNER, 10.0, True), (_TWIN, 5.0, True))
"""Order of ending; seconds to wait; whether to ask with SIGTERM or to expect the process to end by itself."""


class StartFailed(Exception):
    """A process did not come up; ``code`` is the run's exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _known(code: int) -> int:
    """A process's exit code as a run's: whatever is none of ours was a crash."""
    return code if code in set(ExitCode) else ExitCode.INTERNAL


class Supervisor:
    """One run, from nothing to nothing: no process and no shared memory is left behind."""

    def __init__(
        self,
        config: RunConfig,
        run_folder: Path,
        port: str | None,
        on_report: OnReport,
        keyboard: Keyboard | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        self._resumes = resumes
        self._config, self._folder, self._port = config, run_folder, port
        self._children: dict[str, Child] = {}
        self._peaks: dict[str, float] = {}
        self._restarts = {_REPLAY: Restarts(), _LEARNER: Restarts()}
        self._due_s: dict[str, float] = {}
        self._keyboard = keyboard
        self._watchdog = Watchdog(config.wall_period_ns * 1e-9)
        self._told_stop = 0
        self._service = Notifier.from_environment(os.environ, os.getpid())
        self._chronicle = Chronicle(run_folder / "events.jsonl", on_report)
        self._post_mortem = PostMortem(config, run_folder, self._chronicle.write)
        self._chronicle.listeners.append(self._post_mortem.note)
        self._shm = Path()
        self.started = False
        """Whether the loop ever came up; before that nothing moved and nothing was recorded."""
        self.actuators = ""
        """How the run left them, by the device's word."""

    def run(self) -> tuple[int, str]:
        """Run to the end; returns (exit code, reason in one line)."""
        for folder in sweep_folders():
            self._chronicle.write("swept", folder=str(folder))
        self._requests = Requests()
        self._shm = create_folder()
        try:
            self._board = Board(self._create_segments())
            self._post_mortem.open(self._shm)
            self._requests.show(self._board)
            announce(self._shm, self._folder)
            code, reason = self._supervise()
        finally:
            for child in reversed(self._children.values()):  # what was started last drives
                child.end(_AT_ONCE_S if child.name == _CONTROL and self.started else 0.0)
                child.close()
            self._requests.restore()
            self._post_mortem.close()
            remove_folder(self._shm)
            self._service.close()
        code, self.actuators = Actuators.read(self._board).settle(code, time.monotonic_ns(), time.time())
        self._chronicle.write("actuators", message=self.actuators)
        fault = self._chronicle.close(code, reason)
        complete_summary(self._folder, reason, self._peaks, fault, self.actuators)
        return code, reason

    def _create_segments(self) -> Segment:
        rig = self._config.rig
        layout = RecordLayout(len(rig.sensors), len(rig.signals), len(rig.actuators))
        Segment.create(self._shm / "ring", ring_bytes(layout, RING_RECORDS), layout.schema).close()
        Segment.create(self._shm / "slot", SLOT_BYTES, SLOT_SCHEMA).close()
        Segment.create(self._shm / "view", view_bytes(layout), view_schema(layout)).close()
        Segment.create(self._shm / "frames", tape_bytes(self._config.rate_hz), TAPE_SCHEMA).close()
        return Segment.create(self._shm / "board", BOARD_BYTES, BOARD_SCHEMA)

    # -- starting --------------------------------------------------------------------------------------------------

    def _supervise(self) -> tuple[int, str]:
        try:
            port = self._port
            if port is None:
                self._start(_TWIN, "sim.twin.main", [str(self._folder / "config.yaml"), "--folder", str(self._shm)])
                port = str(self._await_ready(_TWIN).values["path"])
            self._port = port
            self._start_replay()
            self._await_ready(_REPLAY)
            if self._config.local_learner:
                self._start_learner()
            self._start(_CONTROL, "runtime.control.main", [str(self._folder), str(self._shm), port])
            self._await_ready(_CONTROL)
            self.started = True
            self._service.ready(self._status())
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
        self._start(_REPLAY, module, [str(self._folder), str(self._shm), *(["--resume"] if self._resumes else [])])

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
                self._chronicle.note(report)
                if report.kind == "ready":
                    return report
            if code is not None:
                raise StartFailed(self._why(name, code), _known(code))
            self._hear()
            if self._requests.stop:
                raise StartFailed(self._interrupted(), ExitCode.INTERRUPTED)
            if time.monotonic() > limit:
                raise StartFailed(f"{name} did not come up within {_START_TIMEOUT_S:g} s", ExitCode.INTERNAL)
            time.sleep(0.005)

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> tuple[int, str]:
        while True:
            self._listen(0.1)
            self._tell_service()
            code = self._children[_CONTROL].poll()
            if code is not None:
                self._listen(0.0)
                return self._ended(code)
            if self._requests.stop:
                self._end()
                return ExitCode.INTERRUPTED, self._interrupted()
            if self._is_hung():
                self._end()
                return ExitCode.INTERNAL, f"the control process hung; {FAULTS[FaultName.LOOP_HUNG].hint}"
            self._revive(_REPLAY, self._start_replay)
            if self._config.local_learner:
                self._revive(_LEARNER, self._start_learner)
                gone = _LEARNER not in self._children and _LEARNER not in self._due_s
                if gone and self._cannot_go_on():
                    self._end()
                    why = self._chronicle.errors[-1] if self._chronicle.errors else "see stderr.log"
                    self._chronicle.latch(FaultName.LEARNER_GONE, why)
                    return ExitCode.INTERNAL, f"the learner is gone for good: {why}"

    def _tell_service(self) -> None:
        looks, hangs = self._board[Word.LOOKS], self._watchdog.hangs
        self._service.look(time.monotonic(), looks, self._status(), hangs=hangs)

    def _status(self) -> str:
        board = self._board
        return status_line(board[Word.STATE], board[Word.EPISODE], board[Word.MISSED], hangs=self._watchdog.hangs)

    def _cannot_go_on(self) -> bool:
        """Without a learner: in lockstep no barrier opens any more; elsewhere the loop only lacks its first policy."""
        return self._config.lockstep or self._board[Word.POLICY] == 0

    def _is_hung(self) -> bool:
        """Whether the loop is to be given up; says when it begins to hang and when it is back."""
        if self._config.lockstep:
            return False  # its time is the machine's: there is nothing to be late for
        moving = self._board[Word.STATE] in _MOVING
        verdict = self._watchdog.look(time.monotonic(), self._board[Word.TICK], moving=moving)
        if verdict is Verdict.HANGS:
            self._chronicle.latch(FaultName.LOOP_HUNG, "without commands its device's lease runs out")
        elif verdict is Verdict.BACK:
            self._chronicle.fault = None
            self._chronicle.warn("the control process makes ticks again")
        return verdict is Verdict.GONE

    def _interrupted(self) -> str:
        if self._requests.by == LIVE_VIEW:
            return "stopped from the live view"
        return "stopped by `onrig stop`" if self._requests.by == "onrig stop" else "interrupted"

    def _hear(self) -> None:
        """Keys; and a line on whoever asked for a stop."""
        if self._keyboard is not None:
            for request in self._keyboard.requests():
                self._requests.take(request, "keyboard")
        level = self._requests.stop
        if level > self._told_stop:
            self._told_stop = level
            self._chronicle.write("stop", by=self._requests.by, how="at once" if level > 1 else "fade out")

    def _listen(self, timeout_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            if self._keyboard is not None and self._keyboard.listening:
                selector.register(self._keyboard, selectors.EVENT_READ)
            for child in self._children.values():
                if child.poll() is None:
                    selector.register(child, selectors.EVENT_READ)
            if selector.get_map():
                selector.select(timeout_s)
            else:
                time.sleep(timeout_s)
        self._hear()
        self._post_mortem.look()
        for child in self._children.values():
            for report in child.reports():
                self._chronicle.note(report)
            self._peaks[child.name] = max(self._peaks.get(child.name, 0.0), child.peak_rss_mb)

    def _revive(self, name: str, start: Callable[[], None]) -> None:
        """Start a process again that ended by itself, unless it does so all the time."""
        if self._due_s.get(name, inf) <= time.monotonic():
            del self._due_s[name]
            start()
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
        now_s = time.monotonic()
        wait_s = None if code == ExitCode.CONFIGURATION else self._restarts[name].ended(now_s - child.born_s)
        if wait_s is None:
            message = f"{name} ended with code {code} and is not started again; the loop goes on without it"
        else:
            message = f"{name} ended with code {code}; started again" + (f" in {wait_s:g} s" if wait_s else "")
            self._due_s[name] = now_s + wait_s
        self._chronicle.warn(message)
        if not wait_s:
            self._revive(name, start)

    def _ended(self, code: int) -> tuple[int, str]:
        """The loop has ended by itself, well or badly."""
        self._end()
        if self._requests.stop or code == ExitCode.INTERRUPTED:
            return ExitCode.INTERRUPTED, self._interrupted()
        if code == 0:
            return ExitCode.OK, "completed"
        if code < 0:
            self._chronicle.latch(FaultName.LOOP_KILLED, f"signal {-code}")
            return ExitCode.INTERNAL, f"control was killed by signal {-code}"
        return _known(code), self._why(_CONTROL, code)

    def _why(self, name: str, code: int) -> str:
        """The reason a process gave, or what can be said of one that gave none."""
        if self._chronicle.errors and _known(code) == code:
            return self._chronicle.errors[-1]
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        return f"{name} {how}; see {self._folder / 'stderr.log'}"

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Actuators, then processes, then files; once the first are safe, a second interrupt cuts waits short."""
        self._service.stopping(f"ending, {self._status()}")
        self._board[Word.STOP] = max(1, self._requests.level)
        if self._due_s.pop(_REPLAY, None) is not None:  # somebody must take in what the loop still writes
            self._start_replay()
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
        start = time.monotonic()
        grace_s += self._config.supervision.fade_s if child.name == _CONTROL else 0.0
        while not ask and child.poll() is None:
            self._hear()
            at_once = self._requests.stop > 1
            if child.name != _CONTROL and self._requests.impatient:
                break
            if time.monotonic() - start > (min(grace_s, _AT_ONCE_S) if at_once else grace_s):
                break
            for report in child.reports():
                self._chronicle.note(report)
            time.sleep(0.01)
        child.end(grace_s if ask else 0.0)
        for report in child.reports():
            self._chronicle.note(report)
        self._peaks[child.name] = max(self._peaks.get(child.name, 0.0), child.peak_rss_mb)
        child.close()
