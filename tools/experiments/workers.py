"""Local worker processes, one per core."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from onrig.tools.experiments.jobs import ENGINE, TrialResult, Unit, create_job, decode_trials
from onrig.tools.experiments.store import Trial
from onrig.tools.workers import Failed, Note, Outcome, Refused, Reply, Value, WorkerProcess

_POLL_S: Final = 0.5


class UnitProgress(NamedTuple):
    """Number of episodes that each trial of a unit has finished."""

    unit: Unit
    episodes: int


class UnitDone(NamedTuple):
    """The finished trials of a unit, in the order of its seeds."""

    unit: Unit
    trials: list[Trial]


class UnitLost(NamedTuple):
    """A unit that was lost; the others continue."""

    unit: Unit
    reason: str


Event = UnitProgress | UnitDone | UnitLost


class NoWorkers(Exception):
    """No workers are available; the message gives the reason."""


class ExecutorMismatch(Exception):
    """A worker's executor differs from the other trials' executor; the message names both."""


class Workers(Protocol):
    """Executor of units: local processes, or a cluster."""

    @property
    def slots(self) -> int:
        """Number of concurrent units."""

    def run(self, units: Sequence[Unit]) -> Iterator[Event | None]:
        """Execute units in order, and yield their events. Yield None at intervals while there are none.

        Raises NoWorkers and ExecutorMismatch.
        """

    def close(self) -> None:
        """End all remaining work within a second or two."""


class _Process(WorkerProcess):
    """A worker's process and its current unit."""

    def __init__(self, engine: str) -> None:
        super().__init__("onrig.tools.experiments.jobs", engine)
        self.unit: Unit | None = None
        self.is_ready = False

    def assign(self, unit: Unit) -> None:
        self.unit = unit
        self.call("run_job", create_job(unit))


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
        """See ``Workers``."""
        pending_units = deque(units)
        with selectors.DefaultSelector() as selector:

            def start() -> None:
                process = _Process(self._engine)
                self._processes.append(process)
                selector.register(process.fd, selectors.EVENT_READ, process)

            for _ in range(min(self.slots, len(units))):
                start()
            while self._processes:
                ready_keys = selector.select(_POLL_S)
                if not ready_keys:
                    yield None
                for key, _ in ready_keys:
                    process: _Process = key.data
                    for reply in process.replies():
                        if reply is not None:
                            yield from _event(process, reply)
                        else:
                            selector.unregister(process.fd)
                            reason = process.end_reason()
                            self._stop(process)
                            if process.unit is not None:
                                yield UnitLost(process.unit, reason)
                            if pending_units and process.is_ready:
                                start()
                            elif pending_units and not self._processes:
                                raise NoWorkers(f"the workers could not start: {reason}")
                    if process.is_ready and process.unit is None and process in self._processes:
                        if pending_units:
                            process.assign(pending_units.popleft())
                        else:
                            selector.unregister(process.fd)
                            self._stop(process)

    def close(self) -> None:
        """See ``Workers``."""
        for process in self._processes:
            process.stop()
        for process in self._processes:
            process.close()
        self._processes.clear()

    def _stop(self, process: _Process) -> None:
        self._processes.remove(process)
        process.stop()
        process.close()


def _event(process: _Process, reply: Reply) -> Iterator[Event]:
    unit = process.unit
    if unit is None:
        process.is_ready = True
    elif isinstance(reply, Note):
        yield UnitProgress(unit, msgspec.json.decode(reply.value, type=int))
    else:
        process.unit = None
        yield outcome_event(unit, reply)


def outcome_event(unit: Unit, outcome: Outcome) -> Event:
    """Convert the outcome of a call to the event of its unit. Raises ExecutorMismatch if the worker refused
    the call.
    """
    match outcome:
        case Value(value):
            return UnitDone(unit, decode_trials(msgspec.json.decode(value, type=tuple[TrialResult, ...])))
        case Refused(reason):
            raise ExecutorMismatch(reason)
        case Failed(reason):
            return UnitLost(unit, reason)
