"""The rig of the fault matrix: a twin in real time on a wire that keeps what the device says, and a run to look at."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

from onrig.hw.messages import Status
from onrig.runtime.run_loading import load_resolved
from onrig.tools.faultlab.processes import CONTROL, REPLAY, until
from onrig.tools.faultlab.rig import Rig
from onrig.tools.faultlab.run_folder import kept_memory
from onrig.tools.faultlab.wire import Wire
from onrig.tools.load import load

PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.001
_EPISODE_S: Final = 2.0
SETTINGS: Final = (
    "device.pace=realtime",
    f"task.episode_s={_EPISODE_S:g}",
    "episodes=100000",
    "evaluate_every=0",
    "checkpoint_s=0.5",
    "selection={strategy: 'FIFO[Uniform]', capacity: 100000}",
    "learner.updates_per_episode=5",
)
_CLOCK: Final = """
import os, time
_path, _time, _time_ns = os.environ["ONRIG_CLOCK_OFFSET"], time.time, time.time_ns
def _offset():
    try:
        with open(_path) as file:
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0
time.time = lambda: _time() + _offset()
time.time_ns = lambda: _time_ns() + int(1e9 * _offset())
"""
"""What Python processes of the rig import first: their wall clock is the machine's plus what stands in a file."""


class FaultRig(Rig):
    """One run on one twin."""

    def __init__(
        self, folder: Path, *, learner: bool = False, twin_faults: str = "", more: tuple[str, ...] = ()
    ) -> None:
        settings = [*SETTINGS, *([f"device.twin.faults={twin_faults}"] if twin_faults else []), *more]
        settings += [] if learner else ["local_learner=false"]
        self.clock = folder / "clock-offset"
        (folder / "sitecustomize.py").write_text(_CLOCK)
        rig = load("pendulum", settings).rig
        self.wire = Wire(len(rig.sensors), len(rig.actuators))
        environment = {"PYTHONPATH": str(folder), "ONRIG_CLOCK_OFFSET": str(self.clock)}
        super().__init__(folder, "pendulum", settings, self.wire, environment)
        self.run_folder = folder / "run"

    def __enter__(self) -> FaultRig:
        super().__enter__()
        self.start_run(self.run_folder)
        return self

    # -- looking -----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str, *, limit_s: float = PATIENCE_S) -> None:
        """Look every millisecond; raises Impatient after ``limit_s``."""
        until(condition, what, limit_s=limit_s, every_s=_LOOK_S)

    def until_moving(self) -> None:
        """Wait for the middle of an episode that is not the first, with a command in force."""

        def moving() -> bool:
            starts = [i for i, (_, s) in enumerate(self.wire.seen) if s.status & Status.FIRST]
            if len(starts) < 2 or not self.rows():
                return False
            since = len(self.wire.seen) - starts[-1]
            half = round(0.5 * _EPISODE_S * self.config.rate_hz)
            return half - 20 <= since <= half + 20 and self.acts()

        self.until(moving, "the middle of an episode")

    def acts(self) -> bool:
        """Whether the newest frame tells of a command of the host in force."""
        state = self.wire.seen[-1].state if self.wire.seen else None
        return state is not None and bool(state.status & Status.ARMED) and not state.status & Status.SAFE

    def acts_again(self, after: int) -> bool:
        """Whether, among the frames from number ``after`` on, the host's commands act again after a safe output."""
        later = [s.status for _, s in self.wire.seen[after:]]
        safe = next((i for i, status in enumerate(later) if status & Status.SAFE), len(later))
        return any(status & Status.ARMED and not status & Status.SAFE for status in later[safe:])

    def child(self, module: str) -> int:
        """Process id of a child of the run; waits for it."""
        return self.run.child(module).pid

    def events(self) -> list[dict[str, object]]:
        """Lines of ``events.jsonl`` so far."""
        return self.run.events()

    def faults(self) -> set[str]:
        """Names of the faults that the events tell of."""
        return {str(e["fault"]) for e in self.events() if e["kind"] != "tick" and e.get("fault")}

    def rows(self) -> list[dict[str, str]]:
        """Rows of ``episodes.csv``."""
        return self.run.rows()

    def ended(self) -> int:
        """Wait for the end of the run; its exit code."""
        return self.run.ended(PATIENCE_S)

    # -- doing -------------------------------------------------------------------------------------------------------

    def fill_disk(self, *, full: bool) -> None:
        """Let no file of the run grow any more (or again), as on a full disk, for all who write to the run folder."""
        for pid in (self.run.pid, self.child(REPLAY), self.child(CONTROL)):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 if full else hard, hard))

    def resume(self) -> int:
        """``onrig resume`` in another terminal; its exit code."""
        with self.beside("resume", "onrig.tools.cli", "resume", self.run_folder) as resume:
            return resume.wait(30)

    def stop(self) -> tuple[int, str]:
        """``onrig stop --now`` in another terminal: its exit code, and what it said."""
        with self.beside("stop", "onrig.tools.cli", "stop", self.run_folder, "--now") as stop:
            code = stop.wait(PATIENCE_S)
        return code, (self.folder / "stop.out").read_text()

    def end(self) -> int:
        """Interrupt the run; its exit code."""
        return self.run.interrupt()

    def another_run(self) -> int:
        """A short run on the same device, which finds it as the one before left it; its exit code."""
        self.wire.mode = "carry"
        return self.start_run(self.folder / "next", "episodes=1", "task.episode_s=0.5").ended(PATIENCE_S)

    def kept(self, before: list[dict[str, str]]) -> bool:
        """Whether the ended run still has what it had: rows, and a checkpoint with at least their transitions."""
        if self.rows()[: len(before)] != before:
            return False
        memory = kept_memory(load_resolved(self.run_folder / "config.yaml"), self.run_folder)
        steps = sum(int(row["steps"]) for row in before)
        return memory is not None and memory.storage.inserted >= steps
