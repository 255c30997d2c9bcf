"""How late a loop wakes up on this machine, as it is now: at the configured rate, priority and CPU."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.control.realtime import loop_cpu
from onrig.runtime.control.settings import RealTime
from onrig.tools.diagnosis import cyclictest
from onrig.tools.diagnosis.check import Check, Verdict, warned
from onrig.tools.diagnosis.cyclictest import Latency
from onrig.tools.diagnosis.machine import Machine
from onrig.tools.diagnosis.needs import PAGE, Needs
from onrig.tools.diagnosis.pacer import READY, Answer, Request

LONG_S: Final = 10.0
QUICK_S: Final = 1.0
_COME_UP_S: Final = 30.0
_TICKS: Final = (20, 100_000)
_LATE_SHARE: Final = 0.1
"""p99.9 beyond this share of the period is worth a warning: what is left must hold the policy and the line."""

OnProgress = Callable[[float], None]
"""Told the seconds that are left."""


class LoopFacts(NamedTuple):
    """What was measured."""

    answer: Answer | None
    trouble: str
    """Why there is no answer."""
    beside: Latency | None
    """cyclictest's, in the same seconds; None where it is not installed or does not run."""
    preempt_rt: bool


def ticks_in(seconds: float, rate_hz: float) -> int:
    """How many ticks to measure."""
    low, high = _TICKS
    return min(high, max(low, round(seconds * rate_hz)))


def read(machine: Machine, needs: Needs, seconds: float, on_progress: OnProgress) -> LoopFacts:
    """Measure, with cyclictest beside it where that is installed."""
    settings = RealTime(needs.priority, needs.cpu, needs.lock_memory)
    ticks = ticks_in(seconds, needs.rate_hz)
    seconds = ticks / needs.rate_hz
    request = Request(round(1e9 / needs.rate_hz), ticks, settings)
    preempt_rt = machine.number("sys/kernel/realtime") == 1
    arguments = [sys.executable, "-m", "onrig.tools.diagnosis.pacer", msgspec.json.encode(request).decode()]
    ours = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    theirs = None
    try:
        _await_ready(ours)
        command = cyclictest.command(needs.period_us, seconds, needs.priority, loop_cpu(settings))
        if command is not None and needs.priority > 0:
            theirs = cyclictest.start(command)
        until = time.monotonic() + seconds + _COME_UP_S
        while True:
            try:
                out, err = ours.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                left = until - time.monotonic()
                if left <= 0:
                    return LoopFacts(None, f"the loop did not end in {seconds + _COME_UP_S:.0f} s", None, preempt_rt)
                on_progress(max(0.0, left - _COME_UP_S))
        beside = None if theirs is None else _result_of(theirs)
        if ours.returncode:
            lines = err.decode(errors="replace").strip().splitlines()
            return LoopFacts(None, lines[-1] if lines else f"code {ours.returncode}", beside, preempt_rt)
        return LoopFacts(msgspec.json.decode(out, type=Answer), "", beside, preempt_rt)
    finally:
        for process in (ours, theirs):
            if process is not None:
                if process.poll() is None:
                    process.kill()
                process.communicate()


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    """Wait for its first line, which is not looked at: without one, what follows tells why."""
    if process.stdout is not None and select.select((process.stdout,), (), (), _COME_UP_S)[0]:
        os.read(process.stdout.fileno(), len(READY))


def _result_of(process: subprocess.Popen[str]) -> Latency | None:
    try:
        return cyclictest.latency_of(process.communicate(timeout=_COME_UP_S)[0])
    except subprocess.TimeoutExpired:
        return None


def judge(facts: LoopFacts, needs: Needs) -> Check:
    """Judge it: an ordinary kernel promises nothing, so there is only a warning; PREEMPT_RT is held to its promise."""
    answer = facts.answer
    if answer is None:
        return warned("loop", f"could not be measured: {facts.trouble}", "run `onrig doctor` again, and report it")
    period = needs.period_us
    under = f"SCHED_FIFO {needs.priority}" if answer.fifo else "the ordinary scheduler"
    found = (
        f"{answer.ticks} ticks at {needs.rate_hz:g} Hz under {under}: late by p50 {answer.p50:.0f}, "
        f"p99 {answer.p99:.0f}, p99.9 {answer.p999:.0f}, max {answer.max:.0f} us; missed {answer.missed}"
    )
    figures = {"p50_us": answer.p50, "p99_us": answer.p99, "p999_us": answer.p999, "max_us": answer.max}
    figures |= {"ticks": float(answer.ticks), "missed": float(answer.missed), "period_us": period}
    if facts.beside is not None:
        p50, p99, p999, top = facts.beside
        found += f" (cyclictest beside it: p50 {p50:.0f}, p99 {p99:.0f}, p99.9 {p999:.0f}, max {top:.0f} us)"
        figures |= {"cyclictest_p50_us": p50, "cyclictest_p99_us": p99, "cyclictest_p999_us": p999}
        figures["cyclictest_max_us"] = top
    if not answer.missed and answer.p999 <= _LATE_SHARE * period:
        return Check("loop", Verdict.PASS, found, "", figures)
    if not needs.realtime:
        return Check("loop", Verdict.PASS, f"{found}; in lockstep nothing is ever late", "", figures)
    stalls = facts.beside is not None and facts.beside.p999 > _LATE_SHARE * period
    if stalls:
        remedy = f"the machine itself stalls (cyclictest, too): end what runs beside it; {PAGE}"
    elif not answer.fifo:
        remedy = f"grant SCHED_FIFO (see sched-fifo above); {PAGE}"
    else:
        remedy = f"end what runs beside it, or lower rate_hz; {PAGE}"
    broken = facts.preempt_rt and answer.fifo and answer.missed and needs.config is not None
    return Check("loop", Verdict.FAIL if broken else Verdict.WARN, found, remedy, figures)


def examine(machine: Machine, needs: Needs, seconds: float, on_progress: OnProgress) -> Iterator[Check]:
    """Measure, and judge."""
    yield judge(read(machine, needs, seconds, on_progress), needs)
