"""Local worker processes, one per core."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import msgspec

from onrig.tools.experiments.jobs import (
    ENGINE,
    Failed,
    Finished,
    Progress,
    Refused,
    Reply,
    Unit,
    job_of,
    trials_of,
)
from onrig.tools.experiments.store import Trial

_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LOOK_S: Final = 0.5
_GRACE_S: Final = 1.0


class Advanced(NamedTuple):
    """Progress of a unit in episodes."""

    unit: Unit
    episodes: int


class Done(NamedTuple):
    """A unit's trials, in the order of its seeds."""

    unit: Unit
    trials: list[Trial]


class Lost(NamedTuple):
    """An unfinished unit; the others continue."""

    unit: Unit
    reason: str


Event = Advanced | Done | Lost


class NoWorkers(Exception):
    """No workers are available; the message gives the reason."""


class OtherExecutor(Exception):
    """A worker would compute trials with another executor than the others; the message names both."""


class Workers(Protocol):
    """Executor of units: local processes, or a cluster."""

    @property
    def slots(self) -> int:
        """Units that are done at the same time."""

    def run(self, units: Sequence[Unit]) -> Iterator[Event | None]:
        """Do units, the first first; None now and then while nothing happens.

        Raises NoWorkers and OtherExecutor.
        """

    def close(self) -> None:
        """End all remaining work within a second or two."""


class _Process:
    """One worker's process and the unit that it is at."""

    def __init__(self, engine: str) -> None:
        self.unit: Unit | None = None
        self.ready = False
        self._rest = b""
        self._said: Final = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", "onrig.tools.experiments.jobs", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=os.environ | _ONE_THREAD,
        )
        assert self._process.stdout is not None
        self.fd: Final = self._process.stdout.fileno()
        os.set_blocking(self.fd, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, unit: Unit) -> None:
        assert self._process.stdin is not None
        self.unit = unit
        with suppress(BrokenPipeError):  # it is gone: reading tells so too
            self._process.stdin.write(msgspec.json.encode(job_of(unit)) + b"\n")
            self._process.stdin.flush()

    def replies(self) -> Iterator[Reply | None]:
        """What has come; None at last when the process is gone."""
        while True:
            try:
                data = os.read(self.fd, 1 << 20)
            except BlockingIOError:
                return
            if not data:
                yield None
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield _REPLY.decode(line)

    def why(self) -> str:
        """How the process ended."""
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        if code == -signal.SIGKILL:
            return "its worker was killed (out of memory?)"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"its worker ended {how}: {said[-1] if said else 'no output'}"

    def stop(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        """See it to its end; `stop` first."""
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


_REPLY: Final = msgspec.json.Decoder(Reply)


class LocalWorkers:
    """Worker processes on this machine."""

    def __init__(self, slots: int, engine: str = ENGINE) -> None:
        self.slots: Final = slots
        self._engine: Final = engine
        self._processes: list[_Process] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [process.pid for process in self._processes]

    def run(self, units: Sequence[Unit]) -> Iterator[Event | None]:
        """As in ``Workers``."""
        waiting = deque(units)
        with selectors.DefaultSelector() as selector:

            def start() -> None:
                process = _Process(self._engine)
                self._processes.append(process)
                selector.register(process.fd, selectors.EVENT_READ, process)

            for _ in range(min(self.slots, len(units))):
                start()
            while self._processes:
                arrived = selector.select(_LOOK_S)
                if not arrived:
                    yield None
                for key, _ in arrived:
                    process: _Process = key.data
                    for reply in process.replies():
                        if reply is not None:
                            yield from _told(process, reply)
                        else:
                            selector.unregister(process.fd)
                            why = process.why()
                            self._dismiss(process)
                            if process.unit is not None:
                                yield Lost(process.unit, why)
                            if waiting and process.ready:
                                start()
                            elif waiting and not self._processes:
                                raise NoWorkers(f"the workers do not start: {why}")
                    if process.ready and process.unit is None and process in self._processes:
                        if waiting:
                            process.give(waiting.popleft())
                        else:
                            selector.unregister(process.fd)
                            self._dismiss(process)

    def close(self) -> None:
        """As in ``Workers``."""
        for process in self._processes:
            process.stop()
        for process in self._processes:
            process.close()
        self._processes.clear()

    def _dismiss(self, process: _Process) -> None:
        self._processes.remove(process)
        process.stop()
        process.close()


def _told(process: _Process, reply: Reply) -> Iterator[Event]:
    unit = process.unit
    if unit is None:
        process.ready = True
        return
    match reply:
        case Progress(episodes):
            yield Advanced(unit, episodes)
        case Finished():
            process.unit = None
            yield Done(unit, trials_of(reply))
        case Failed(reason):
            process.unit = None
            yield Lost(unit, reason)
        case Refused(reason):
            raise OtherExecutor(reason)
