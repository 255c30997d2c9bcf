"""Detector of machine stalls: a process with higher priority than the loop that records its own late wake-ups.

``python -m onrig.tools.bench.loop.sentinel KIND CPU PRIORITY`` runs until its input ends, then prints its records.

The sentinel sleeps until absolute deadlines and does almost nothing else. Whatever delays it (kernel, hypervisor,
firmware) also delays the loop; the loop itself cannot delay it, because its priority is lower. It wakes once per
period, while the loop sleeps, so that it never disturbs a tick but notices every stall of a period or more. The kind
``line`` sends itself a byte through a pseudo-terminal at each wake-up and times its arrival: a twin's frames take the
same path, through a kernel worker without real-time priority.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import struct
import subprocess
import sys
import time
import tty
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import DurationHistogram
from onrig.tools.bench.processes import Companion

Kind = Literal["timer", "line"]
PERIOD_US: Final[dict[Kind, int]] = {"timer": 3989, "line": 1979}
"""Period of the wake-ups while no phase is set; it is not a multiple of any common loop period, so that wake-ups cover
all phases of the loop.

A wake-up takes 40 us of the measured CPU: one wake-up per millisecond, at any phase, delayed frames by the same amount
at p99. Stalls of 4 ms are always observed, and stalls of 1 ms only by chance.
"""
_AIM_MESSAGE: Final = struct.Struct("=qq")
"""Message that sets the wake-up times (ns): it contains one of them and the period."""
_MAX_AIMS: Final = 16
"""Number of wake-ups between two reads of messages."""
SENTINEL_PRIORITY: Final = 90
MIN_RECORDED_NS: Final = 150_000
"""Minimum lateness of the wake-ups that are recorded with their times."""
_MAX_STALLS: Final = 100_000
_MAX_LATENESS_US: Final = 10_000
_END_TIMEOUT_S: Final = 10.0
_TFD_TIMER_ABSTIME: Final = 1


class SentinelRecords(msgspec.Struct):
    """Records of one sentinel."""

    kind: Kind
    cpu: int
    realtime: bool
    counts: list[int]
    """Numbers of wake-ups (or bytes) by lateness in whole microseconds; the last bin includes all later ones."""
    max_ns: int
    stalls: list[tuple[int, int]]
    """Due and actual times of wake-ups late by at least MIN_RECORDED_NS (ns, monotonic clock of the host)."""

    @property
    def name(self) -> str:
        """Name of the timed quantity."""
        return f"{'wake-ups' if self.kind == 'timer' else 'bytes through a pty'}, CPU {self.cpu}"

    def histogram(self) -> DurationHistogram:
        """Return the histogram of all wake-ups."""
        histogram = DurationHistogram()
        counts = np.array(self.counts, np.int64)
        if counts.any():
            counts[np.flatnonzero(counts)[-1]] -= 1  # its exact lateness is known and added below
            histogram.add(np.repeat(np.arange(len(counts)) * 1000, counts))
            histogram.add(np.array([self.max_ns], np.int64))
        return histogram


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "first_s", "first_ns")]


def _create_timer() -> int:
    """Create a timer and return its descriptor, from which the number of elapsed periods is read. Raises OSError."""
    fd: int = _LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def _arm(fd: int, first_ns: int, period_ns: int) -> None:
    spec = _TimerSpec(*divmod(period_ns, 10**9), *divmod(first_ns, 10**9))
    if _LIBC.timerfd_settime(fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def first_wake_ns(anchor_ns: int, period_ns: int, now_ns: int) -> int:
    """Return a wake-up time that is a whole number of periods from ``anchor_ns``.

    It is one to two periods ahead, so that it is not missed.
    """
    return anchor_ns + ((now_ns - anchor_ns) // period_ns + 2) * period_ns


def _open_pty() -> tuple[int, int]:
    """Open a pseudo-terminal in raw mode, and return the descriptors of its two ends."""
    controller_fd, terminal_fd = os.openpty()
    tty.setraw(terminal_fd)
    return controller_fd, terminal_fd


def record_wake_ups(kind: Kind, cpu: int, priority: int) -> SentinelRecords:
    """Sleep and record wake-ups until standard input ends."""
    realtime = False
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        realtime = True
    period_ns = PERIOD_US[kind] * 1000
    counts = [0] * (_MAX_LATENESS_US + 1)
    stalls: list[tuple[int, int]] = []
    max_ns = 0
    now_ns, read = time.monotonic_ns, os.read
    controller_fd, terminal_fd = _open_pty() if kind == "line" else (-1, -1)
    first_ns = now_ns() + 10 * period_ns
    fd = _create_timer()
    _arm(fd, first_ns, period_ns)
    gc.freeze()
    gc.disable()
    n_periods = n_wake_ups = 0
    while True:
        n_elapsed = int.from_bytes(read(fd, 8), sys.byteorder)
        wake_ns = now_ns()
        due_ns = first_ns + n_periods * period_ns  # due time of the first elapsed period
        n_periods += n_elapsed
        if controller_fd >= 0:
            due_ns = wake_ns
            os.write(controller_fd, b"x")
            read(terminal_fd, 1)
            wake_ns = now_ns()
        lateness_ns = wake_ns - due_ns
        counts[min(lateness_ns // 1000, _MAX_LATENESS_US)] += 1
        if lateness_ns > max_ns:
            max_ns = lateness_ns
        if lateness_ns >= MIN_RECORDED_NS and len(stalls) < _MAX_STALLS:
            stalls.append((due_ns, wake_ns))
        n_wake_ups += 1
        if n_wake_ups % _MAX_AIMS == 0 and select.select([0], (), (), 0)[0]:
            aim_data = read(0, 64 * _AIM_MESSAGE.size)
            if len(aim_data) < _AIM_MESSAGE.size:
                return SentinelRecords(kind, cpu, realtime, counts, max_ns, stalls)
            anchor_ns, period_ns = _AIM_MESSAGE.unpack(aim_data[-_AIM_MESSAGE.size :])
            first_ns, n_periods = first_wake_ns(anchor_ns, period_ns, now_ns()), 0
            _arm(fd, first_ns, period_ns)


class Sentinels:
    """Timer sentinels on the given CPUs and a line sentinel on ``line_cpu``, as a context manager that ends them."""

    def __init__(self, cpus: Sequence[int], line_cpu: int | None, priority: int = SENTINEL_PRIORITY) -> None:
        kinds_and_cpus = [("timer", cpu) for cpu in cpus] + ([("line", line_cpu)] if line_cpu is not None else [])
        self._timer_cpus = list(cpus)
        self._companions = [
            Companion(__name__, kind, str(cpu), str(priority), has_stdin_pipe=True) for kind, cpu in kinds_and_cpus
        ]

    def __enter__(self) -> Sentinels:
        return self

    def __exit__(self, *error: object) -> None:
        for companion in self._companions:
            companion.__exit__()

    def aim(self, cpu: int | None, anchor_ns: int, period_ns: int) -> None:
        """Wake the sentinel on ``cpu`` at whole numbers of periods from ``anchor_ns`` (monotonic clock)."""
        if cpu in self._timer_cpus:
            pipe = self._companions[self._timer_cpus.index(cpu)].process.stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.write(_AIM_MESSAGE.pack(anchor_ns, period_ns))
                pipe.flush()

    def clear_aim(self, cpu: int | None) -> None:
        """Make the wake-ups of the sentinel on ``cpu`` independent of the loop again."""
        self.aim(cpu, time.monotonic_ns(), 1000 * PERIOD_US["timer"])

    def records(self) -> list[SentinelRecords]:
        """Stop the sentinels and collect their records; a sentinel that could not run is omitted."""
        records = []
        for companion in self._companions:
            with contextlib.suppress(subprocess.TimeoutExpired, msgspec.DecodeError, ValueError):
                records.append(
                    msgspec.json.decode(companion.process.communicate(timeout=_END_TIMEOUT_S)[0], type=SentinelRecords)
                )
        return records


def main(arguments: Sequence[str]) -> int:
    """Run a sentinel, and print its records as a JSON object."""
    kind: Kind = "line" if arguments[0] == "line" else "timer"
    records = record_wake_ups(kind, int(arguments[1]), int(arguments[2]))
    sys.stdout.buffer.write(msgspec.json.encode(records))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


_WAKE_PHASE: Final = 0.6
"""Time from a frame to the wake-up, as a fraction of the period: after the tick and before the next rehearsal."""
_MAX_DRIFT: Final = 0.05
"""Drift of the device's clock, as a fraction of the period, beyond which the phase is updated."""


class PhaseTracker:
    """Tracker of the phase of a device's frames, which changes when a twin pauses or a crystal drifts."""

    def __init__(self, period_ns: int, aim: Callable[[int, int], None]) -> None:
        self._period_ns, self._aim = period_ns, aim
        self._anchor_ns: int | None = None

    def add(self, records: NDArray[np.void]) -> None:
        """Add the next records of a real-time loop."""
        if not len(records):
            return
        anchor_ns = int(records["t_mono_ns"][-1]) + round(_WAKE_PHASE * self._period_ns)
        if self._anchor_ns is not None:
            drift_ns = (anchor_ns - self._anchor_ns) % self._period_ns
            if min(drift_ns, self._period_ns - drift_ns) <= _MAX_DRIFT * self._period_ns:
                return
        self._anchor_ns = anchor_ns
        self._aim(anchor_ns, self._period_ns)
