"""Memory limit of the replay process; a process that exceeds it ends, and the supervisor starts a new one.

TCP peers are limited by ``onrig.runtime.link.acceptor``.  The socket in the rig's folder has no such limit: a process
that can open it runs as the rig's user and could kill the replay process anyway, but it must not exhaust the machine's
memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SLACK_BYTES: Final = 256 << 20
"""Allowance in addition to twice the memory of experiences, which a checkpoint may copy."""
_INTERVAL_S: Final = 0.05
_STATM: Final = Path("/proc/self/statm")
_DATA_FIELD: Final = 5
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class MemoryLimitError(Exception):
    """Raised if the process exceeds its memory limit."""


class Growth:
    """Checks the memory allocated by this process, including memory not yet written to."""

    def __init__(self, storage_bytes: int) -> None:
        """Measure growth from the current size of the process; ``storage_bytes``: size of the memory of experiences."""
        self._limit = _data_bytes() + SLACK_BYTES + 2 * storage_bytes
        self._due_s = 0.0

    def check(self, now_s: float) -> None:
        """Raise MemoryLimitError if the limit is exceeded; ``now_s``: monotonic."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + _INTERVAL_S
        data = _data_bytes()
        if data > self._limit:
            raise MemoryLimitError(
                f"the replay process has grown to {data >> 20} MiB, {(data - self._limit) >> 20} MiB above the limit: "
                "check for a process of this user that floods its socket"
            )


def _data_bytes() -> int:
    """Return the private writable memory in bytes; 0 if the system does not report it."""
    try:
        return int(_STATM.read_text().split()[_DATA_FIELD]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
