"""Real-time setup under Linux: scheduling class, locked memory, no garbage collector, the quietest CPU.

An interrupt, and the soft interrupt after it, takes its time from the interrupted thread, even under SCHED_FIFO.  If a
disk completes its writes on the loop's CPU, the log's writes therefore delay the loop.
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

if TYPE_CHECKING:  # `onrig doctor` imports this module and must work with a broken msgspec
    from onrig.runtime.process_settings import RealTime


_MCL_CURRENT, _MCL_FUTURE = 1, 2
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_CPU_LATENCY: Final = Path("/dev/cpu_dma_latency")
PARENT_VARIABLE: Final = "ONRIG_PARENT"
"""Environment variable that holds the process id of the expected parent."""
LOOP_CPU_VARIABLE: Final = "ONRIG_LOOP_CPU"
"""Environment variable that holds the CPU that ``auto`` selected for this run's processes."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that a killed supervisor leaves no process behind."""
    if hasattr(os, "sched_setscheduler"):
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # A parent that died before this call, while this process was still importing, triggers no signal.
        if os.environ.get(PARENT_VARIABLE, str(os.getppid())) != str(os.getppid()):
            os.kill(os.getpid(), signal.SIGTERM)


def enter_realtime(settings: RealTime) -> list[str]:
    """Apply the settings to this process; return one warning line for each that was not granted."""
    warnings = []
    if settings.stay_awake:
        stay_awake()
    cpu = loop_cpu(settings)
    if cpu is not None:
        try:
            os.sched_setaffinity(0, {cpu})
        except (OSError, ValueError, AttributeError) as error:
            warnings.append(f"CPU {cpu} is not available ({error}); not pinning the process")
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
    """Request zero wake-up latency from the kernel, as cyclictest does, for the lifetime of this process.

    Returns the descriptor that holds the request; None if the device is missing or not permitted.
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
    """Return the CPU on which the loop runs; None if it may run on any CPU."""
    if settings.cpu != "auto":
        return settings.cpu
    cpu_text = os.environ.get(LOOP_CPU_VARIABLE, "")
    return int(cpu_text) if cpu_text.isdigit() else _quietest_available_cpu()


def resolve_loop_cpu() -> None:
    """Resolve ``auto`` for this process and all processes that it starts from now on.

    If each process resolved it, they might choose different CPUs: interrupt counts change, and a process that has left
    the loop's CPU no longer considers it.
    """
    cpu = _quietest_available_cpu()
    if cpu is not None:
        os.environ.setdefault(LOOP_CPU_VARIABLE, str(cpu))


def _quietest_available_cpu() -> int | None:
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return quietest_cpu(cpus, rates_hz(read_interrupts(), uptime_s())) if len(cpus) > 1 else None


def leave_cpu(settings: RealTime) -> None:
    """Keep this process off the loop's CPU, so that it does not evict the loop's data from the caches."""
    cpu = loop_cpu(settings)
    if cpu is None or not hasattr(os, "sched_setaffinity"):
        return
    other_cpus = os.sched_getaffinity(0) - {cpu}
    if other_cpus:
        os.sched_setaffinity(0, other_cpus)


def enter_realtime_as_device(settings: RealTime) -> None:
    """Prepare a process that simulates hardware: real-time priority one above the loop's, on another CPU."""
    leave_cpu(settings)
    priority = min(settings.priority + 1, 99) if settings.priority else 0
    enter_realtime(type(settings)(priority=priority, cpu=None, lock_memory=settings.lock_memory))
    freeze_collector()


