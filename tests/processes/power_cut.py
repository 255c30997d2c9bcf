"""Ends a whole run at once, as a power cut does but for the page cache: no process of it gets to do anything more."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import msgspec

from runtime.replay.episodes import read_rows
from tests.processes.rig import PATIENCE_S

_MARK: Final = "ONRIG_TEST_POWER"


class Cable:
    """``onrig run`` and everything that it starts, all on one cable; a context that leaves no process behind."""

    def __init__(self, output: Path, *arguments: str | Path) -> None:
        self._mark = f"{_MARK}={uuid.uuid4().hex}".encode()
        name, _, value = self._mark.decode().partition("=")
        with output.open("wb") as file:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tools.cli", "run", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, name: value},
            )
        self.pid = self._popen.pid
        self._output = output

    def __enter__(self) -> Cable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        if error is not None:
            error.add_note(f"the run's output:\n{self.output}")

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(errors="replace")

    def ended(self, within_s: float) -> int | None:
        """Wait for its end; the exit code, or None when it goes on."""
        try:
            return self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, signum: int) -> None:
        """Send the supervisor a signal."""
        self._popen.send_signal(signum)

    def cut(self) -> None:
        """Stop every process where it stands, and then kill them all."""
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            while missed := [pid for pid in self._pids() if _send(pid, signum)]:
                if signum is signal.SIGSTOP and all(_stands(pid) for pid in missed):
                    break
        self._popen.wait(PATIENCE_S)

    def _pids(self) -> list[int]:
        """Processes that live and bear the mark."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found


def _send(pid: int, signum: int) -> bool:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def _stands(pid: int) -> bool:
    """Whether a process that was sent SIGSTOP does nothing more.

    In state D it is in the kernel and stops before it is out of it.  It may stay there for ever: whoever starts a
    process waits in D (vfork) until that one has begun its program, and it may just have been stopped on the way.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "DTZX"
    except OSError:
        return True


class Outcome(NamedTuple):
    """What a finished run leaves behind that must be equal."""

    episodes: bytes
    memory: object
    policies: dict[str, bytes]
    counts: dict[str, object]


def outcome_of(folder: Path) -> Outcome:
    """Read it."""
    summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict[str, object])
    assert summary["exit_reason"] == "completed"
    buffer = msgspec.convert(summary["buffer"], dict[str, object])
    policies = {path.name: path.read_bytes() for path in (folder / "policies").glob("*.onnx")}
    learner = msgspec.convert(summary["learner"], dict[str, object])
    counted = ("episodes", "ticks", "missed_ticks", "interventions", "faults", "transitions", "gaps", "policies")
    counts = {name: summary[name] for name in (*counted, "normalized_last20", "mirror_mismatches")}
    return Outcome(
        (folder / "episodes.csv").read_bytes(), buffer["digest"], policies, {**counts, "updates": learner["updates"]}
    )


def last_episode(folder: Path) -> int:
    """Last training episode that is filed."""
    return max((row.episode for row in read_rows(folder / "episodes.csv").rows), default=0)


def resumes(folder: Path) -> Sequence[dict[str, object]]:
    """The events that tell where a resumed run went on."""
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    events = [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
    return [event for event in events if event["kind"] == "resumed"]
