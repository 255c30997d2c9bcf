"""The rig under test: a device (its twin), a wire, and ``onrig run`` at the other end."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import numpy as np

from onrig.hw.messages import Status
from onrig.learner.export import export_gaussian_policy, export_policy
from onrig.runtime.link.keys import LearnerKeys, load_learner_keys
from onrig.runtime.policy.contract import DETERMINISTIC, GAUSSIAN, contract_for
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved, save_resolved
from onrig.tools.load import load
from tests.lab.rig.processes import CONTROL, REPLAY, ROLES, children, is_alive, send, until
from tests.lab.rig.run import Run
from tests.lab.rig.run_folder import kept_memory
from tests.lab.rig.wire import Wire, WireProcess

PATIENCE_S: Final = 60.0
CHECKPOINT_S: Final = 0.5
_GRACE_S: Final = 20.0
_POLL_S: Final = 0.001
_EPISODE_S: Final = 2.0
_LEVEL: Final = 0.2
REALTIME: Final = ("device.pace=realtime", f"task.episode_s={_EPISODE_S:g}", f"checkpoint_s={CHECKPOINT_S:g}")
WATCHED: Final = (
    *REALTIME,
    "episodes=100000",
    "evaluate_every=0",
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
"""Start-up code of the rig's Python processes: their wall clock is the machine's plus an offset from a file."""


def steady_policy(config: RunConfig) -> bytes:
    """Return a policy with a constant output of a fifth of full scale, or around it, so that it moves the rig and
    differs from the safe output."""
    n, m, behaviour = len(config.signals), len(config.rig.actuators), GAUSSIAN if config.stochastic else DETERMINISTIC
    contract = contract_for(
        config.rig,
        config.rate_hz,
        policy_id=1,
        parent_run="",
        training_step=0,
        behaviour=behaviour,
        signals=config.signals,
    )
    layers = [(np.zeros((n, m)), np.full(m, _LEVEL))]
    if config.stochastic:
        return export_gaussian_policy(layers, np.full(m, 0.1), contract)
    return export_policy(layers, contract)


def learner_keys(folder: Path) -> LearnerKeys:
    """Generate keys ``rig`` and ``learner`` in ``folder``; returns the learner's."""
    from onrig.tools.key_folder import make_keys

    with contextlib.redirect_stdout(None):
        if make_keys(folder) != 0:
            raise OSError(f"{folder}: cannot generate keys")
    return load_learner_keys(folder / "learner")


