"""Measurement of this machine's wake-up latency at the rate, priority and CPU configured for the loop."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.control.realtime import die_with_parent, enter_realtime, freeze_collector, loop_cpu
from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.process_settings import RealTime
from onrig.tools.doctor import cyclictest
from onrig.tools.doctor.finding import REAL_TIME_PAGE, Check, Needs, Verdict, report_warning
from onrig.tools.machine import Machine

LONG_DURATION_S: Final = 10.0
QUICK_DURATION_S: Final = 1.0
_START_TIMEOUT_S: Final = 30.0
_TICK_COUNT_RANGE: Final = (20, 100_000)
_MAX_LATE_FRACTION: Final = 0.1
"""p99.9 latency above which a warning is given, as a fraction of the period. The policy and the transmission need the
rest of the period."""

OnProgress = Callable[[float], None]
"""Function that receives the remaining time (s)."""


class Latency(NamedTuple):
    """Latencies measured by cyclictest, in microseconds."""

    p50: float
    p99: float
    p999: float
    max: float


class LoopResults(NamedTuple):
    """Results of the measurement."""

    measurement: Measurement | None
    problem: str
    """Why there is no measurement; empty if there is one."""
    cyclictest: Latency | None
    """Result of cyclictest, which runs at the same time; None if it did not run or failed."""
    preempt_rt: bool


def tick_count(seconds: float, rate_hz: float) -> int:
    """Return the number of ticks to measure."""
    low, high = _TICK_COUNT_RANGE
    return min(high, max(low, round(seconds * rate_hz)))


def read_loop(machine: Machine, needs: Needs, seconds: float, on_progress: OnProgress) -> LoopResults:
    """Measure a loop and run cyclictest at the same time, if it is installed and the loop has a real-time priority."""
    settings = RealTime(needs.priority, needs.cpu, needs.lock_memory)
    ticks = tick_count(seconds, needs.rate_hz)
    seconds = ticks / needs.rate_hz
    request = MeasurementRequest(round(1e9 / needs.rate_hz), ticks, settings)
    preempt_rt = machine.number("sys/kernel/realtime") == 1
    arguments = [sys.executable, "-m", "onrig.tools.doctor.punctuality", msgspec.json.encode(request).decode()]
    loop_process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cyclictest_process = None
    try:
        _await_ready(loop_process)
        program = cyclictest.find()
        if program is not None and needs.priority > 0:
            cpu, period_us = loop_cpu(settings), round(needs.period_us)
            command = cyclictest.command(
                program, cpu=cpu, priority=needs.priority, period_us=period_us, seconds=seconds
            )
            cyclictest_process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        deadline_s = time.monotonic() + seconds + _START_TIMEOUT_S
        while True:
            try:
                out, err = loop_process.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    return LoopResults(
                        None, f"the loop did not end within {seconds + _START_TIMEOUT_S:.0f} s", None, preempt_rt
                    )
                on_progress(max(0.0, remaining_s - _START_TIMEOUT_S))
        latency = None if cyclictest_process is None else _read_latency(cyclictest_process)
        if loop_process.returncode:
            lines = err.decode(errors="replace").strip().splitlines()
            return LoopResults(None, lines[-1] if lines else f"code {loop_process.returncode}", latency, preempt_rt)
        return LoopResults(msgspec.json.decode(out, type=Measurement), "", latency, preempt_rt)
    finally:
        for process in (loop_process, cyclictest_process):
            if process is not None:
                if process.poll() is None:
                    process.kill()
                process.communicate()


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    """Wait for the line before the first tick; if it does not arrive, the process reports the reason when it ends."""
    if process.stdout is not None and select.select((process.stdout,), (), (), _START_TIMEOUT_S)[0]:
        os.read(process.stdout.fileno(), len(READY_LINE))


def _read_latency(process: subprocess.Popen[str]) -> Latency | None:
    try:
        percentiles_us = cyclictest.parse(process.communicate(timeout=_START_TIMEOUT_S)[0]).summary_us()
    except (subprocess.TimeoutExpired, cyclictest.CyclictestFailed):
        return None
    return Latency(*(percentiles_us[name] or 0.0 for name in Latency._fields))


def check_loop(facts: LoopResults, needs: Needs) -> Check:
    """Check the latencies.

    A stock kernel guarantees nothing, so its verdict is WARN at worst. With PREEMPT_RT and SCHED_FIFO, missed ticks of
    a configured run are a FAIL.
    """
    measurement = facts.measurement
    if measurement is None:
        return report_warning(
            "loop", f"could not be measured: {facts.problem}", "run `onrig doctor` again; if this recurs, report it"
        )
    period_us = needs.period_us
    scheduler = f"SCHED_FIFO {needs.priority}" if measurement.has_fifo else "the default scheduler"
    finding = (
        f"{measurement.ticks} ticks at {needs.rate_hz:g} Hz under {scheduler}: lateness p50 {measurement.p50:.0f}, "
        f"p99 {measurement.p99:.0f}, p99.9 {measurement.p999:.0f}, max {measurement.max:.0f} us; "
        f"missed {measurement.missed}"
    )
    figures = {
        "p50_us": measurement.p50,
        "p99_us": measurement.p99,
        "p999_us": measurement.p999,
        "max_us": measurement.max,
    }
    figures |= {"ticks": float(measurement.ticks), "missed": float(measurement.missed), "period_us": period_us}
    if facts.cyclictest is not None:
        p50, p99, p999, max_us = facts.cyclictest
        finding += f" (cyclictest: p50 {p50:.0f}, p99 {p99:.0f}, p99.9 {p999:.0f}, max {max_us:.0f} us)"
        figures |= {"cyclictest_p50_us": p50, "cyclictest_p99_us": p99, "cyclictest_p999_us": p999}
        figures["cyclictest_max_us"] = max_us
    if not measurement.missed and measurement.p999 <= _MAX_LATE_FRACTION * period_us:
        return Check("loop", Verdict.PASS, finding, "", figures)
    if not needs.realtime:
        return Check("loop", Verdict.PASS, f"{finding}; lockstep has no deadlines", "", figures)
    is_machine_stalling = facts.cyclictest is not None and facts.cyclictest.p999 > _MAX_LATE_FRACTION * period_us
    if is_machine_stalling:
        remedy = f"the machine stalls (cyclictest is late, too): end other programs; {REAL_TIME_PAGE}"
    elif not measurement.has_fifo:
        remedy = f"grant SCHED_FIFO (see sched-fifo above); {REAL_TIME_PAGE}"
    else:
        remedy = f"end other programs, or lower rate_hz; {REAL_TIME_PAGE}"
    realtime_fails = facts.preempt_rt and measurement.has_fifo and measurement.missed and needs.config is not None
    return Check("loop", Verdict.FAIL if realtime_fails else Verdict.WARN, finding, remedy, figures)


def examine_loop(machine: Machine, needs: Needs, seconds: float, on_progress: OnProgress) -> Iterator[Check]:
    """Measure the loop's wake-up latency and check it."""
    yield check_loop(read_loop(machine, needs, seconds, on_progress), needs)


