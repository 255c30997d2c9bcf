"""Read-only view of ``/proc``, ``/sys``, ``/etc`` and ``/dev`` under a root directory that tests can replace."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

PI_COMMAND_LINES = ("boot/firmware/cmdline.txt", "boot/cmdline.txt")


_CGROUP_ROOT: Final = "sys/fs/cgroup"


class Machine:
    """Reader of system files. Files that are missing or unreadable give None or an empty result."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, path: str) -> Path:
        """Return the path under the root for ``path``, which must not begin with a slash."""
        return self.root / path

    def text(self, path: str) -> str | None:
        """Return the content of a file without surrounding whitespace and NUL bytes, or None if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip("\0\n\t ")
        except OSError:
            return None

    def number(self, path: str, base: int = 10) -> int | None:
        """Return the content of a file as a whole number, or None if it is not one or the file cannot be read."""
        text = self.text(path)
        try:
            return None if text is None else int(text, base)
        except ValueError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """Return the sorted paths that match a pattern, without a leading slash."""
        try:
            return sorted(str(p.relative_to(self.root)) for p in self.root.glob(pattern))
        except OSError:
            return []

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if the folder is missing, unreadable, or vanishes
        because its process has ended.
        """
        try:
            return sorted(os.listdir(self.root / path))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return (self.root / path).exists()

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link as written, or None if the path is not a link."""
        try:
            return os.readlink(self.root / path)
        except OSError:
            return None

    def cpu_quota(self) -> float | None:
        """Return the CPU quota of this process's control groups (container, systemd unit), in CPUs, or None if there is
        no limit.
        """
        limits = [limit for folder in self._cpu_groups() if (limit := self._cpu_limit(folder)) is not None]
        return min(limits, default=None)

    def usable_cpu_count(self) -> float:
        """Return the number of CPUs that this process can keep busy: the smaller of its affinity mask and its quota."""
        n_allowed_cpus = len(os.sched_getaffinity(0))
        quota = self.cpu_quota()
        return n_allowed_cpus if quota is None else min(n_allowed_cpus, quota)

    def _cpu_groups(self) -> Iterator[str]:
        """Yield the folders of the control groups (versions 1 and 2) that limit this process, including their
        ancestors.
        """
        for line in (self.text("proc/self/cgroup") or "").splitlines():
            _, controllers, path = line.split(":", 2)
            mounts = [_CGROUP_ROOT] if not controllers else [f"{_CGROUP_ROOT}/{controllers}", f"{_CGROUP_ROOT}/cpu"]
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = PurePosixPath(path.lstrip("/"))
            for mount in mounts:
                # inside a container the process's group may be mounted at the top, whatever its path outside
                yield from (f"{mount}/{path}" for path in (group, *group.parents))

    def _cpu_limit(self, folder: str) -> float | None:
        fields = (self.text(f"{folder}/cpu.max") or "").split()  # version 2: "50000 100000", "max 100000"
        if not fields:
            fields = [self.text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        quota, period = (int(field) if field.isdecimal() else 0 for field in (*fields, "", "")[:2])
        return quota / period if quota and period else None

    def board(self) -> str:
        """Return the board's model as reported by the firmware, or an empty string if it is unknown."""
        for path in ("proc/device-tree/model", "sys/class/dmi/id/product_name"):
            text = self.text(path)
            if text:
                return text
        return ""

    def describe(self) -> dict[str, object]:
        """Return the facts about the machine for the head of a report."""
        return {
            "board": self.board(),
            "architecture": platform.machine(),
            "cpus": os.cpu_count(),
            "cpu_quota": self.cpu_quota(),
            "kernel": self.text("proc/sys/kernel/osrelease") or platform.release(),
            "system": _pretty_name(self.text("etc/os-release")),
            "python": platform.python_version(),
        }


def _pretty_name(text: str | None) -> str:
    for line in (text or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def cpus_as_text(cpus: set[int]) -> str:
    """Format CPU numbers as the kernel does: ``0-2,5``."""
    parts: list[str] = []
    for cpu in sorted(cpus):
        start, _, end = parts[-1].partition("-") if parts else ("", "", "")
        if parts and int(end or start) == cpu - 1:
            parts[-1] = f"{start}-{cpu}"
        else:
            parts.append(str(cpu))
    return ",".join(parts)


def kernel_argument_command(machine: Machine, argument: str) -> str:
    """Return the command that adds ``argument`` to the kernel's command line on this system."""
    for path in PI_COMMAND_LINES:
        if machine.exists(path):
            return f"sudo sed -i '1s/$/ {argument}/' /{path} && sudo reboot"
    if machine.exists("etc/default/grub"):
        grub = f"sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{argument} /' /etc/default/grub"
        return f"{grub} && sudo update-grub && sudo reboot"
    return f"add '{argument}' to the kernel's command line in your boot loader and reboot"
