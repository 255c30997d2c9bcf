"""The rig under test: a device (its twin) on a wire, ``onrig run`` beyond it, and whatever else has been started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from onrig.learner.export import export_policy
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import save_resolved
from onrig.tools.faultlab.processes import ROLES, children, is_alive, send
from onrig.tools.faultlab.run import Run
from onrig.tools.faultlab.wire import Wire, WireProcess
from onrig.tools.load import load

_GRACE_S: Final = 20.0
_LEVEL: Final = 0.2


def steady_policy(config: RunConfig) -> bytes:
    """A policy that answers a fifth of full scale whatever it sees: it moves the rig, and is never the safe output."""
    rig = config.rig
    contract = contract_for(rig, config.rate_hz, policy_id=1, parent_run="", training_step=0)
    weights = np.zeros((len(rig.signals), len(rig.actuators)))
    return export_policy([(weights, np.full(len(rig.actuators), _LEVEL))], contract)


class Rig:
    """A context that leaves no process behind; device, wire and folder outlive the runs.

    Every program's output goes to a file ``NAME.out`` of ``folder``.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: Sequence[str],
        wire: Wire | WireProcess,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.name, self._wire = folder, name, wire
        self._environment = dict(environment or {})
        plain = load(name, list(settings))
        policy = folder / "policy.onnx"
        policy.write_bytes(steady_policy(plain))
        self.settings = [*settings, f"policy={policy}"]
        self.config: RunConfig = load(name, self.settings)
        self._saved = folder / "twin.yaml"
        save_resolved(self.config, self._saved)
        self._device: subprocess.Popen[bytes] | None = None
        self._run: Run | None = None
        self._inside: set[int] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Rig:
        with self._stack:
            self._stack.enter_context(self._wire)
            self._stack.callback(self.kill_device)
            self.start_device()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            self._leave_run()

    def _leave_run(self) -> None:
        if self._run is not None:
            self._run.__exit__(None, None, None)
            self._run = None

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self, output: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a Python program of the rig's: a module and its arguments."""
        environment = {**os.environ, **self._environment}
        with (self.folder / f"{output}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )

    @contextmanager
    def beside(self, output: str, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """A program of the rig's that is ended, whatever state it is in."""
        process = self.start(output, *command)
        try:
            yield process
        finally:
            end(process)

    def start_device(self) -> None:
        """Power the device up; the line and its far end stay as they are."""
        self._device = self.start("twin", "onrig.sim.twin.main", self._saved, "--port", self._wire.ports.device)

    def kill_device(self) -> None:
        """Take its power away."""
        if self._device is not None:
            self._device.kill()
            self._device.wait()

    def start_run(self, folder: Path, *more: str, resume: bool = False) -> Run:
        """Start a run in a folder, or go on with the one it holds, with the configuration that began with."""
        self._leave_run()
        overrides = () if resume else (*self.settings, *more)
        port = self._wire.ports.host
        self._run = Run(folder, self.name, *overrides, port=port, resume=resume, environment=self._environment)
        return self._run

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run that was started last."""
        if self._run is None:
            raise RuntimeError("no run has been started")
        return self._run

    @property
    def running(self) -> bool:
        """Whether its supervisor is there."""
        return self._run is not None and not self._run.process.ended

    @property
    def run_gone(self) -> bool:
        """Whether the supervisor and all of its processes that were seen last are gone."""
        return not self.running and not any(map(is_alive, self._inside))

    def processes(self) -> dict[str, int]:
        """Process ids by role: device, supervisor, and what the supervisor has started."""
        found: dict[str, int] = {}
        if self._device is not None and self._device.poll() is None:
            found["device"] = self._device.pid
        if self.running:
            inside = children(self.run.pid)
            self._inside = set(inside.values())
            found["supervisor"] = self.run.pid
            found |= {ROLES[module]: pid for module, pid in inside.items() if module in ROLES}
        return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and see it gone, even where it or its children are stopped."""
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
