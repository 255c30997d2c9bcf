"""The rig of a soak: successive runs on one device, a learner behind a bad network, and faults of wire and network."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, Self

from onrig.tools.bench.link.network import LossyLink
from onrig.tools.load import load
from tests.lab.endurance.schedule import Kind
from tests.lab.rig.rig import REALTIME, Rig, end, learner_keys
from tests.lab.rig.run import Run
from tests.lab.rig.wire import Mode, WireProcess
from tests.sockets import free_port

BASE_DELAY_S: Final = 0.002
"""Network delay to the learner without faults."""
_SETTINGS: Final = (
    *REALTIME,
    "episodes=1000000",
    "evaluate_every=3",
    "selection={strategy: 'FIFO[Uniform]', capacity: 20000}",
    "learner.updates_per_episode=20",
    "local_learner=false",
)
"""Every third episode is followed by a noise-free one, which is not stored, so the memory is constant during it."""
_MODES: Final[tuple[tuple[Kind, Mode], ...]] = (
    (Kind.CABLE_PULLED, "cut"),
    (Kind.CABLE_LOOSE, "cut"),
    (Kind.LINE_FROZEN, "freeze"),
    (Kind.FROZEN_FRAMES, "freeze"),
    (Kind.CORRUPTED_BURST, "garble"),
)
"""Modes of a wire under faults, worst first."""
_DIGEST: Final = re.compile(r"mirrored \d+ writes, hash ([0-9a-f]+)")


def settings_for(rate_hz: float, seed: int, more: Sequence[str]) -> list[str]:
    """Return the overrides of a soak; the user's come last."""
    return [*_SETTINGS, f"rate_hz={rate_hz:g}", f"seed={seed}", *more]


class Line(Protocol):
    """Wire whose faults can be set."""

    mode: Mode

    def lose(self, frames: int) -> None:
        """Lose the next state frames."""


class LineFaults:
    """State of a wire with several simultaneous faults: the worst of them applies."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._held: list[Kind] = []

    def hold(self, kind: Kind, amount: float = 0.0) -> None:
        """Begin a fault."""
        self._held.append(kind)
        self._apply()

    def release(self, kind: Kind, amount: float = 0.0) -> None:
        """End a fault."""
        self._held.remove(kind)
        self._apply()

    def lose(self, frames: int) -> None:
        """Lose the next state frames."""
        self._line.lose(frames)

    def _apply(self) -> None:
        self._line.mode = next((mode for kind, mode in _MODES if kind in self._held), "carry")


class NetworkFaults:
    """State of a network with simultaneous faults: cut before silent, delays add up, the greatest loss applies."""

    def __init__(self, link: LossyLink) -> None:
        self._link = link
        self._held: list[tuple[Kind, float]] = []

    def hold(self, kind: Kind, amount: float = 0.0) -> None:
        """Begin a fault; ``amount`` is a delay in s or a share of stalled pieces."""
        self._held.append((kind, amount))
        self._apply()

    def release(self, kind: Kind, amount: float = 0.0) -> None:
        """End a fault."""
        self._held.remove((kind, amount))
        self._apply()

    def _apply(self) -> None:
        kinds = {kind for kind, _ in self._held}
        delays = [amount for kind, amount in self._held if kind is Kind.NETWORK_DELAY]
        losses = [amount for kind, amount in self._held if kind is Kind.NETWORK_LOSS]
        self._link.set_quality(delay_s=BASE_DELAY_S + sum(delays), loss=max(losses, default=0.0))
        self._link.restore()
        if Kind.NETWORK_SILENT in kinds:
            self._link.freeze()
        if Kind.NETWORK_CUT in kinds:
            self._link.cut()


class SoakRig(Rig):
    """Successive runs on one device, and a learner behind a bad network."""

    def __init__(self, name: str, settings: Sequence[str], folder: Path, seed: int) -> None:
        self._keys = folder / "keys"
        self.keys = learner_keys(self._keys)
        port = free_port()
        linked = [*settings, f"link.listen=tcp://127.0.0.1:{port}", f"link.keys={self._keys / 'rig'}"]
        rig = load(name, linked).rig
        self._line = WireProcess(len(rig.sensors), len(rig.actuators))
        super().__init__(folder, name, linked, self._line)
        self.link = LossyLink(port, delay_s=BASE_DELAY_S, seed=seed, max_recorded_bytes=0)
        self.line, self.network = LineFaults(self._line), NetworkFaults(self.link)
        self.runs = self.learner_starts = 0
        self._learner: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._stack.enter_context(self.link)
        self._stack.callback(self._end_learner)
        return self

    def _end_learner(self) -> None:
        if self._learner is not None:
            end(self._learner)

    def next_run(self, *, resume: bool) -> Run:
        """Start the rig, in a new folder or resuming the last run."""
        self.runs += 1
        if not resume:
            self.run_folder = self.folder / f"run-{self.runs}"
        return self.start_run(self.run_folder, resume=resume)

    def start_learner(self) -> None:
        """Start a learner with the state of the previous one."""
        self.learner_starts += 1
        where: list[str | Path] = ["--connect", self.link.endpoint, "--keys", self._keys / "learner"]
        state: list[str | Path] = ["--keep-trying", "--state", self.folder / "learner"]
        overrides = [word for setting in self.settings for word in ("--set", setting)]
        self._learner = self.start("learner", "onrig.tools.cli", "learn", self.name, *where, *state, *overrides)
        with contextlib.suppress(ProcessLookupError):  # as `onrig run` does with its own
            os.setpriority(os.PRIO_PROCESS, self._learner.pid, 10)

    @property
    def run_code(self) -> int | None:
        """Exit code of the last run once it has ended."""
        return None if self.running else self.run.ended()

    @property
    def learner_pid(self) -> int | None:
        """Process id of the learner, or None."""
        return self._learner.pid if self._learner is not None and self._learner.poll() is None else None

    def processes(self) -> dict[str, int]:
        """Process ids by role."""
        found = super().processes()
        if "control" not in found:
            found.pop("supervisor", None)
        if self.learner_pid is not None:
            found["learner"] = self.learner_pid
        return {"wire": self._line.pid, "soak": os.getpid(), **found}

    def final_digest(self, limit_s: float) -> str | None:
        """Wait for the learner's end, up to a limit; returns the hash of its mirror if it received the end of the
        run."""
        if self._learner is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._learner.wait(limit_s)
        output = (self.folder / "learner.out").read_text(errors="replace")
        return next(reversed(_DIGEST.findall(output)), None) if self._learner.poll() == 0 else None