def freeze_collector() -> None:
    """Collect once, freeze the remaining objects, and disable the collector: the tick creates no cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()


_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_HUGE_BYTES: Final = 2 << 20


def collapse_pages() -> None:
    """Move this process's heap to huge pages, if the kernel (Linux 6.1 or later) permits it.

    A tick touches a hundred pages whose address translations have been evicted since the previous tick.
    """
    advise = _libc().madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for first, end in heap_spans(_read_text(Path("/proc/self/maps"))):
        for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):  # without permission or contiguous memory, nothing changes
            advise(first, end - first, advice)


def heap_spans(maps: str) -> list[tuple[int, int]]:
    """Return the spans of complete huge pages, [first, end), in the private anonymous memory that ``/proc/PID/maps``
    lists."""
    spans = []
    for line in maps.splitlines():
        span, permissions, _, _, inode, *name = line.split()
        first, end = (int(address, 16) for address in span.split("-"))
        first, end = -(-first // _HUGE_BYTES) * _HUGE_BYTES, end // _HUGE_BYTES * _HUGE_BYTES
        if permissions == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and first < end:
            spans.append((first, end))
    return spans


MIN_COUNTED_RATE_HZ: Final = 1.0
"""Interrupts per second (mean since boot) from which a CPU is worth avoiding."""
_ROOT: Final = Path("/")


class Interrupt(NamedTuple):
    """Interrupt of a device; CPU-local interrupts (timers, inter-processor) are excluded, because they cannot be
    moved."""

    number: int
    device: str
    counts: dict[int, int]
    """Counts by CPU, since boot."""
    served_by: set[int]
    """CPUs to which it is currently routed."""


def read_interrupts(root: Path = _ROOT) -> list[Interrupt]:
    """Read ``/proc/interrupts`` and the routing of each interrupt; empty if unavailable."""
    lines = _read_text(root / "proc/interrupts").splitlines()
    cpus = [
        int(token[3:]) for token in (lines[0] if lines else "").split() if token[:3] == "CPU" and token[3:].isdigit()
    ]
    interrupts = []
    for line in lines[1:] if cpus else ():
        number, _, remainder = line.strip().partition(":")
        tokens = remainder.split()
        counts = tokens[: len(cpus)]
        if not number.isdigit() or len(counts) < len(cpus) or not all(c.isdigit() for c in counts):
            continue
        folder = root / "proc/irq" / number
        served_by = parse_cpu_list(_read_text(folder / "effective_affinity_list")) or parse_cpu_list(
            _read_text(folder / "smp_affinity_list")
        )
        counts_by_cpu = dict(zip(cpus, map(int, counts), strict=True))
        interrupts.append(
            Interrupt(int(number), tokens[-1] if len(tokens) > len(cpus) else "", counts_by_cpu, served_by)
        )
    return interrupts


def uptime_s(root: Path = _ROOT) -> float:
    """Return the time since boot; 0 if unavailable."""
    tokens = _read_text(root / "proc/uptime").split()
    try:
        return float(tokens[0]) if tokens else 0.0
    except ValueError:
        return 0.0


def rates_hz(interrupts: Iterable[Interrupt], elapsed_s: float) -> dict[int, float]:
    """Return the device interrupts per second by CPU; a CPU that is not listed has none."""
    rates: dict[int, float] = {}
    for interrupt in interrupts if elapsed_s > 0 else ():
        for cpu in interrupt.served_by:
            rates[cpu] = rates.get(cpu, 0.0) + interrupt.counts.get(cpu, 0) / elapsed_s
    return rates


def quietest_cpu(cpus: Collection[int], rates: Mapping[int, float]) -> int | None:
    """Return the CPU for the loop: the last of those with (nearly) the fewest interrupts; None if there is no
    choice."""
    if len(cpus) < 2:
        return None
    minimum = min(rates.get(cpu, 0.0) for cpu in cpus)
    return max(cpu for cpu in cpus if rates.get(cpu, 0.0) < minimum + MIN_COUNTED_RATE_HZ)


def parse_cpu_list(text: str | None) -> set[int]:
    """Parse a CPU list in the kernel's format (``0-2,5``), skipping invalid parts."""
    cpus: set[int] = set()
    for part in "".join((text or "").split()).split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            cpus.update(range(int(low), int(high or low) + 1))
    return cpus


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
