"""The section ``log`` of a run: whether its records are kept as MCAP, and how much of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from onrig.runtime.config.problem import NodePath


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files ``log.mcap``, ``log-2.mcap``, ... in the run folder (docs/logs.md)."""

    mcap: bool | Literal["auto"] = "auto"
    """Whether to write them; ``auto``: where the package mcap is installed (extra ``log``)."""
    decimation: int = 1
    """Keep every n-th tick, and the first and last of each episode; a run can be replayed from a whole log only."""
    max_bytes: int | None = None
    """All files of the run together; then logging stops."""
    keep_free_bytes: int = 200_000_000
    """Logging stops before the disk has less room than this: the memory's checkpoints need it more."""


def log_findings(log: Log) -> Iterator[tuple[NodePath, str]]:
    """List (path, message) for each value that makes no sense."""
    if log.decimation < 1:
        yield ("log", "decimation"), f"expected 1 (every tick) or more, got {log.decimation} at log.decimation"
    if log.max_bytes is not None and log.max_bytes < 1:
        yield ("log", "max_bytes"), f"expected at least 1, or null, got {log.max_bytes} at log.max_bytes"
    if log.keep_free_bytes < 0:
        yield ("log", "keep_free_bytes"), f"expected 0 or more, got {log.keep_free_bytes} at log.keep_free_bytes"
