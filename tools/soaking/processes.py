"""What the kernel tells of processes: children by module, memory, open descriptors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Use(NamedTuple):
    """What a process holds."""

    private_mb: float
    """Resident, without what is shared with others or mapped from files: a ring that fills is no leak."""
    descriptors: int


def use_of(pid: int) -> Use | None:
    """Memory and open descriptors of a process; None once it is gone."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return Use((resident - shared) * _PAGE_MB, len(os.listdir(f"/proc/{pid}/fd")))
    except (OSError, IndexError, ValueError):
        return None


def children(pid: int) -> dict[str, int]:
    """Python modules that run as children of a process, with their process ids."""
    found: dict[str, int] = {}
    try:
        pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found
    for child in map(int, pids):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 2 and words[1] == b"-m":
            found[words[2].decode(errors="replace")] = child
    return found
