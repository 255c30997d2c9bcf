"""The disk that the run folder will lie on: its kind, and room for memory, log and policies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onrig.tools.diagnosis.check import Check, failed, passed, warned
from onrig.tools.diagnosis.machine import Machine
from onrig.tools.diagnosis.needs import Needs

_GENERAL_BYTES: Final = 200 << 20
_VOLATILE: Final = ("tmpfs", "ramfs")
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph")


class DiskFacts(NamedTuple):
    """Of the file system that holds the folder, or the nearest one above it that exists."""

    folder: Path
    mount: str
    kind: str
    read_only: bool
    writable: bool
    free_bytes: int
    size_bytes: int


def mount_of(mounts: str, path: Path) -> tuple[str, str, bool]:
    """Find (mount point, kind, read-only) of ``path`` (absolute) in the text of /proc/mounts; the last one counts."""
    found = ("/", "?", False)
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        point = fields[1].encode().decode("unicode_escape")
        if (path == Path(point) or Path(point) in path.parents) and len(point) >= len(found[0]):
            found = (point, fields[2], "ro" in fields[3].split(","))
    return found


def read(machine: Machine, needs: Needs) -> DiskFacts:
    """Read it."""
    folder = needs.folder.absolute()
    there = folder
    while not there.exists():
        there = there.parent
    status = os.statvfs(there)
    mount, kind, read_only = mount_of(machine.text("proc/mounts") or "", there.resolve())
    free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    return DiskFacts(folder, mount, kind, read_only, os.access(there, os.W_OK), free, size)


def judge(facts: DiskFacts, needs: Needs) -> Iterator[Check]:
    """Judge it."""
    want = needs.disk_bytes or _GENERAL_BYTES
    where = f"{facts.folder} ({facts.kind} on {facts.mount})"
    room = f"{_gb(facts.free_bytes)} free of {_gb(facts.size_bytes)}"
    elsewhere = "run elsewhere: onrig run ... --run-dir DIR"
    estimate = f"a run may take {_gb(want)}" if needs.disk_bytes else "enough for a long run is more"
    if facts.read_only:
        yield failed("disk", f"{where} is read-only", f"sudo mount -o remount,rw {facts.mount}")
    elif not facts.writable:
        yield failed("disk", f"{where} is not writable for you", elsewhere)
    elif facts.free_bytes < want:
        yield failed("disk", f"{where}: {room}, {estimate}", f"remove old runs, or {elsewhere}")
    elif facts.kind in _VOLATILE:
        yield warned("disk", f"{where}: {room}, gone with the next boot", elsewhere)
    elif facts.kind in _REMOTE:
        yield warned("disk", f"{where}: {room}, over the network: checkpoints wait for it", elsewhere)
    elif facts.free_bytes < 2 * want:
        yield warned("disk", f"{where}: {room}, {estimate}", f"remove old runs, or {elsewhere}")
    else:
        yield passed("disk", f"{where}: {room}" + (f", {estimate}" if needs.disk_bytes else ""))


def _gb(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


def examine(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Look, and judge."""
    yield from judge(read(machine, needs), needs)
