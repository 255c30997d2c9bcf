"""Checks of memory and disk: free memory, swap, shared memory and disk space."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onrig.tools.doctor.finding import Check, Needs, report_failure, report_pass, report_warning
from onrig.tools.machine import Machine

_SHM_FOLDER: Final = "dev/shm"


class MemoryFacts(NamedTuple):
    """Memory and swap in bytes."""

    available_bytes: int | None
    swap_used_bytes: dict[str, int]
    """Used swap space, keyed by device, except for compressed memory (zram)."""
    shm_free_bytes: int | None
    shm_size_bytes: int
    is_shm_writable: bool


def read_memory(machine: Machine) -> MemoryFacts:
    """Read the facts about memory, swap and shared memory."""
    available_bytes = None
    for line in (machine.text("proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            available_bytes = int(line.split()[1]) << 10
    swaps = {}
    for line in (machine.text("proc/swaps") or "").splitlines()[1:]:
        name, _, _, used_kib, *_ = line.split()
        if "zram" not in name:
            swaps[name] = int(used_kib) << 10
    free_bytes, size_bytes, is_writable = None, 0, False
    folder = machine.path(_SHM_FOLDER)
    if folder.is_dir():
        status = os.statvfs(folder)
        free_bytes, size_bytes = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        is_writable = os.access(folder, os.W_OK)
    return MemoryFacts(available_bytes, swaps, free_bytes, size_bytes, is_writable)


def check_memory(facts: MemoryFacts, needs: Needs) -> Iterator[Check]:
    """Yield the findings on memory, swap and shared memory."""
    required_bytes = needs.memory_bytes
    if facts.available_bytes is None:
        yield report_pass("memory", "free memory is not reported by this machine")
    elif facts.available_bytes < required_bytes:
        finding = f"{_mib(facts.available_bytes)} available; a run needs about {_mib(required_bytes)}"
        yield report_warning(
            "memory", finding, "end other programs, or limit the run's memory: selection: {capacity_bytes: N}"
        )
    else:
        yield report_pass(
            "memory", f"{_mib(facts.available_bytes)} available; a run needs about {_mib(required_bytes)}"
        )
    used_bytes = sum(facts.swap_used_bytes.values())
    if facts.swap_used_bytes and (used_bytes or not needs.lock_memory):
        finding = (
            f"swap on {', '.join(facts.swap_used_bytes)}, {_mib(used_bytes)} in use: replay and learner may have to "
            "wait for it"
        )
        yield report_warning("swap", finding, "sudo swapoff -a")
    else:
        yield report_pass(
            "swap", f"{', '.join(facts.swap_used_bytes)}, none in use" if facts.swap_used_bytes else "none"
        )
    yield _check_shm(facts, needs)


def _check_shm(facts: MemoryFacts, needs: Needs) -> Check:
    if facts.shm_free_bytes is None:
        finding = "/dev/shm is missing: the loop's ring would be on a disk"
        return needs.timing_finding("shared-memory", finding, "sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
    if not facts.is_shm_writable:
        return report_failure("shared-memory", "/dev/shm is not writable by this user", "sudo chmod 1777 /dev/shm")
    size = f"{_mib(facts.shm_free_bytes)} free of {_mib(facts.shm_size_bytes)}; a run needs {_mib(needs.shm_bytes)}"
    if facts.shm_free_bytes < needs.shm_bytes:
        return report_failure("shared-memory", size, "sudo mount -o remount,size=256M /dev/shm")
    return report_pass("shared-memory", size)


def _mib(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n < 100 << 20 else f"{n / 2**20:.0f} MiB"


def examine_memory(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about memory, swap and shared memory, and check them."""
    yield from check_memory(read_memory(machine), needs)


_DEFAULT_DISK_BYTES: Final = 200 << 20
_VOLATILE_KINDS: Final = ("tmpfs", "ramfs")
_REMOTE_KINDS: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph")


class DiskFacts(NamedTuple):
    """File system of the run folder, or of its nearest existing parent."""

    folder: Path
    mount: str
    kind: str
    is_read_only: bool
    is_writable: bool
    free_bytes: int
    size_bytes: int
    obstacle: Path | None = None
    """File that has the path of the folder or of one of its parents."""


def find_mount(mounts: str, path: Path) -> tuple[str, str, bool]:
    """Find (mount point, kind, read-only) for the absolute ``path`` in the text of /proc/mounts.

    If a mount point has several entries, the last one counts.
    """
    mount = ("/", "?", False)
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1])
        if (path == Path(point) or Path(point) in path.parents) and len(point) >= len(mount[0]):
            mount = (point, fields[2], "ro" in fields[3].split(","))
    return mount


def read_disk(machine: Machine, needs: Needs) -> DiskFacts:
    """Read the facts about the disk."""
    folder = needs.folder.absolute()
    existing_folder = folder
    while not existing_folder.exists():
        existing_folder = existing_folder.parent
    status = os.statvfs(existing_folder)
    mount, kind, is_read_only = find_mount(machine.text("proc/mounts") or "", existing_folder.resolve())
    free_bytes, size_bytes = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    obstacle = None if existing_folder.is_dir() else existing_folder
    return DiskFacts(
        folder, mount, kind, is_read_only, os.access(existing_folder, os.W_OK), free_bytes, size_bytes, obstacle
    )


def check_disk(facts: DiskFacts, needs: Needs) -> Iterator[Check]:
    """Yield a finding on the disk."""
    required_bytes = needs.disk_bytes or _DEFAULT_DISK_BYTES
    location = f"{facts.folder} ({facts.kind} on {facts.mount})"
    space_text = f"{_gb(facts.free_bytes)} free of {_gb(facts.size_bytes)}"
    remedy = "run elsewhere: onrig run ... --run-dir DIR"
    estimate = f"a run may take {_gb(required_bytes)}" if needs.disk_bytes else "a long run needs more"
    if facts.obstacle is not None:
        yield report_failure("disk", f"{facts.folder} cannot be created: {facts.obstacle} is a file", remedy)
    elif facts.is_read_only:
        yield report_failure("disk", f"{location} is read-only", f"sudo mount -o remount,rw {facts.mount}")
    elif not facts.is_writable:
        yield report_failure("disk", f"{location} is not writable by this user", remedy)
    elif facts.free_bytes < required_bytes:
        yield report_failure("disk", f"{location}: {space_text}, {estimate}", f"remove old runs, or {remedy}")
    elif facts.kind in _VOLATILE_KINDS:
        yield report_warning("disk", f"{location}: {space_text}; its content is lost at the next boot", remedy)
    elif facts.kind in _REMOTE_KINDS:
        yield report_warning("disk", f"{location}: {space_text}; the network slows down checkpoints", remedy)
    elif facts.free_bytes < 2 * required_bytes:
        yield report_warning("disk", f"{location}: {space_text}, {estimate}", f"remove old runs, or {remedy}")
    else:
        yield report_pass("disk", f"{location}: {space_text}" + (f", {estimate}" if needs.disk_bytes else ""))


def _gb(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


def examine_disk(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about the disk and check them."""
    yield from check_disk(read_disk(machine, needs), needs)
