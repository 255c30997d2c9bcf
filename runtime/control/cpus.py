"""Which CPU suits the loop: the one that devices interrupt least.

The kernel charges what it does in an interrupt, and in the soft interrupt after it, to the thread that it interrupted;
SCHED_FIFO does not help.  Where a disk completes its writes on the loop's CPU, the log's own writing comes back to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

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
