"""A whole rig as processes of its own, and what can be seen of it from outside.

Every wait is bounded and ends as soon as its condition holds; nothing here depends on how long things take.
"""

from __future__ import annotations

import contextlib
import csv
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeVar

import msgspec

from runtime.config.schema import RunConfig
from runtime.policy.contract import contract_for
from runtime.shm.board import BOARD_SCHEMA, Board, Word
from runtime.shm.segment import Segment, SegmentError
from tests.runtime.policy import models

PATIENCE_S: Final = 90.0
"""Far more than anything here needs, for a machine that is busy with other tests."""
_LOOK_EVERY_S: Final = 0.005
TWIN, CONTROL, REPLAY, LEARNER = "sim.twin.main", "runtime.control.main", "runtime.replay.main", "learner.main"
UNHURRIED: Final = (
    "realtime.priority=0",
    "realtime.lock_memory=false",
    "rig.lease_periods=255",
    "limits.predicted=null",
)
"""Real time as tests can have it: they share the machine, so a late command must not end in a lease fault; nothing can
be predicted over so long a lease."""
ENDLESS: Final = (
    *UNHURRIED,
    "device.pace={scaled: 10}",
    "task.episode_s=0.5",
    "episodes=100000",
    "evaluate_every=0",
    "selection={strategy: 'FIFO[Uniform]', capacity: 500}",
    "learner.updates_per_episode=5",
)
"""Twenty short episodes per second until somebody ends it."""
LOCKSTEP: Final = ("task.episode_s=1", "learner.updates_per_episode=10", "evaluate_every=0")
"""Short episodes, bit for bit reproducible."""

T = TypeVar("T")


class Process:
    """A process by its descriptor: never mistaken for another that got its number, and never waited for in vain."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid)

    @property
    def ended(self) -> bool:
        """Whether it has ended (even if nobody has collected its exit code yet)."""
        return bool(select.select((self.fd,), (), (), 0)[0])

    def sleeps(self) -> int:
        """How often its main thread has gone to sleep so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal; harmless once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signum)

    def wait(self) -> None:
        """See it to its end."""
        assert select.select((self.fd,), (), (), PATIENCE_S)[0], f"process {self.pid} did not end"

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


def until(condition: Callable[[], T | Literal[False] | None], what: str, *processes: Process) -> T:
    """Look until ``condition`` gives something (other than None or False); fail if one of ``processes`` ends first."""
    limit = time.monotonic() + PATIENCE_S
    while True:
        ended = [p.pid for p in processes if p.ended]
        found = condition()
        if found is not None and found is not False:
            return found
        assert not ended, f"process {ended[0]} ended before {what}"
        assert time.monotonic() < limit, f"waited {PATIENCE_S:g} s for {what}"
        select.select([p.fd for p in processes], (), (), _LOOK_EVERY_S)


class Run:
    """``onrig run`` as a process; a context that leaves nothing behind, whatever happens in it."""

    def __init__(self, folder: Path, config: str, *overrides: str, port: str | None = None, heard: bool = True) -> None:
        self.folder = folder
        self._output = folder.with_name(f"{folder.name}.out")
        arguments = [config, "--run-dir", str(folder)]
        for override in overrides:
            arguments += ["--set", override]
        if port is not None:
            arguments += ["--device", port]
        with self._output.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tools.cli", "run", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output if heard else subprocess.PIPE,
                stderr=output,
            )
        if self._popen.stdout is not None:
            self._popen.stdout.readline()
            self._popen.stdout.close()
        self.process = Process(self._popen.pid)
        self._seen: dict[int, tuple[str, Process]] = {}
        self._board: tuple[Segment, Board] | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"the run's output:\n{self.output}")
        with contextlib.suppress(OSError):
            self._look()
        self.process.kill()
        self._popen.wait(PATIENCE_S)
        for _, process in self._seen.values():
            process.kill()
            process.wait()
            process.close()
        self.process.close()
        if self._board is not None:
            segment, board = self._board
            board.close()
            segment.close()

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(errors="replace")

    @property
    def shm(self) -> Path | None:
        """Its folder in shared memory while that is there."""
        return next(Path("/dev/shm").glob(f"onrig-{self.process.pid}-*"), None)

    def _look(self) -> None:
        """Note the children that there are."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            for pid in map(int, task.read_text().split()):
                if pid not in self._seen:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    # Between fork and exec it still bears its parent's command line.
                    if words[1:2] == [b"-m"] and words[2] != b"tools.cli":
                        self._seen[pid] = (words[2].decode(), Process(pid))

    def children(self) -> Mapping[str, Process]:
        """Running child processes by module."""
        self._look()
        return {module: process for module, process in self._seen.values() if not process.ended}

    def child(self, module: str, *, other_than: Process | None = None) -> Process:
        """Wait for the child that runs a module."""

        def find() -> Process | None:
            found = self.children().get(module)
            return None if found is other_than else found

        return until(find, f"{module} to start", self.process)

    def word(self, word: Word) -> int:
        """Read a word of the board (0 until there is one); it stays readable when the run has ended."""
        if self._board is None:
            if self.shm is None or not (self.shm / "board").exists():
                return 0
            try:
                segment = Segment.attach(self.shm / "board", BOARD_SCHEMA)
            except SegmentError:  # it is being made in this moment
                return 0
            self._board = segment, Board(segment)
        return self._board[1][word]

    def until(self, condition: Callable[[], T | Literal[False] | None], what: str) -> T:
        """Wait for something while the run goes on."""
        return until(condition, what, self.process)

    def until_ticks(self, more: int) -> None:
        """Let the loop go on for so many ticks."""
        start = self.word(Word.TICK)
        self.until(lambda: self.word(Word.TICK) >= start + more, f"{more} more ticks")

    def events(self, kind: str) -> list[dict[str, object]]:
        """Lines of ``events.jsonl`` of one kind."""
        path = self.folder / "events.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        events = [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
        return [event for event in events if event["kind"] == kind]

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

    def ended(self) -> int:
        """Wait for the end; returns the exit code."""
        self._look()
        self.process.wait()
        return self._popen.wait(PATIENCE_S)

    def leftovers(self) -> list[str]:
        """What an ended run ought not to have left: processes and shared memory."""
        left = [module for module, process in self._seen.values() if not process.ended]
        return left + ([] if self.shm is None else [str(self.shm)])

    def summary(self) -> dict[str, object]:
        """``summary.json``."""
        return msgspec.json.decode((self.folder / "summary.json").read_bytes(), type=dict[str, object])


@contextlib.contextmanager
def process_of(module: str, *arguments: str | Path) -> Iterator[Process]:
    """A single process of a rig, killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as popen:
        process = Process(popen.pid)
        try:
            yield process
        finally:
            process.kill()
            process.close()


def a_policy(config: RunConfig) -> bytes:
    """Some policy for the pendulum, id 1, that moves it."""
    contract = contract_for(config.rig, config.rate_hz, policy_id=1, parent_run="", training_step=0)
    return models.serialized(models.policy(contract=contract))
