"""Checks of the clocks (source, resolution, and synchronisation of the time of day) and of CPU frequencies."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from onrig.tools.doctor.finding import REAL_TIME_PAGE, Check, Needs, report_failure, report_pass, report_warning
from onrig.tools.machine import Machine

_SLOW_SOURCES: Final = ("acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit")
"""Clock sources that take a microsecond or more to read, or that count in milliseconds."""
_CLOCKSOURCE_FOLDER: Final = "sys/devices/system/clocksource/clocksource0"
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512
"""Buffer size that exceeds ``struct timex`` on any system."""


class ClockFacts(NamedTuple):
    """The kernel's facts about the clocks."""

    source: str | None
    available_sources: str
    resolution_s: float
    """Resolution of CLOCK_MONOTONIC."""
    is_synchronised: bool | None
    """Whether the time of day is synchronised; None if unknown."""


def read_clocks(machine: Machine) -> ClockFacts:
    """Read the facts about the clock source, its resolution and the time of day."""
    return ClockFacts(
        machine.text(f"{_CLOCKSOURCE_FOLDER}/current_clocksource"),
        machine.text(f"{_CLOCKSOURCE_FOLDER}/available_clocksource") or "",
        time.clock_getres(time.CLOCK_MONOTONIC),
        _query_synchronisation(),
    )


def _query_synchronisation() -> bool | None:
    """Query the kernel's status (adjtimex(2), read-only), which chrony, ntpd and systemd-timesyncd set."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    status = int(adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if status < 0 else status != _TIME_ERROR


def check_clocks(facts: ClockFacts, needs: Needs) -> Iterator[Check]:
    """Yield the findings on the clock source, its resolution and the time of day."""
    if facts.source is None:
        yield report_pass("clocksource", "not reported by this machine")
    elif facts.source in _SLOW_SOURCES:
        better_sources = [s for s in facts.available_sources.split() if s not in _SLOW_SOURCES]
        path = f"/{_CLOCKSOURCE_FOLDER}/current_clocksource"
        remedy = (
            f"echo {better_sources[0]} | sudo tee {path}"
            if better_sources
            else "see `dmesg` for why the kernel rejected a better clock source"
        )
        yield report_warning("clocksource", f"{facts.source}: reading the clock is slow", remedy)
    else:
        yield report_pass("clocksource", facts.source)
    if facts.resolution_s > 1e-6:
        finding = f"CLOCK_MONOTONIC counts in steps of {facts.resolution_s * 1e3:g} ms"
        yield needs.timing_finding(
            "clock-resolution", finding, "boot a kernel with high-resolution timers (highres=on)"
        )
    else:
        yield report_pass("clock-resolution", f"CLOCK_MONOTONIC counts in steps of {facts.resolution_s * 1e9:g} ns")
    if facts.is_synchronised is None:
        yield report_pass("time-sync", "unknown; only dates in the run folder depend on it")
    elif facts.is_synchronised:
        yield report_pass("time-sync", "the time of day is synchronised")
    else:
        finding = "the time of day is not synchronised: dates in run folders may be wrong (ticks do not depend on it)"
        yield report_warning("time-sync", finding, "sudo timedatectl set-ntp true")


def examine_clocks(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about the clock source, its resolution and the time of day, and check them."""
    yield from check_clocks(read_clocks(machine), needs)


_PI_FLAGS: Final = "sys/devices/platform/soc*/soc*:firmware/get_throttled"
"""Pattern of the file of flags; on a Raspberry Pi 5, the name of the bus contains an address: ``soc@107c000000``."""
_THROTTLE_FLAGS: Final = {
    0: "the supply voltage is too low",
    1: "the frequency is capped",
    2: "the processor is throttled",
    3: "the soft temperature limit is active",
}
"""Meaning of each bit of get_throttled; the bit 16 places higher means that the same has happened since boot."""
_THROTTLE_TEMPERATURE_C: Final = 80.0
"""Temperature at which a Raspberry Pi starts to throttle."""
_SUPPLY_REMEDY: Final = (
    "use the board's own power supply (a Raspberry Pi 5 takes 5 V, 5 A) and a short cable; cool the board"
)


