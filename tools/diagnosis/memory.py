"""Memory: what is left, what may be moved to a disk, and the shared part that the processes of a run meet in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from onrig.tools.diagnosis.check import Check, failed, passed, warned
from onrig.tools.diagnosis.machine import Machine
from onrig.tools.diagnosis.needs import Needs

_SHM: Final = "dev/shm"


class MemoryFacts(NamedTuple):
    """In bytes."""

    available: int | None
    swaps: dict[str, int]
    """Used bytes by device; compressed memory (zram) is none of them."""
    shm_free: int | None
    shm_size: int
    shm_writable: bool


def read(machine: Machine) -> MemoryFacts:
    """Read it."""
    available = None
    for line in (machine.text("proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    swaps = {}
    for line in (machine.text("proc/swaps") or "").splitlines()[1:]:
        name, _, _, used, *_ = line.split()
        if "zram" not in name:
            swaps[name] = int(used) << 10
    free, size, writable = None, 0, False
    folder = machine.path(_SHM)
    if folder.is_dir():
        status = os.statvfs(folder)
        free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        writable = os.access(folder, os.W_OK)
    return MemoryFacts(available, swaps, free, size, writable)


def judge(facts: MemoryFacts, needs: Needs) -> Iterator[Check]:
    """Judge it."""
    want = needs.memory_bytes
    if facts.available is None:
        yield passed("memory", "this machine does not say what is free")
    elif facts.available < want:
        found = f"{_mib(facts.available)} to be had, a run takes about {_mib(want)}"
        yield warned("memory", found, "end other programs, or bound the run's memory: selection: {capacity_bytes: N}")
    else:
        yield passed("memory", f"{_mib(facts.available)} to be had, a run takes about {_mib(want)}")
    used = sum(facts.swaps.values())
    if facts.swaps and (used or not needs.lock_memory):
        found = f"swap on {', '.join(facts.swaps)}, {_mib(used)} in use: replay and learner may wait for it"
        yield warned("swap", found, "sudo swapoff -a")
    else:
        yield passed("swap", f"{', '.join(facts.swaps)}, none in use" if facts.swaps else "none")
    yield _shm(facts, needs)


def _shm(facts: MemoryFacts, needs: Needs) -> Check:
    if facts.shm_free is None:
        found = "there is no /dev/shm: the loop's ring would lie on a disk"
        return needs.punctuality("shared-memory", found, "sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
    if not facts.shm_writable:
        return failed("shared-memory", "/dev/shm is not writable for you", "sudo chmod 1777 /dev/shm")
    size = f"{_mib(facts.shm_free)} free of {_mib(facts.shm_size)}, a run takes {_mib(needs.shm_bytes)}"
    if facts.shm_free < needs.shm_bytes:
        return failed("shared-memory", size, "sudo mount -o remount,size=256M /dev/shm")
    return passed("shared-memory", size)


def _mib(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n < 100 << 20 else f"{n / 2**20:.0f} MiB"


def examine(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Look, and judge."""
    yield from judge(read(machine), needs)