class Rig:
    """Context manager that leaves no process behind; device, wire and folder outlive the runs.

    Each program's output goes to ``NAME.out`` in ``folder``.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: Sequence[str],
        wire: Wire | WireProcess,
        environment: Mapping[str, str] | None = None,
        policy: Callable[[RunConfig], bytes] = steady_policy,
    ) -> None:
        self.folder, self.name, self._wire = folder, name, wire
        self._environment = dict(environment or {})
        file = folder / "policy.onnx"
        file.write_bytes(policy(load(name, list(settings))))
        self.settings = [*settings, f"policy={file}"]
        self.config: RunConfig = load(name, self.settings)
        self._saved = folder / "twin.yaml"
        save_resolved(self.config, self._saved)
        self.run_folder = folder / "run"
        self._device: subprocess.Popen[bytes] | None = None
        self._run: Run | None = None
        self._child_pids: set[int] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self._wire)
            self._stack.callback(self.kill_device)
            self.start_device()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            self._close_run()

    def _close_run(self) -> None:
        if self._run is not None:
            self._run.__exit__(None, None, None)
            self._run = None

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self, output: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start one of the rig's Python programs: a module and its arguments."""
        with (self.folder / f"{output}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    @contextmanager
    def run_program(self, output: str, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run one of the rig's programs, and end it on exit whatever its state."""
        process = self.start(output, *command)
        try:
            yield process
        finally:
            end(process)

    def start_device(self) -> None:
        """Power up the device; the wire and its other end stay unchanged."""
        self._device = self.start("twin", "onrig.sim.twin.main", self._saved, "--port", self._wire.ports.device)

    def kill_device(self) -> None:
        """Cut the device's power."""
        if self._device is not None:
            self._device.kill()
            self._device.wait()

    def start_run(self, folder: Path, *more: str, resume: bool = False) -> Run:
        """Start a run in a folder, or resume the folder's run with its configuration."""
        self._close_run()
        overrides = () if resume else (*self.settings, *more)
        port = self._wire.ports.host
        self._run = Run(folder, self.name, *overrides, port=port, resume=resume, environment=self._environment)
        return self._run

    # -- observing ---------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The latest run."""
        if self._run is None:
            raise RuntimeError("no run has been started")
        return self._run

    @property
    def running(self) -> bool:
        """Whether its supervisor is running."""
        return self._run is not None and not self._run.process.has_ended

    @property
    def run_has_ended(self) -> bool:
        """Whether the supervisor and all of its last known processes are gone."""
        return not self.running and not any(map(is_alive, self._child_pids))

    def pid_of(self, module: str) -> int | None:
        """Process id of one of the run's processes; None if it is not running."""
        return children(self.run.pid).get(module) if self.running else None

    def processes(self) -> dict[str, int]:
        """Process ids by role: device, supervisor, and the supervisor's children."""
        found: dict[str, int] = {}
        if self._device is not None and self._device.poll() is None:
            found["device"] = self._device.pid
        if self.running:
            child_pids = children(self.run.pid)
            self._child_pids = set(child_pids.values())
            found["supervisor"] = self.run.pid
            found |= {ROLES[module]: pid for module, pid in child_pids.items() if module in ROLES}
        return found


class WatchedRig(Rig):
    """A rig with one run, on a wire that records everything the device sends."""

    def __init__(
        self,
        folder: Path,
        *,
        learner: bool = False,
        twin_faults: str = "",
        more: tuple[str, ...] = (),
        policy: Callable[[RunConfig], bytes] = steady_policy,
    ) -> None:
        settings = [*WATCHED, *([f"device.twin.faults={twin_faults}"] if twin_faults else []), *more]
        settings += [] if learner else ["local_learner=false"]
        self.clock = folder / "clock-offset"
        (folder / "sitecustomize.py").write_text(_CLOCK)
        rig = load("pendulum", settings).rig
        self.wire = Wire(len(rig.sensors), len(rig.actuators), link=folder / "port")
        environment = {"PYTHONPATH": str(folder), "ONRIG_CLOCK_OFFSET": str(self.clock)}
        super().__init__(folder, "pendulum", settings, self.wire, environment, policy)

    def __enter__(self) -> Self:
        super().__enter__()
        self.start_run(self.run_folder)
        return self

    def until(self, condition: Callable[[], bool], description: str, *, limit_s: float = PATIENCE_S) -> None:
        """Poll every millisecond; raises WaitTimeout after ``limit_s``."""
        until(condition, description, limit_s=limit_s, every_s=_POLL_S)

    def until_moving(self) -> None:
        """Wait for the middle of any episode after the first, with a command in force."""

        def moving() -> bool:
            starts = [i for i, (_, s) in enumerate(self.wire.seen) if s.status & Status.FIRST]
            if len(starts) < 2 or not self.run.rows():
                return False
            since = len(self.wire.seen) - starts[-1]
            half = round(0.5 * _EPISODE_S * self.config.rate_hz)
            return half - 20 <= since <= half + 20 and self.is_driven()

        self.until(moving, "the middle of an episode")

    def is_driven(self) -> bool:
        """Whether the newest frame shows a command of the host in force."""
        return bool(self.wire.seen) and _driven(self.wire.seen[-1].state.status)

    def is_driven_again(self, after: int) -> bool:
        """Whether, from frame number ``after`` on, the host's commands act again after a safe output."""
        later = [s.status for _, s in self.wire.seen[after:]]
        safe = next((i for i, status in enumerate(later) if status & Status.SAFE), len(later))
        return any(map(_driven, later[safe:]))

    def faults(self) -> set[str]:
        """Names of the faults in the events."""
        return {str(e["fault"]) for e in self.run.events() if e["kind"] != "tick" and e.get("fault")}

    def fill_disk(self, *, full: bool) -> None:
        """Prevent files of the run from growing, as on a full disk, for all processes that write to its folder; or undo
        it."""
        for pid in (self.run.pid, self.run.child(REPLAY).pid, self.run.child(CONTROL).pid):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 if full else hard, hard))

    def jump_clock(self, *offsets_s: float) -> None:
        """Shift the run's wall clock by each offset in turn, for half a second."""
        for offset_s in offsets_s:
            fresh = Path(f"{self.clock}.tmp")
            fresh.write_text(str(offset_s))
            fresh.replace(self.clock)
            time.sleep(0.5)

    def resume(self) -> int:
        """Run ``onrig resume`` in another terminal; returns its exit code."""
        with self.run_program("resume", "onrig.tools.cli", "resume", self.run_folder) as resume:
            return resume.wait(30)

    def stop(self) -> tuple[int, str]:
        """Run ``onrig stop --now`` in another terminal; returns its exit code and output."""
        with self.run_program("stop", "onrig.tools.cli", "stop", self.run_folder, "--now") as stop:
            code = stop.wait(PATIENCE_S)
        return code, (self.folder / "stop.out").read_text()

    def another_run(self) -> int:
        """Make a short run on the same device in the state left by the previous run; returns its exit code."""
        self.wire.mode = "carry"
        return self.start_run(self.folder / "next", "episodes=1", "task.episode_s=0.5").ended(PATIENCE_S)

    def data_kept(self, before: list[dict[str, str]]) -> bool:
        """Whether the ended run has kept its rows, and a checkpoint with at least their transitions."""
        if self.run.rows()[: len(before)] != before:
            return False
        memory = kept_memory(load_resolved(self.run_folder / "config.yaml"), self.run_folder)
        steps = sum(int(row["steps"]) for row in before)
        return memory is not None and memory.storage.inserted >= steps


def _driven(status: int) -> bool:
    return bool(status & Status.ARMED) and not status & Status.SAFE


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and wait until it is gone, even if it or its children are stopped."""
    if process.poll() is not None:
        return
    for pid in (*children(process.pid).values(), process.pid):
        send(pid, signal.SIGCONT)
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
