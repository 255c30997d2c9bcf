"""Punctuality by Linux: scheduling class, locked memory, no collector, the CPU that devices interrupt least.

The kernel charges what it does in an interrupt, and in the soft interrupt after it, to the thread that it interrupted;
SCHED_FIFO does not help.  Where a disk completes its writes on the loop's CPU, the log's own writing comes back to it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:  # `onrig doctor` begins here, and has to find a broken msgspec
    from onrig.runtime.control.settings import RealTime


_MCL_CURRENT, _MCL_FUTURE = 1, 2
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_CPU_LATENCY: Final = Path("/dev/cpu_dma_latency")
PARENT: Final = "ONRIG_PARENT"
"""Environment variable that names the process whose child this one is to be."""
LOOP_CPU: Final = "ONRIG_LOOP_CPU"
"""Environment variable with the CPU that ``auto`` has come to in this run, for all of its processes."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that a killed supervisor leaves no process behind."""
    if hasattr(os, "sched_setscheduler"):
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # One that died before, while this process was still importing, sends nothing any more.
        if os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
            os.kill(os.getpid(), signal.SIGTERM)


def enter_realtime(settings: RealTime) -> list[str]:
    """Apply the settings to this process; returns one warning line for each that was not granted."""
    warnings = []
    if settings.stay_awake:
        stay_awake()
    cpu = loop_cpu(settings)
    if cpu is not None:
        try:
            os.sched_setaffinity(0, {cpu})
        except (OSError, ValueError, AttributeError) as error:
            warnings.append(f"CPU {cpu} is not to be had ({error}); running on any")
    if settings.priority > 0:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(settings.priority))
        except (OSError, AttributeError):
            warnings.append(
                "no permission for SCHED_FIFO: ticks will be late under load; allow it with 'rtprio 99' in limits.conf"
            )
    if settings.lock_memory and hasattr(os, "sched_setscheduler"):
        libc = _libc()
        libc.prctl(_PR_SET_TIMERSLACK, 1000)
        if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
            warnings.append("memory is not locked: page faults may delay ticks; raise 'memlock' in limits.conf")
    return warnings


def stay_awake(device: Path = _CPU_LATENCY) -> int | None:
    """Ask the kernel for no wake-up latency, as cyclictest does, for as long as this process lives.

    Returns the descriptor that holds the request; None where the machine has no such device or does not let us.
    """
    try:
        descriptor = os.open(device, os.O_WRONLY)
    except OSError:
        return None
    try:
        os.write(descriptor, struct.pack("=i", 0))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def loop_cpu(settings: RealTime) -> int | None:
    """The CPU that the loop runs on; None for any."""
    if settings.cpu != "auto":
        return settings.cpu
    settled = os.environ.get(LOOP_CPU, "")
    return int(settled) if settled.isdigit() else _quietest_here()


def settle_loop_cpu() -> None:
    """Decide what ``auto`` comes to, for this process and those that it starts from now on.

    Each by itself might come to another answer: who has left the loop's CPU no longer sees it, and counts move.
    """
    cpu = _quietest_here()
    if cpu is not None:
        os.environ.setdefault(LOOP_CPU, str(cpu))


def _quietest_here() -> int | None:
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return quietest(cpus, rates_hz(read_interrupts(), uptime_s())) if len(cpus) > 1 else None


def leave_cpu(settings: RealTime) -> None:
    """Keep this process off the CPU that the loop has been given, so that it does not empty its caches."""
    cpu = loop_cpu(settings)
    if cpu is None or not hasattr(os, "sched_setaffinity"):
        return
    others = os.sched_getaffinity(0) - {cpu}
    if others:
        os.sched_setaffinity(0, others)


def freeze_collector() -> None:
    """Collect once, move what is left out of the collector's sight, and switch it off: the tick forms no cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()


MATTERS_HZ: Final = 1.0
"""Interrupts per second, since the machine came up, that are worth avoiding."""
_ROOT: Final = Path("/")


class Interrupt(NamedTuple):
    """A device's line; those of the CPUs themselves (timers, calls between them) cannot be moved and are left out."""

    number: int
    device: str
    counts: dict[int, int]
    """By CPU, since the machine came up."""
    served_by: set[int]
    """The CPUs that it goes to from now on."""


def read_interrupts(root: Path = _ROOT) -> list[Interrupt]:
    """Read ``/proc/interrupts`` and where each goes; empty where that is not told."""
    lines = _text(root / "proc/interrupts").splitlines()
    cpus = [int(word[3:]) for word in (lines[0] if lines else "").split() if word[:3] == "CPU" and word[3:].isdigit()]
    found = []
    for line in lines[1:] if cpus else ():
        number, _, rest = line.strip().partition(":")
        words = rest.split()
        counts = words[: len(cpus)]
        if not number.isdigit() or len(counts) < len(cpus) or not all(c.isdigit() for c in counts):
            continue
        at = root / "proc/irq" / number
        served_by = cpu_list(_text(at / "effective_affinity_list")) or cpu_list(_text(at / "smp_affinity_list"))
        by_cpu = dict(zip(cpus, map(int, counts), strict=True))
        found.append(Interrupt(int(number), words[-1] if len(words) > len(cpus) else "", by_cpu, served_by))
    return found


def uptime_s(root: Path = _ROOT) -> float:
    """How long the machine has been up; 0 where that is not told."""
    words = _text(root / "proc/uptime").split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0


def rates_hz(interrupts: Iterable[Interrupt], up_s: float) -> dict[int, float]:
    """How often each CPU is interrupted by the devices that it serves; one that is not named, never."""
    rates: dict[int, float] = {}
    for interrupt in interrupts if up_s > 0 else ():
        for cpu in interrupt.served_by:
            rates[cpu] = rates.get(cpu, 0.0) + interrupt.counts.get(cpu, 0) / up_s
    return rates


def quietest(cpus: Collection[int], rates: Mapping[int, float]) -> int | None:
    """The CPU for the loop: the last one of those that are interrupted least; None where there is no choice."""
    if len(cpus) < 2:
        return None
    least = min(rates.get(cpu, 0.0) for cpu in cpus)
    return max(cpu for cpu in cpus if rates.get(cpu, 0.0) < least + MATTERS_HZ)


def cpu_list(text: str | None) -> set[int]:
    """Read a list of CPUs as the kernel writes it: ``0-2,5``; what is none is left out."""
    cpus: set[int] = set()
    for part in "".join((text or "").split()).split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            cpus.update(range(int(low), int(high or low) + 1))
    return cpus


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
