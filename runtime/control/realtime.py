"""Asking Linux for punctuality: scheduling class, locked memory, one CPU, no collector (TRAPS, *Real-time Python*)."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import struct
from pathlib import Path
from typing import Final

from onrig.runtime.control.cpus import quietest, rates_hz, read_interrupts, uptime_s
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
