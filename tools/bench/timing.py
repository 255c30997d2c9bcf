"""Durations of single calls and of the machine's stalls between them, and ratios of interleaved measurements."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

Call = Callable[[int], object]

SKIPPED: Final = object()
"""Result of a call that did not perform the measured operation, so that its duration is discarded."""

_monotonic_ns: Final = time.perf_counter_ns
_cpu_clock_ns: Final = time.thread_time_ns
_N_WARM_UP_CALLS: Final = 100


class Quantiles(NamedTuple):
    """Percentiles of a set of durations."""

    p50: float
    p99: float
    p999: float
    p9999: float
    max: float


def quantiles_us(durations_ns: Sequence[int]) -> Quantiles:
    """Return the percentiles in microseconds. Raises ValueError if there are no durations."""
    if not durations_ns:
        raise ValueError("no durations")
    durations_us = np.asarray(durations_ns, np.float64) / 1e3
    p50, p99, p999, p9999 = np.quantile(durations_us, [0.5, 0.99, 0.999, 0.9999]).tolist()
    return Quantiles(p50, p99, p999, p9999, float(durations_us.max()))


def disable_collector() -> None:
    """Collect garbage, freeze the remaining objects and disable the collector, as in the processes of a rig."""
    gc.collect()
    gc.freeze()
    gc.disable()


def measure(
    call: Call,
    indices: Sequence[int],
    limit_ns: int,
    untimed_call: Call | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[int]:
    """Time ``call(i)`` for each of ``indices`` in turn, for at most ``limit_ns``, and return the durations (ns).

    ``untimed_call(i)`` runs before each call and is not timed. Before the measurement, calls for the first indices warm
    up for at most a tenth of the limit. Each duration, read from ``clock``, includes two clock reads and one Python
    call.
    """
    deadline_ns = _monotonic_ns() + limit_ns // 10
    for i in indices[:_N_WARM_UP_CALLS]:
        if untimed_call is not None:
            untimed_call(i)
        call(i)
        if _monotonic_ns() > deadline_ns:
            break
    durations = []
    deadline_ns = _monotonic_ns() + limit_ns
    for i in indices:
        if untimed_call is not None:
            untimed_call(i)
        start_ns = clock()
        result = call(i)
        stop_ns = clock()
        if result is not SKIPPED:
            durations.append(stop_ns - start_ns)
        if _monotonic_ns() > deadline_ns:
            break
    return durations


class Timings(msgspec.Struct, frozen=True):
    """Durations (ns) of calls and, if measured, of spans of clock reads between them."""

    calls: list[int]
    spans: list[int] = []
    busy_calls: list[int] = []
    """Processor time of the calls; excludes time lost to other processes."""
    busy_spans: list[int] = []


def measure_with_stalls(call: Call, indices: Sequence[int], limit_ns: int) -> Timings:
    """Time ``call`` like :func:`measure` and, after each call, a span of clock reads that shows the machine's stalls.

    A span lasts as long as the median call, so that a stall is equally likely in either, and the two alternate under
    equal conditions.
    """
    warm_up = measure(call, indices[:_N_WARM_UP_CALLS], limit_ns // 10)
    span_ns = int(statistics.median(warm_up)) if warm_up else 1000
    timings = Timings([], [], [], [])
    deadline_ns = _monotonic_ns() + limit_ns
    for i in indices:
        cpu_start_ns = _cpu_clock_ns()
        start_ns = _monotonic_ns()
        result = call(i)
        stop_ns = _monotonic_ns()
        cpu_stop_ns = _cpu_clock_ns()
        if result is not SKIPPED:
            timings.calls.append(stop_ns - start_ns)
            timings.busy_calls.append(cpu_stop_ns - cpu_start_ns)
        cpu_start_ns = _cpu_clock_ns()
        start_ns = _monotonic_ns()
        end_ns = start_ns + span_ns
        while (read_ns := _monotonic_ns()) < end_ns:
            pass
        cpu_stop_ns = _cpu_clock_ns()
        if result is not SKIPPED:
            timings.spans.append(read_ns - start_ns)
            timings.busy_spans.append(cpu_stop_ns - cpu_start_ns)
        if read_ns > deadline_ns:
            break
    return timings


def clock_cost_us() -> float:
    """Return the median cost of one clock read (µs)."""
    readings_ns = [_monotonic_ns() for _ in range(2001)]
    return statistics.median(b - a for a, b in itertools.pairwise(readings_ns)) / 1e3


_T_975: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t at 97.5 % for 1, 2, ... degrees of freedom."""


class Ratio(NamedTuple):
    """Ratio of a figure in two kinds of slices, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def includes_one(self) -> bool:
        """Whether the interval includes 1."""
        return self.low <= 1.0 <= self.high


def ratio_of_means(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the ratio of geometric means, with Welch's t interval on the logarithms.

    The interval is 0 to infinity if either side has a single slice. All values are NaN if one has no slices.
    """
    if not (numerators and denominators):
        return Ratio(math.nan, math.nan, math.nan)
    logs = [[math.log(max(v, 1e-9)) for v in values] for values in (numerators, denominators)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    if min(map(len, logs)) < 2:
        return Ratio(math.exp(difference), 0.0, math.inf)
    parts = [statistics.variance(values) / len(values) for values in logs]
    error = math.sqrt(sum(parts))
    degrees_of_freedom = 1.0
    if error > 0:
        degrees_of_freedom = error**4 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, logs, strict=True))
    # Degrees of freedom are rounded down; beyond the table, t is nearly constant.
    t = _T_975[max(0, int(degrees_of_freedom) - 1)] if int(degrees_of_freedom) <= len(_T_975) else 2.12
    return Ratio(*(math.exp(difference + k * t * error) for k in (0, -1, 1)))
