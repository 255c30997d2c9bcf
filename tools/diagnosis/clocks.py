"""The clocks: what the kernel counts with, how finely, and whether the time of day is right."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from onrig.tools.diagnosis.check import Check, passed, warned
from onrig.tools.diagnosis.machine import Machine
from onrig.tools.diagnosis.needs import Needs

_SLOW: Final = ("acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit")
"""Sources that cost a microsecond or more for each look, or tick in milliseconds."""
_SOURCES: Final = "sys/devices/system/clocksource/clocksource0"
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512
"""More than ``struct timex`` has on any system."""


class ClockFacts(NamedTuple):
    """What the kernel says."""

    source: str | None
    available: str
    resolution_s: float
    """Of CLOCK_MONOTONIC."""
    synchronised: bool | None
    """Whether something keeps the time of day right; None where the kernel cannot be asked."""


def read(machine: Machine) -> ClockFacts:
    """Read it."""
    return ClockFacts(
        machine.text(f"{_SOURCES}/current_clocksource"),
        machine.text(f"{_SOURCES}/available_clocksource") or "",
        time.clock_getres(time.CLOCK_MONOTONIC),
        _synchronised(),
    )


def _synchronised() -> bool | None:
    """Ask the kernel (adjtimex(2), changing nothing): chrony, ntpd and systemd-timesyncd all tell it."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    answer = int(adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if answer < 0 else answer != _TIME_ERROR


def judge(facts: ClockFacts, needs: Needs) -> Iterator[Check]:
    """Judge it."""
    if facts.source is None:
        yield passed("clocksource", "this machine does not show it")
    elif facts.source in _SLOW:
        better = [s for s in facts.available.split() if s not in _SLOW]
        path = f"/{_SOURCES}/current_clocksource"
        remedy = (
            f"echo {better[0]} | sudo tee {path}" if better else "look in `dmesg` why the kernel gave up a better one"
        )
        yield warned("clocksource", f"{facts.source}: every look at the clock is slow", remedy)
    else:
        yield passed("clocksource", facts.source)
    if facts.resolution_s > 1e-6:
        found = f"CLOCK_MONOTONIC counts in steps of {facts.resolution_s * 1e3:g} ms"
        yield needs.punctuality("clock-resolution", found, "boot a kernel with high-resolution timers (highres=on)")
    else:
        yield passed("clock-resolution", f"CLOCK_MONOTONIC counts in steps of {facts.resolution_s * 1e9:g} ns")
    if facts.synchronised is None:
        yield passed("time-sync", "the kernel does not say; only dates in the run folder depend on it")
    elif facts.synchronised:
        yield passed("time-sync", "the time of day is synchronised")
    else:
        found = "the time of day is not synchronised: dates in run folders may be wrong (ticks do not depend on it)"
        yield warned("time-sync", found, "sudo timedatectl set-ntp true")


def examine(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Look, and judge."""
    yield from judge(read(machine), needs)