READY_LINE: Final = b"ready\n"
"""Line printed before the first tick.

Locking memory keeps a CPU busy before this line, so concurrent measurements must not start earlier.
"""
_WARM_UP_TICKS: Final = 20
_WARM_UP_NS: Final = 300_000_000


class MeasurementRequest(msgspec.Struct, frozen=True):
    """Parameters of the measurement."""

    period_ns: int
    ticks: int
    realtime: RealTime


class Measurement(msgspec.Struct, frozen=True):
    """Results of the measurement; times in microseconds."""

    ticks: int
    missed: int
    """Number of missed periods."""
    p50: float
    p99: float
    p999: float
    max: float
    has_fifo: bool
    warnings: list[str]


def time_wake_ups(period_ns: int, ticks: int) -> tuple[array[int], int]:
    """Wake up ``ticks`` times, and return the lateness of each wake-up (ns) and the number of missed periods."""
    lateness_ns = array("q", bytes(8 * ticks))
    now, sleep = time.monotonic_ns, time.sleep
    n_missed = 0
    due_ns = now() + period_ns
    for i in range(-max(_WARM_UP_TICKS, _WARM_UP_NS // period_ns), ticks):
        # Python rounds the duration of a sleep, so a second sleep covers the remainder.
        while (remaining_ns := due_ns - now()) > 0:
            sleep(remaining_ns * 1e-9)
        delay_ns = now() - due_ns
        if i >= 0:
            lateness_ns[i] = delay_ns
            n_missed += delay_ns // period_ns
        due_ns += period_ns * (1 + delay_ns // period_ns)
    return lateness_ns, n_missed


def measure(request: MeasurementRequest, on_ready: Callable[[], None] = lambda: None) -> Measurement:
    """Measure under real-time scheduling."""
    warnings = enter_realtime(request.realtime)
    freeze_collector()
    on_ready()
    lateness_ns, missed = time_wake_ups(request.period_ns, request.ticks)
    has_fifo = hasattr(os, "SCHED_FIFO") and os.sched_getscheduler(0) == os.SCHED_FIFO
    histogram = DurationHistogram()
    histogram.add(np.frombuffer(lateness_ns, np.int64))
    percentiles_us = {name: value or 0.0 for name, value in histogram.summary_us().items()}
    return Measurement(
        request.ticks,
        missed,
        percentiles_us["p50"],
        percentiles_us["p99"],
        percentiles_us["p999"],
        percentiles_us["max"],
        has_fifo,
        warnings,
    )


def _print_ready() -> None:
    os.write(1, READY_LINE)


if __name__ == "__main__":
    die_with_parent()
    measurement = measure(msgspec.json.decode(sys.argv[1], type=MeasurementRequest), _print_ready)
    os.write(1, msgspec.json.encode(measurement) + b"\n")
