"""Detector of machine stalls: a process with higher priority than the loop that records its late wake-ups.

``python -m onrig.tools.bench.loop.sentinel KIND CPU PRIORITY`` runs until its input ends, then prints what it saw.
It sleeps to absolute deadlines and does almost nothing, so whatever delays it (kernel, hypervisor, firmware) also
delays the loop and is not the loop's fault; the loop's own work cannot delay it, since it has the higher priority.
While a rig is measured it wakes once per period, while the loop sleeps, so it never disturbs a tick, and any stall that
overruns a whole period delays it too.  The kind ``line`` sends itself a byte through a pseudo-terminal at each wake-up,
and times that instead: frames of a twin come the same way, by a worker of the kernel without priority.
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
"""For as long as it is not told when to look; no multiples of any usual period, so that they meet the loop in all
phases and not always or never.

A wake-up takes 40 us of the CPU that is measured: one each millisecond in
any phase made the frames later by as much, at p99.  A stall of 4 ms is sure to be seen then, one of 1 ms by chance.
"""
_AIM: Final = struct.Struct("=qq")
"""Wake-up grid: any grid point and the period; ns."""
_LISTENS_AFTER: Final = 16
"""Wake-ups, each time."""
PRIORITY: Final = 90
NOTED_NS: Final = 150_000
"""Wake-ups this late are kept with their time."""
_KEPT: Final = 100_000
_LATEST_US: Final = 10_000
_PATIENCE_S: Final = 10.0
_ABSOLUTE: Final = 1


class Seen(msgspec.Struct):
    """Records of one sentinel."""

    kind: Kind
    cpu: int
    realtime: bool
    counts: list[int]
    """Wake-ups, or bytes, by lateness in whole microseconds; the last one counts all that were later."""
    max_ns: int
    stalls: list[tuple[int, int]]
    """Wake-ups that were late by at least NOTED_NS: due and awake, in ns of the host's monotonic clock."""

    @property
    def name(self) -> str:
        """What was timed."""
        return f"{'wake-ups' if self.kind == 'timer' else 'bytes through a pty'}, CPU {self.cpu}"

    def histogram(self) -> DurationHistogram:
        """All wake-ups."""
        histogram = DurationHistogram()
        counts = np.array(self.counts, np.int64)
        if counts.any():
            counts[np.flatnonzero(counts)[-1]] -= 1  # the latest of all is known to the nanosecond
            histogram.add(np.repeat(np.arange(len(counts)) * 1000, counts))
            histogram.add(np.array([self.max_ns], np.int64))
        return histogram


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Timer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "first_s", "first_ns")]


