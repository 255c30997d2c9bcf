"""``onrig run`` as a process under test: started, observed from outside, disturbed, and waited for.

Every wait is bounded and ends as soon as its condition holds, so nothing depends on timing.
"""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeVar

import msgspec

from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment, SegmentError
from tests.lab.rig.processes import PATIENCE_S, Process, children, marked, power_cut, until
from tests.lab.rig.room import MountNamespace

_MARK: Final = "ONRIG_FAULTLAB"
_ONRIG: Final = "import sys; sys.modules['matplotlib'] = None; from onrig.tools.cli import main; sys.exit(main())"
"""``onrig`` as installed without matplotlib: the plot at the end costs more than the rest of the program."""

UNHURRIED: Final = (
    "realtime.priority=0",
    "realtime.lock_memory=false",
    "rig.lease_periods=255",
    "limits.predicted=null",
)
"""Real-time settings for tests on a shared machine: a long lease, so that late commands cause no fault, and therefore
no prediction."""
ENDLESS: Final = (
    *UNHURRIED,
    "device.pace={scaled: 4}",
    "task.episode_s=0.2",
    "episodes=100000",
    "evaluate_every=0",
    "selection={strategy: 'FIFO[Uniform]', capacity: 500}",
    "learner.updates_per_episode=5",
)
"""Twenty episodes at ten ticks per second until the run is ended; a higher rate would only load the machine."""
LOCKSTEP: Final = ("task.episode_s=1", "learner.updates_per_episode=10", "evaluate_every=0")
"""Short episodes, bit for bit reproducible."""

T = TypeVar("T")


class PoweredRun:
    """``onrig run`` and all its processes, which can lose power together; context manager, leaves no process behind."""

    def __init__(
        self,
        output: Path,
        *arguments: str | Path,
        keep_output: bool = True,
        environment: Mapping[str, str] | None = None,
        room: MountNamespace | None = None,
    ) -> None:
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        inside = [] if room is None else room.entrance
        self._output = output
        with output.open("ab") as file:
            self._popen = subprocess.Popen(
                [*inside, sys.executable, "-c", _ONRIG, "run", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file if keep_output else subprocess.PIPE,
                stderr=file,
                env={**os.environ, **(environment or {}), name: value},
                start_new_session=True,
            )
        if self._popen.stdout is not None:
            self._popen.stdout.readline()
            self._popen.stdout.close()
        self.pid = self._popen.pid
        self.process = Process(self.pid)

    def __enter__(self) -> PoweredRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self.process.close()
        if error is not None:
            error.add_note(f"the run's output:\n{self.output}")

    @property
    def output(self) -> str:
        """Output of the run so far."""
        return self._output.read_text(errors="replace")

    def ended(self, within_s: float) -> int | None:
        """Wait for its end; returns the exit code, or None if it is still running."""
        try:
            return self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, signum: int) -> None:
        """Send the supervisor a signal."""
        self.process.kill(signum)

    def cut(self) -> None:
        """Cut the power: stop all processes, then kill them."""
        power_cut(self.live_processes)
        self._popen.wait(PATIENCE_S)

    def live_processes(self) -> list[int]:
        """Process ids of all live processes, including orphans."""
        return marked(self._mark)


class Run(PoweredRun):
    """A run in its own folder, with observable processes, shared memory and files.

    ``output`` receives its output: by default a file next to its folder.
    """

    def __init__(
        self,
        folder: Path,
        config: str,
        *overrides: str,
        port: str | None = None,
        resume: bool = False,
        keep_output: bool = True,
        environment: Mapping[str, str] | None = None,
        room: MountNamespace | None = None,
        output: Path | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.folder = folder if room is None else room.path(folder)
        words = ["--resume", str(folder)] if resume else [config, "--run-dir", str(folder)]
        for override in overrides:
            words += ["--set", override]
        if port is not None:
            words += ["--device", port]
        output = output or folder.with_name(f"{folder.name}.out")
        super().__init__(output, *words, *arguments, keep_output=keep_output, environment=environment, room=room)
        self._shared = Path("/dev/shm") if room is None else room.path("/dev/shm")
        self._seen: dict[int, tuple[str, Process]] = {}
        self._board: tuple[Segment, Board] | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for _, process in self._seen.values():
            process.close()
        if self._board is not None:
            segment, board = self._board
            board.close()
            segment.close()

    @property
    def shm(self) -> Path | None:
        """Folder of the run in shared memory; None if it does not exist."""
        return next(self._shared.glob(f"onrig-{self.pid}-*"), None)

    def _record_children(self) -> None:
        """Record the present children."""
        for module, pid in children(self.pid).items():
            if pid not in self._seen:
                with contextlib.suppress(ProcessLookupError):
                    self._seen[pid] = (module, Process(pid))

    def children(self) -> Mapping[str, Process]:
        """Running child processes by module."""
        self._record_children()
        return {module: process for module, process in self._seen.values() if not process.has_ended}

    def child(self, module: str, *, other_than: Process | None = None) -> Process:
        """Wait for the child process that runs a module."""

        def find() -> Process | None:
            found = self.children().get(module)
            return None if found is other_than else found

        return until(find, f"{module} to start", self.process)

    def word(self, word: Word) -> int:
        """Read one of the shared status words (0 before they exist); it remains readable after the run."""
        if self._board is None:
            if self.shm is None or not (self.shm / "board").exists():
                return 0
            try:
                segment = Segment.attach(self.shm / "board", BOARD_SCHEMA)
            except SegmentError:  # it is just being created
                return 0
            self._board = segment, Board(segment)
        return self._board[1][word]

    def until(
        self, condition: Callable[[], T | Literal[False] | None], description: str, limit_s: float = PATIENCE_S
    ) -> T:
        """Wait for a condition while the run continues; raises WaitTimeout."""
        return until(condition, description, self.process, limit_s=limit_s)

    def until_ticks(self, more: int) -> None:
        """Wait for ``more`` more ticks of the loop."""
        start = self.word(Word.TICK)
        self.until(lambda: self.word(Word.TICK) >= start + more, f"{more} more ticks")

    def events(self, kind: str | None = None) -> list[dict[str, object]]:
        """Lines of ``events.jsonl``, all or of one kind."""
        path = self.folder / "events.jsonl"
        content = path.read_bytes() if path.exists() else b""
        lines = content[: content.rfind(b"\n") + 1].splitlines()  # the last one may be incomplete
        events = [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
        return [event for event in events if kind is None or event["kind"] == kind]

    def policies(self) -> list[int]:
        """Ids of the policies admitted so far, ascending."""
        return sorted(int(path.stem) for path in (self.folder / "policies").glob("*.onnx"))

    def rows(self) -> list[dict[str, str]]:
        """Rows of ``episodes.csv``."""
        path = self.folder / "episodes.csv"
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def ended(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the end; returns the exit code, raises WaitTimeout."""
        self._record_children()
        self.process.wait(within_s)
        return self._popen.wait(PATIENCE_S)

    def interrupt(self) -> int:
        """Send Ctrl-C, and wait for the end; returns the exit code."""
        self.stop(signal.SIGINT)
        return self.ended()

    def leftover_paths(self) -> list[str]:
        """Processes and shared memory that an ended run has left behind; must be empty."""
        left = [module for module, process in self._seen.values() if not process.has_ended]
        return left + ([] if self.shm is None else [str(self.shm)])

    def summary(self) -> dict[str, object]:
        """Return the content of ``summary.json``."""
        return msgspec.json.decode((self.folder / "summary.json").read_bytes(), type=dict[str, object])
