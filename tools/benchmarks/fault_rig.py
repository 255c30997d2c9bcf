"""A whole rig for the fault matrix: a twin in real time on a wire of the benchmark's, and ``onrig run`` beyond it."""

from __future__ import annotations

import contextlib
import csv
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec
import numpy as np

from hw.messages import Status
from learner.export import export_policy
from runtime.config.resolve import load_resolved, save_resolved
from runtime.policy.contract import contract_for
from runtime.replay.checkpoint.identity import identity_of
from runtime.replay.checkpoint.problem import CheckpointError
from runtime.replay.checkpoint.restore import restore
from runtime.replay.memory import Memory
from tools.benchmarks.fault_wire import Wire
from tools.load import load

PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.001
_EPISODE_S: Final = 2.0
_SETTINGS: Final = (
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


class Impatient(Exception):
    """Something did not happen in time."""


class FaultRig:
    """One run on one twin; a context that leaves no process behind.  Twin, wire and folder outlive the run."""

    def __init__(
        self, folder: Path, *, learner: bool = False, twin_faults: str = "", more: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        settings = [*_SETTINGS, *([f"device.twin.faults={twin_faults}"] if twin_faults else []), *more]
        self.config = load("pendulum", settings)
        rig = self.config.rig
        self._saved = folder / "twin.yaml"
        save_resolved(self.config, self._saved)
        policy = folder / "policy.onnx"
        contract = contract_for(rig, self.config.rate_hz, policy_id=1, parent_run="", training_step=0)
        # 0.6 V whatever it sees: moves the pendulum a little aside, and is never the safe output.
        policy.write_bytes(export_policy([(np.zeros((len(rig.signals), 1)), np.array([0.2]))], contract))
        self._settings = settings + ([] if learner else ["local_learner=false"]) + [f"policy={policy}"]
        self.clock = folder / "clock-offset"
        (folder / "sitecustomize.py").write_text(_CLOCK)
        self.wire = Wire(len(rig.sensors), len(rig.actuators))
        self.run_folder = folder / "run"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._run: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FaultRig:
        self.wire.start()
        twin = [sys.executable, "-m", "sim.twin.main", str(self._saved), "--port", self.wire.device_port]
        self._start(twin, "twin.out")
        self._run = self._start(self._command(self.run_folder), "run.out")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.wire.close()

    def _start(self, command: list[str], output: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "ONRIG_CLOCK_OFFSET": str(self.clock)}
        with (self.folder / output).open("ab") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        self._processes.append(process)
        return process

    def _command(self, run_folder: Path, *more: str) -> list[str]:
        command = [sys.executable, "-m", "tools.cli", "run", "pendulum", "--run-dir", str(run_folder)]
        for setting in (*self._settings, *more):
            command += ["--set", setting]
        return [*command, "--device", self.wire.host_port]

    @property
    def run(self) -> subprocess.Popen[bytes]:
        """The run's supervisor."""
        if self._run is None:
            raise RuntimeError("the rig has not been started")
        return self._run

    # -- looking -----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str, *, limit_s: float = PATIENCE_S) -> None:
        """Look every millisecond; Impatient after ``limit_s``."""
        limit = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > limit:
                raise Impatient(f"waited {limit_s:g} s for {what}")
            time.sleep(_LOOK_S)

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
        found: list[int] = []

        def look() -> bool:
            children = Path(f"/proc/{self.run.pid}/task/{self.run.pid}/children")
            for pid in map(int, children.read_text().split()):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", module.encode()]:
                        found.append(pid)
            return bool(found)

        self.until(look, f"{module} to run")
        return found[0]

    def events(self) -> list[dict[str, object]]:
        """Lines of ``events.jsonl`` so far."""
        path = self.run_folder / "events.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line, type=dict[str, object]) for line in lines]

    def faults(self) -> set[str]:
        """Names of the faults that the events tell of."""
        return {str(e["fault"]) for e in self.events() if e["kind"] != "tick" and e.get("fault")}

    def rows(self) -> list[dict[str, str]]:
        """Rows of ``episodes.csv``."""
        path = self.run_folder / "episodes.csv"
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def ended(self) -> int:
        """Wait for the end of the run; its exit code."""
        return self.run.wait(PATIENCE_S)

    # -- doing -------------------------------------------------------------------------------------------------------

    def fill_disk(self, *, full: bool) -> None:
        """Let no file of the run grow any more (or again), as on a full disk, for all who write to the run folder."""
        pids = [self.run.pid, *(self.child(module) for module in ("runtime.replay.main", "runtime.control.main"))]
        for pid in pids:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 if full else hard, hard))

    def resume(self) -> int:
        """``onrig resume`` in another terminal; its exit code."""
        return self._start([sys.executable, "-m", "tools.cli", "resume", str(self.run_folder)], "resume.out").wait(30)

    def stop(self) -> tuple[int, str]:
        """``onrig stop --now`` in another terminal: its exit code, and what it said."""
        words = [sys.executable, "-m", "tools.cli", "stop", str(self.run_folder), "--now"]
        code = self._start(words, "stop.out").wait(PATIENCE_S)
        return code, (self.folder / "stop.out").read_text()

    def end(self) -> int:
        """Interrupt the run; its exit code."""
        self.run.send_signal(signal.SIGINT)
        return self.ended()

    def another_run(self) -> int:
        """A short run on the same device, which finds it as the one before left it; its exit code."""
        self.wire.mode = "carry"
        command = self._command(self.folder / "next", "episodes=1", "task.episode_s=0.5")
        return self._start(command, "next.out").wait(PATIENCE_S)

    def kept(self, before: list[dict[str, str]], *, lost_s: float = 0.0) -> bool:
        """Whether the ended run still has what it had: rows, and a checkpoint with at least their transitions.

        ``lost_s``: what the newest checkpoint may lack.
        """
        if self.rows()[: len(before)] != before:
            return False
        config = load_resolved(self.run_folder / "config.yaml")
        memory = Memory(config, None)
        try:
            restored = restore(self.run_folder / "buffer", memory, identity_of(memory, config.seed))
        except CheckpointError:
            return False
        steps = sum(int(row["steps"]) for row in before) - round(lost_s * config.rate_hz)
        return restored is not None and not restored.damaged and memory.storage.inserted >= steps
