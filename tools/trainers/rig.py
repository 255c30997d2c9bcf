"""Run behind an environment: its start, the exchange of actions and samples, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import weakref
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import RecordLayout
from onrig.runtime.run_state.running import find_running
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.exchange import NO_SEED, NO_TICK, Sample, TrainerRequest, TrainerSide
from onrig.runtime.shm.ring import RingHistory
from onrig.runtime.shm.segment import Segment, SegmentError
from onrig.runtime.supervise.child import Child
from onrig.tools.trainers.host import ENDED

_START_S: Final = 90.0
"""Timeout for the start of the device, the replay process and the loop."""
_STOP_TIMEOUT_S: Final = 30.0
_POLL_NS: Final = 20_000_000
_EXTRA_RECORDS: Final = 64
"""Maximum number of records that the loop may have written after the current sample."""


class RunEnded(RuntimeError):
    """Raised if the run has ended or does not reply; the message gives the reason."""

    __slots__ = ()


def _finish(child: Child) -> None:
    """Immediately stop the run of an environment that was not closed."""
    if child.poll() is None:
        os.kill(child.pid, signal.SIGQUIT)
    child.end(_STOP_TIMEOUT_S, send_sigterm=False)
    child.close()


def history_up_to(last_two: NDArray[np.void], history: NDArray[np.void], periods: int) -> NDArray[np.void]:
    """Return the last ``periods`` + 1 records: those of ``history`` that precede ``last_two``, and ``last_two``."""
    first_tick = int(last_two[1]["tick"]) - periods
    return np.concatenate(
        [history[(history["tick"] >= first_tick) & (history["tick"] < last_two[0]["tick"])], last_two]
    )


class RigProcess:
    """Run in separate processes whose loop receives its actions from this process."""

    def __init__(self, folder: Path, port: str | None, layout: RecordLayout) -> None:
        """Start the run. Raises RunEnded with the reason if it does not start."""
        self._folder, self._layout = folder, layout
        arguments = [str(folder), *([] if port is None else [port])]
        self._child = Child("run", "onrig.tools.trainers.host", arguments, folder / "stderr.log")
        self._finalizer = weakref.finalize(self, _finish, self._child)
        self._lines: list[str] = []
        self._reason: str | None = None
        self._episodes = 0
        try:
            self._attach()
        except BaseException:
            self._finalizer()
            raise

    def _attach(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while True:
            running = find_running(self._folder)
            if running is not None:
                with contextlib.suppress(SegmentError, OSError):
                    self._end = TrainerSide(running.shm, self._layout)
                    self._board = Board(Segment.attach(running.shm / "board", BOARD_SCHEMA))
                    ring = Segment.attach(running.shm / "ring", self._layout.schema)
                    self._ring = RingHistory(ring, self._layout)
                    return
            self._check(deadline_s, "start")
            time.sleep(0.005)

    # -- exchange ----------------------------------------------------------------------------------------------------

    def begin(self, seed: int | None, timeout_s: float) -> Sample:
        """Begin an episode, and return its first sample. Raises RunEnded after ``timeout_s``."""
        self._episodes += 1
        self._send(NO_TICK, (), seed=NO_SEED if seed is None else seed)
        deadline_s = time.monotonic() + timeout_s
        while True:
            sample = self._end.sample()
            if sample is not None and sample.episodes == self._episodes:
                return sample
            self._wait(deadline_s, "reach the start of an episode")

    def act(self, tick: int, action: tuple[float, ...], timeout_s: float) -> Sample:
        """Send an action (m,) in SI units in reply to the sample of ``tick``, and return the next sample."""
        self._send(tick, action)
        deadline_s = time.monotonic() + timeout_s
        while True:
            sample = self._end.sample()
            if sample is not None and (sample.is_over or self._tick_of(sample) != tick):
                return sample
            self._wait(deadline_s, "reply to an action")

    def records(self, sample: Sample) -> NDArray[np.void]:
        """Return the two records of a sample, (2,): the record of the period before it, and its own record."""
        return np.frombuffer(sample.records, self._layout.dtype)

    def records_up_to(self, sample: Sample, periods: int) -> NDArray[np.void]:
        """Return the last ``periods`` + 1 records up to a sample's own record, or fewer if some are lost."""
        last_two = self.records(sample)
        return (
            history_up_to(last_two, self._ring.records_since(0, periods + _EXTRA_RECORDS), periods)
            if periods > 1
            else last_two
        )

    def _tick_of(self, sample: Sample) -> int:
        return int(self.records(sample)[1]["tick"])

    def _send(self, tick: int, action: tuple[float, ...], *, seed: int = NO_SEED, closes: bool = False) -> None:
        self._end.send(TrainerRequest(self._episodes, seed, tick, time.monotonic_ns(), closes, action))

    def _wait(self, deadline_s: float, operation: str) -> None:
        self._end.wait(_POLL_NS)
        self._check(deadline_s, operation)

    def _check(self, deadline_s: float, operation: str) -> None:
        """Raise RunEnded if the run has ended or ``deadline_s`` has passed; ``operation`` is the pending operation."""
        self._read_reports()
        code = self._child.poll()
        if code is not None:
            self._read_reports()
            reason = self._reason or next(iter(self._lines[-1:]), f"see {self._folder / 'stderr.log'}")
            raise RunEnded(f"the run has ended: {reason} (exit code {code}); run folder: {self._folder}")
        if time.monotonic() > deadline_s:
            state = State(self._board[Word.STATE]).name.lower() if hasattr(self, "_board") else "starting"
            last_line = f": {self._lines[-1]}" if self._lines else ""
            raise RunEnded(f"the rig did not {operation} in time; it is {state}{last_line}; run folder: {self._folder}")

    def _read_reports(self) -> None:
        for report in self._child.reports():
            if report.kind == ENDED:
                self._reason = report.message
            elif report.message:
                self._lines.append(report.message)
                del self._lines[:-32]

    @property
    def messages(self) -> list[str]:
        """Latest warning, fault and error messages of the run."""
        self._read_reports()
        return list(self._lines)

    def close(self) -> None:
        """End the run: the episode is truncated, the device is disarmed, and the run folder is completed."""
        if not self._finalizer.alive:
            return
        if self._child.poll() is None:
            self._send(NO_TICK, (), closes=True)
            with contextlib.suppress(RunEnded):
                limit = time.monotonic() + _STOP_TIMEOUT_S
                while True:
                    self._check(limit, "end")
                    time.sleep(0.01)
        self._finalizer()
        self._end.close()
        self._board.close()
        self._ring.close()
