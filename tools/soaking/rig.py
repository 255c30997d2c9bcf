"""The rig of a soak: a twin on a wire, ``onrig run`` beyond it, a learner beyond a bad network; each can be killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from learner.export import export_policy
from runtime.config.resolve import save_resolved
from runtime.config.schema import RunConfig
from runtime.link.keys import load_learner_keys
from runtime.policy.contract import contract_for
from tools.benchmarks.lossy_link import LossyLink
from tools.load import load
from tools.soaking.effects import BASE_DELAY_S, LineEffects, NetworkEffects
from tools.soaking.line import Line
from tools.soaking.processes import children

CHECKPOINT_S: Final = 0.5
CAPACITY: Final = 20_000
REPLAY, CONTROL = "runtime.replay.main", "runtime.control.main"
_GRACE_S: Final = 30.0
_DIGEST: Final = re.compile(r"mirrored \d+ writes, hash ([0-9a-f]+)")
_SETTINGS: Final = (
    "device.pace=realtime",
    "task.episode_s=2",
    "episodes=1000000",
    "evaluate_every=3",
    f"checkpoint_s={CHECKPOINT_S:g}",
    f"selection={{strategy: 'FIFO[Uniform]', capacity: {CAPACITY}}}",
    "learner.updates_per_episode=20",
    "local_learner=false",
)
"""Short episodes, and after every third one a noise-free one, from which nothing is kept: then the memory is quiet."""


def settings_for(config: str, rate_hz: float, seed: int, more: Sequence[str]) -> list[str]:
    """Overrides of a soak; what the user sets comes last."""
    return [*_SETTINGS, f"rate_hz={rate_hz:g}", f"seed={seed}", *more]


class SoakRig:
    """Everything that is started; a context that leaves no process behind."""

    def __init__(self, name: str, settings: Sequence[str], folder: Path, seed: int) -> None:
        from tools.keys import main as make_keys

        self._name, self.folder = name, folder
        keys, policy = folder / "keys", folder / "policy.onnx"
        with contextlib.redirect_stdout(None):
            if make_keys([str(keys)]) != 0:
                raise OSError(f"{keys}: no keys could be made")
        self.keys = load_learner_keys(keys / "learner")
        self._port = _free_port()
        self._settings = [
            *settings,
            f"link.listen=tcp://127.0.0.1:{self._port}",
            f"link.keys={keys / 'rig'}",
        ]
        plain = load(name, self._settings)
        contract = contract_for(plain.rig, plain.rate_hz, policy_id=1, parent_run="", training_step=0)
        weights = np.zeros((len(plain.rig.signals), len(plain.rig.actuators)))
        policy.write_bytes(export_policy([(weights, np.full(len(plain.rig.actuators), 0.1))], contract))
        self._settings.append(f"policy={policy}")
        self.config: RunConfig = load(name, self._settings)
        self._saved = folder / "twin.yaml"
        save_resolved(self.config, self._saved)
        self._keys_folder = keys / "learner"
        self._stack = ExitStack()
        self._seed = seed
        self.lives = 0
        self._inside: set[int] = set()
        self.run_folder = folder
        self.learner_starts = 0
        self._run: subprocess.Popen[bytes] | None = None
        self._learner: subprocess.Popen[bytes] | None = None
        self._twin: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SoakRig:
        rig = self.config.rig
        with self._stack:
            self._wire = self._stack.enter_context(Line(len(rig.sensors), len(rig.actuators)))
            self.network_link = self._stack.enter_context(
                LossyLink(self._port, delay_s=BASE_DELAY_S, seed=self._seed, tap_bytes=0)
            )
            self.line, self.network = LineEffects(self._wire.say), NetworkEffects(self.network_link)
            self._stack.callback(self._end_all)
            self.start_twin()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end_all(self) -> None:
        for process in (self._learner, self._run, self._twin):
            if process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    for child in (*children(process.pid).values(), process.pid):
                        os.kill(child, signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(_GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _start(self, command: list[str], output: str) -> subprocess.Popen[bytes]:
        with (self.folder / output).open("ab") as out:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    # -- starting ----------------------------------------------------------------------------------------------------

    def start_twin(self) -> None:
        """Power the device up; the line and its far end stay as they are."""
        twin = [sys.executable, "-m", "sim.twin.main", str(self._saved), "--port", self._wire.ports.device]
        self._twin = self._start(twin, "twin.out")

    def kill_twin(self) -> None:
        """Take its power away."""
        if self._twin is not None:
            self._twin.kill()
            self._twin.wait()

    def start_run(self, *, resumed: bool) -> None:
        """Start the rig, in a folder of its own or going on where the last life ended."""
        self.lives += 1
        if not resumed:
            self.run_folder = self.folder / f"run-{self.lives}"
        command = [sys.executable, "-m", "tools.cli", "run", "--device", self._wire.ports.host]
        if resumed:  # with the configuration it began with
            command += ["--resume", str(self.run_folder)]
        else:
            command += [self._name, "--run-dir", str(self.run_folder), *self._overrides()]
        self._run = self._start(command, "run.out")

    def start_learner(self) -> None:
        """Start a learner, with what the one before it left behind."""
        self.learner_starts += 1
        learner = ["nice", "-n", "10", sys.executable, "-m", "tools.cli", "learn", self._name, "--keep-trying"]
        learner += ["--connect", self.network_link.endpoint, "--keys", str(self._keys_folder)]
        learner += ["--state", str(self.folder / "learner"), *self._overrides()]
        self._learner = self._start(learner, "learner.out")

    def _overrides(self) -> list[str]:
        return [word for setting in self._settings for word in ("--set", setting)]

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def run_pid(self) -> int | None:
        """Process id of the rig's supervisor, or None while it is not running."""
        return self._run.pid if self._run is not None and self._run.poll() is None else None

    @property
    def run_code(self) -> int | None:
        """Exit code of the rig's last life once it has ended."""
        return None if self._run is None else self._run.poll()

    @property
    def learner_pid(self) -> int | None:
        """Process id of the learner, or None while there is none."""
        return self._learner.pid if self._learner is not None and self._learner.poll() is None else None

    def child(self, module: str) -> int | None:
        """Process id of one of the rig's processes, or None where there is none now."""
        pid = self.run_pid
        return None if pid is None else children(pid).get(module)

    def tree(self) -> list[int]:
        """The supervisor of the rig, which comes first, and its processes; empty while there are none."""
        pid = self.run_pid
        return [] if pid is None else [pid, *children(pid).values()]

    def processes(self) -> dict[str, int]:
        """Everything that runs, by role."""
        found = {"wire": self._wire.pid, "soak": os.getpid()}
        if self._twin is not None and self._twin.poll() is None:
            found["device"] = self._twin.pid
        if self.learner_pid is not None:
            found["learner"] = self.learner_pid
        if self.run_pid is not None:
            inside = children(self.run_pid)
            if CONTROL in inside:  # before and after, it imports what starting and drawing need
                found["supervisor"] = self.run_pid
            self._inside = set(inside.values())
            found |= {role: inside[m] for role, m in (("replay", REPLAY), ("control", CONTROL)) if m in inside}
        return found

    # -- doing -------------------------------------------------------------------------------------------------------

    @property
    def run_gone(self) -> bool:
        """Whether the rig's supervisor and all of its processes that were seen last are gone."""
        return self.run_pid is None and not any(_is_alive(pid) for pid in self._inside)

    def signal_run(self, number: int) -> None:
        """Send the supervisor a signal."""
        if self._run is not None and self._run.poll() is None:
            self._run.send_signal(number)

    def learner_digests(self) -> list[str]:
        """Hashes of the mirror that the last learner told of at its end, if it heard of the end."""
        try:
            said = (self.folder / "learner.out").read_text(errors="replace")
        except OSError:
            return []
        return _DIGEST.findall(said)[-1:] if self._learner is not None and self._learner.poll() == 0 else []

    def await_learner(self, limit_s: float) -> None:
        """Wait for the learner's end, up to a limit."""
        if self._learner is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._learner.wait(limit_s)


def can_resume() -> bool:
    """Whether `onrig run` knows how to go on from a run folder."""
    from tools.run import parser

    return "--resume" in parser().format_help()


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
