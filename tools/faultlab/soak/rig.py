"""The rig of a soak: one life after the other on one device, and a learner beyond a bad network; each can be killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onrig.runtime.link.keys import load_learner_keys
from onrig.tools.faultlab.network import LossyLink
from onrig.tools.faultlab.peers import free_port
from onrig.tools.faultlab.processes import CONTROL, children
from onrig.tools.faultlab.rig import Rig, end
from onrig.tools.faultlab.soak.effects import BASE_DELAY_S, LineEffects, NetworkEffects
from onrig.tools.faultlab.wire import WireProcess
from onrig.tools.load import load

CHECKPOINT_S: Final = 0.5
CAPACITY: Final = 20_000
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


class SoakRig(Rig):
    """Everything that is started; a context that leaves no process behind."""

    def __init__(self, name: str, settings: Sequence[str], folder: Path, seed: int) -> None:
        from onrig.tools.keys import main as make_keys

        keys = folder / "keys"
        with contextlib.redirect_stdout(None):
            if make_keys([str(keys)]) != 0:
                raise OSError(f"{keys}: no keys could be made")
        self.keys, self._keys_folder = load_learner_keys(keys / "learner"), keys / "learner"
        port = free_port()
        linked = [*settings, f"link.listen=tcp://127.0.0.1:{port}", f"link.keys={keys / 'rig'}"]
        rig = load(name, linked).rig
        self._line = WireProcess(len(rig.sensors), len(rig.actuators))
        super().__init__(folder, name, linked, self._line)
        self.network_link = LossyLink(port, delay_s=BASE_DELAY_S, seed=seed, tap_bytes=0)
        self.line, self.network = LineEffects(self._line.say), NetworkEffects(self.network_link)
        self.lives = self.learner_starts = 0
        self.run_folder = folder
        self._learner: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SoakRig:
        super().__enter__()
        self._stack.enter_context(self.network_link)
        self._stack.callback(self._end_learner)
        return self

    def _end_learner(self) -> None:
        if self._learner is not None:
            end(self._learner)

    # -- starting ----------------------------------------------------------------------------------------------------

    def start_life(self, *, resume: bool) -> None:
        """Start the rig, in a folder of its own or going on where the last life ended."""
        self.lives += 1
        if not resume:
            self.run_folder = self.folder / f"run-{self.lives}"
        self.start_run(self.run_folder, resume=resume)

    def start_learner(self) -> None:
        """Start a learner, with what the one before it left behind."""
        self.learner_starts += 1
        overrides = [word for setting in self.settings for word in ("--set", setting)]
        learner: list[str | Path] = [
            "onrig.tools.cli",
            "learn",
            self.name,
            "--keep-trying",
            "--keys",
            self._keys_folder,
        ]
        learner += ["--connect", self.network_link.endpoint, "--state", self.folder / "learner", *overrides]
        self._learner = self.start("learner", *learner)
        with contextlib.suppress(ProcessLookupError):  # as `onrig run` does with its own
            os.setpriority(os.PRIO_PROCESS, self._learner.pid, 10)

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def run_pid(self) -> int | None:
        """Process id of the rig's supervisor, or None while it is not running."""
        return self.run.pid if self.running else None

    @property
    def run_code(self) -> int | None:
        """Exit code of the rig's last life once it has ended."""
        return None if self.running else self.run.ended()

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
        """Everything that runs, by role; a supervisor before and after its loop imports what it needs but once."""
        found = super().processes()
        if self.child(CONTROL) is None:
            found.pop("supervisor", None)
        if self.learner_pid is not None:
            found["learner"] = self.learner_pid
        return {"wire": self._line.pid, "soak": os.getpid(), **found}

    # -- doing -------------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.run.stop(signal.SIGINT)

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