def _timer() -> int:
    """A descriptor that gives, at each read, how many periods have passed; OSError where there is none."""
    fd: int = _LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def _arm(fd: int, first_ns: int, period_ns: int) -> None:
    setting = _Timer(*divmod(period_ns, 10**9), *divmod(first_ns, 10**9))
    if _LIBC.timerfd_settime(fd, _ABSOLUTE, ctypes.byref(setting), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def first_look_ns(anchor_ns: int, period_ns: int, now_ns: int) -> int:
    """The second time from now on that is a whole number of periods from ``anchor_ns``: near, but not missed yet."""
    return anchor_ns + ((now_ns - anchor_ns) // period_ns + 2) * period_ns


def _pty() -> tuple[int, int]:
    """Both ends of a pseudo-terminal that lets bytes pass as they are."""
    near, far = os.openpty()
    tty.setraw(far)
    return near, far


def watch(kind: Kind, cpu: int, priority: int) -> Seen:
    """Sleep and note, until standard input ends."""
    realtime = False
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        realtime = True
    period_ns = PERIOD_US[kind] * 1000
    counts = [0] * (_LATEST_US + 1)
    stalls: list[tuple[int, int]] = []
    longest = 0
    now_ns, read = time.monotonic_ns, os.read
    near, far = _pty() if kind == "line" else (-1, -1)
    first_ns = now_ns() + 10 * period_ns
    fd = _timer()
    _arm(fd, first_ns, period_ns)
    gc.freeze()
    gc.disable()
    passed = turns = 0
    while True:
        periods = int.from_bytes(read(fd, 8), sys.byteorder)
        woken_ns = now_ns()
        due_ns = first_ns + passed * period_ns  # of the first of those periods: the later ones it slept through
        passed += periods
        if near >= 0:
            due_ns = woken_ns
            os.write(near, b"x")
            read(far, 1)
            woken_ns = now_ns()
        late_ns = woken_ns - due_ns
        counts[min(late_ns // 1000, _LATEST_US)] += 1
        if late_ns > longest:
            longest = late_ns
        if late_ns >= NOTED_NS and len(stalls) < _KEPT:
            stalls.append((due_ns, woken_ns))
        turns += 1
        if turns % _LISTENS_AFTER == 0 and select.select([0], (), (), 0)[0]:
            told = read(0, 64 * _AIM.size)
            if len(told) < _AIM.size:
                return Seen(kind, cpu, realtime, counts, longest, stalls)
            anchor_ns, period_ns = _AIM.unpack(told[-_AIM.size :])
            first_ns, passed = first_look_ns(anchor_ns, period_ns, now_ns()), 0
            _arm(fd, first_ns, period_ns)


class Sentinels:
    """One on each of the given CPUs, and one for the line on ``line_cpu``; a context that leaves none behind."""

    def __init__(self, cpus: Sequence[int], line_cpu: int | None, priority: int = PRIORITY) -> None:
        wanted = [("timer", cpu) for cpu in cpus] + ([("line", line_cpu)] if line_cpu is not None else [])
        self._timers = list(cpus)
        self._companions = [Companion(__name__, kind, str(cpu), str(priority), piped=True) for kind, cpu in wanted]

    def __enter__(self) -> Sentinels:
        return self

    def __exit__(self, *error: object) -> None:
        for companion in self._companions:
            companion.__exit__()

    def aim(self, cpu: int | None, anchor_ns: int, period_ns: int) -> None:
        """Have the one on ``cpu`` wake at whole numbers of periods from ``anchor_ns``, of the monotonic clock."""
        if cpu in self._timers:
            pipe = self._companions[self._timers.index(cpu)].process.stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.write(_AIM.pack(anchor_ns, period_ns))
                pipe.flush()

    def aim_nowhere(self, cpu: int | None) -> None:
        """Let the one on ``cpu`` wake in any phase again."""
        self.aim(cpu, time.monotonic_ns(), 1000 * PERIOD_US["timer"])

    def seen(self) -> list[Seen]:
        """Stop the sentinels and collect their records; those that could not run have none."""
        found = []
        for companion in self._companions:
            with contextlib.suppress(subprocess.TimeoutExpired, msgspec.DecodeError, ValueError):
                found.append(msgspec.json.decode(companion.process.communicate(timeout=_PATIENCE_S)[0], type=Seen))
        return found


def main(arguments: Sequence[str]) -> int:
    """Watch as told; one JSON object on standard output."""
    kind: Kind = "line" if arguments[0] == "line" else "timer"
    seen = watch(kind, int(arguments[1]), int(arguments[2]))
    sys.stdout.buffer.write(msgspec.json.encode(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


_REST: Final = 0.6
"""Of a period after a frame: the tick is over, and no rehearsal of the next one has begun."""
_TOLERATED: Final = 0.05
"""Of a period: by so much the device's clock may move against the host's before the sentinel is told again."""


class Aim:
    """Follows the phase of a device's frames, which changes where a twin pauses or a crystal drifts."""

    def __init__(self, period_ns: int, aim: Callable[[int, int], None]) -> None:
        self._period_ns, self._aim = period_ns, aim
        self._told_ns: int | None = None

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records of a loop in real time."""
        if not len(records):
            return
        anchor_ns = int(records["t_mono_ns"][-1]) + round(_REST * self._period_ns)
        if self._told_ns is not None:
            off_ns = (anchor_ns - self._told_ns) % self._period_ns
            if min(off_ns, self._period_ns - off_ns) <= _TOLERATED * self._period_ns:
                return
        self._told_ns = anchor_ns
        self._aim(anchor_ns, self._period_ns)