class FrequencyFacts(NamedTuple):
    """Facts about CPU frequencies from kernel and firmware."""

    governors: dict[int, str]
    """Frequency governors by CPU."""
    pi_flags: int | None
    """Bits of get_throttled; None on other boards."""
    throttle_counts: int | None
    """Number of thermal throttling events since boot (x86)."""
    hottest_c: float | None


def read_frequency(machine: Machine) -> FrequencyFacts:
    """Read the facts about CPU frequencies and temperature.

    The flags of a Raspberry Pi are queried with vcgencmd if the kernel does not show them.
    """
    governors = {}
    for path in machine.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"):
        governors[int(path.split("/")[4].removeprefix("cpu"))] = machine.text(path) or "?"
    flags = next((machine.number(path, 16) for path in machine.glob(_PI_FLAGS)), None)
    if flags is None and machine.board().startswith("Raspberry"):
        flags = _query_firmware()
    counts = [
        machine.number(p) for p in machine.glob("sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")
    ]
    known_counts = [c for c in counts if c is not None]
    millidegrees = [machine.number(p) for p in machine.glob("sys/class/thermal/thermal_zone*/temp")]
    hottest_c = max((d / 1000 for d in millidegrees if d is not None), default=None)
    return FrequencyFacts(governors, flags, sum(known_counts) if known_counts else None, hottest_c)


def parse_flags(text: str) -> int | None:
    """Parse the output of ``vcgencmd get_throttled``, such as ``throttled=0x50000``."""
    try:
        return int(text.strip().removeprefix("throttled="), 16)
    except ValueError:
        return None


def _query_firmware() -> int | None:
    command = shutil.which("vcgencmd")
    if command is None:
        return None
    try:
        result = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_flags(result.stdout)


def check_frequency(facts: FrequencyFacts, needs: Needs) -> Iterator[Check]:
    """Yield the findings on frequency governors, throttling and temperature."""
    yield _check_governor(facts, needs)
    yield _check_throttling(facts)
    if facts.hottest_c is None:
        yield report_pass("temperature", "not reported by this machine")
    elif facts.hottest_c >= _THROTTLE_TEMPERATURE_C:
        yield report_warning(
            "temperature",
            f"{facts.hottest_c:.0f} °C: close to thermal throttling",
            "cool the board with a fan or a heat sink",
        )
    else:
        yield report_pass("temperature", f"{facts.hottest_c:.0f} °C")


def _check_governor(facts: FrequencyFacts, needs: Needs) -> Check:
    if not facts.governors:
        return report_pass("governor", "no frequency scaling is visible (virtual machine, or controlled by firmware)")
    other_governors = sorted(set(facts.governors.values()) - {"performance"})
    if not other_governors:
        return report_pass("governor", f"performance on all {len(facts.governors)} CPUs")
    slow_cpus = sorted(cpu for cpu, governor in facts.governors.items() if governor != "performance")
    finding = f"{', '.join(other_governors)} on CPU {', '.join(map(str, slow_cpus))}: the CPU slows down between ticks"
    if not needs.realtime:
        return report_pass("governor", f"{', '.join(other_governors)}; lockstep has no deadlines")
    command = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    return report_warning(
        "governor", finding, f"{command}    (until the next boot; permanently: {REAL_TIME_PAGE}, 'The governor')"
    )


def _check_throttling(facts: FrequencyFacts) -> Check:
    if facts.pi_flags is not None:
        active_flags = [text for bit, text in _THROTTLE_FLAGS.items() if facts.pi_flags >> bit & 1]
        past_flags = [text for bit, text in _THROTTLE_FLAGS.items() if facts.pi_flags >> (bit + 16) & 1]
        if active_flags:
            return report_failure(
                "throttling", f"{', '.join(active_flags)} (flags {facts.pi_flags:#x})", _SUPPLY_REMEDY
            )
        if past_flags:
            return report_warning(
                "throttling", f"since boot: {', '.join(past_flags)} (flags {facts.pi_flags:#x})", _SUPPLY_REMEDY
            )
        return report_pass("throttling", "none since boot")
    if facts.throttle_counts:
        finding = f"cores were throttled by heat {facts.throttle_counts} times since boot"
        return report_warning("throttling", finding, "improve cooling; clean the fan")
    return report_pass(
        "throttling", "none since boot" if facts.throttle_counts == 0 else "not reported by this machine"
    )


def examine_frequency(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about CPU frequencies and temperature, and check them."""
    yield from check_frequency(read_frequency(machine), needs)
