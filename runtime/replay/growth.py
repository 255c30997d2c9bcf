"""Whether the replay process grows beyond what its work explains: then it ends, and its supervisor starts another.

Peers at the tcp door are bounded there (``onrig.runtime.link.porch``).  The socket in the rig's folder has no porch:
whoever may open it runs as the rig's user and can end the process anyway, but is not to take the machine's memory with
it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SLACK_BYTES: Final = 256 << 20
"""Beside twice the memory of experiences, which a checkpoint may copy."""
_EVERY_S: Final = 0.05
_STATM: Final = Path("/proc/self/statm")
_DATA: Final = 5
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Overgrown(Exception):
    """The process has grown beyond what its work explains."""


class Growth:
    """Watches the process's own memory: what it asked for, whether it has written there or not."""

    def __init__(self, storage_bytes: int) -> None:
        """``storage_bytes``: of the memory of experiences; the process is as large as it should be by now."""
        self._limit = _data_bytes() + SLACK_BYTES + 2 * storage_bytes
        self._due_s = 0.0

    def look(self, now_s: float) -> None:
        """Raise Overgrown if it is so; ``now_s``: monotonic."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + _EVERY_S
        data = _data_bytes()
        if data > self._limit:
            raise Overgrown(
                f"it has grown to {data >> 20} MiB, {(data - self._limit) >> 20} MiB more than its work explains: "
                "a process of this user floods its socket"
            )


def _data_bytes() -> int:
    """Private writable memory; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[_DATA]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
