"""Timing of single calls with the nanosecond clock, and of the machine's own stalls beside them."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

Call = Callable[[int], object]

SKIPPED: Final = object()
"""A call that returns this did not do what is measured; its time is left out."""

_now: Final = time.perf_counter_ns
_busy: Final = time.thread_time_ns
_WARM_UP: Final = 100


class Quantiles(NamedTuple):
    """Percentiles of a set of durations."""

    p50: float
    p99: float
    p999: float
    p9999: float
    max: float


def quantiles_us(durations_ns: Sequence[int]) -> Quantiles:
    """Return the percentiles in microseconds; ValueError when there is nothing."""
    if not durations_ns:
        raise ValueError("no durations")
    us = np.asarray(durations_ns, np.float64) / 1e3
    p50, p99, p999, p9999 = np.quantile(us, [0.5, 0.99, 0.999, 0.9999]).tolist()
    return Quantiles(p50, p99, p999, p9999, float(us.max()))


def quiet_collector() -> None:
    """Do as the rig's processes do before they start to tick: collect, freeze, and switch collection off."""
    gc.collect()
    gc.freeze()
    gc.disable()


def measure(call: Call, indices: Sequence[int], limit_ns: int, before: Call | None = None) -> list[int]:
    """Time ``call(i)`` for the ``indices`` in turn until they or ``limit_ns`` are used up; durations in ns.

    ``before(i)`` runs ahead of each call, outside the clock.  The first calls, a tenth of the limit at most, warm up
    and do not count.  Two clock reads and one Python call are part of every duration.
    """
    end = _now() + limit_ns // 10
    for i in indices[:_WARM_UP]:
        if before is not None:
            before(i)
        call(i)
        if _now() > end:
            break
    durations = []
    end = _now() + limit_ns
    for i in indices:
        if before is not None:
            before(i)
        start = _now()
        done = call(i)
        stop = _now()
        if done is not SKIPPED:
            durations.append(stop - start)
        if stop > end:
            break
    return durations


class BesideStalls(NamedTuple):
    """Durations of calls, and of spans of nothing but clock reads between them, in ns."""

    calls: list[int]
    spans: list[int]
    busy_calls: list[int]
    """Processor time of the calls: what a neighbour took away meanwhile is not in it."""
    busy_spans: list[int]


def measure_beside_stalls(call: Call, indices: Sequence[int], limit_ns: int) -> BesideStalls:
    """Time ``call`` as :func:`measure` does, and after each call a span of clock reads: the machine's stall floor.

    A span lasts as long as a call does at its median, so that a stall is as likely to hit either, and they alternate,
    so that both see the same minute.
    """
    calm = measure(call, indices[:_WARM_UP], limit_ns // 10)
    span = int(statistics.median(calm)) if calm else 1000
    out = BesideStalls([], [], [], [])
    end = _now() + limit_ns
    for i in indices:
        busy_start = _busy()
        start = _now()
        done = call(i)
        stop = _now()
        busy_stop = _busy()
        if done is not SKIPPED:
            out.calls.append(stop - start)
            out.busy_calls.append(busy_stop - busy_start)
        busy_start = _busy()
        start = _now()
        until = start + span
        while (read := _now()) < until:
            pass
        busy_stop = _busy()
        if done is not SKIPPED:
            out.spans.append(read - start)
            out.busy_spans.append(busy_stop - busy_start)
        if read > end:
            break
    return out


def clock_cost_us() -> float:
    """Return what one clock read costs at the median."""
    reads = [_now() for _ in range(2001)]
    return statistics.median(b - a for a, b in itertools.pairwise(reads)) / 1e3
