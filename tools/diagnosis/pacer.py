"""A loop that does nothing but wake up in time, as the measured child of ``onrig doctor``: JSON in, JSON out.

``python -m onrig.tools.diagnosis.pacer REQUEST``.  Absolute deadlines on CLOCK_MONOTONIC; after an overrun it goes on
at the next point of the grid.  It asks for scheduling class, CPU and locked memory exactly as the control process does.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from onrig.runtime.control.realtime import die_with_parent, enter_realtime, freeze_collector
from onrig.runtime.control.settings import RealTime
from onrig.runtime.histogram import DurationHistogram

READY: Final = b"ready\n"
"""Said before the first tick: locking memory keeps a CPU busy, and whoever measures beside this begins after it."""
_WARM_UP_TICKS: Final = 20
_WARM_UP_NS: Final = 300_000_000


class Request(msgspec.Struct, frozen=True):
    """What to measure."""

    period_ns: int
    ticks: int
    realtime: RealTime


class Answer(msgspec.Struct, frozen=True):
    """What came of it; times in microseconds."""

    ticks: int
    missed: int
    """Points of the grid that passed before the loop was back."""
    p50: float
    p99: float
    p999: float
    max: float
    fifo: bool
    warnings: list[str]


def pace(period_ns: int, ticks: int) -> tuple[array[int], int]:
    """Wake up ``ticks`` times; returns how late each time (ns) and how many points of the grid were missed."""
    late = array("q", bytes(8 * ticks))
    now, sleep = time.monotonic_ns, time.sleep
    missed = 0
    due = now() + period_ns
    for i in range(-max(_WARM_UP_TICKS, _WARM_UP_NS // period_ns), ticks):
        # Python sleeps until an absolute time; what it rounds away is made up for by sleeping again.
        while (left := due - now()) > 0:
            sleep(left * 1e-9)
        behind = now() - due
        if i >= 0:
            late[i] = behind
            missed += behind // period_ns
        due += period_ns * (1 + behind // period_ns)
    return late, missed


def measure(request: Request, on_ready: Callable[[], None] = lambda: None) -> Answer:
    """Enter real time, and measure."""
    warnings = enter_realtime(request.realtime)
    freeze_collector()
    on_ready()
    late, missed = pace(request.period_ns, request.ticks)
    fifo = hasattr(os, "SCHED_FIFO") and os.sched_getscheduler(0) == os.SCHED_FIFO
    histogram = DurationHistogram()
    histogram.add(np.frombuffer(late, np.int64))
    us = {name: value or 0.0 for name, value in histogram.summary_us().items()}
    return Answer(request.ticks, missed, us["p50"], us["p99"], us["p999"], us["max"], fifo, warnings)


def _say_ready() -> None:
    os.write(1, READY)


if __name__ == "__main__":
    die_with_parent()
    answer = measure(msgspec.json.decode(sys.argv[1], type=Request), _say_ready)
    os.write(1, msgspec.json.encode(answer) + b"\n")
