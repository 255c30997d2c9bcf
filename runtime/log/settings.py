"""Section ``log`` of a run: whether and how many records are logged as MCAP."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import Count


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files ``log.mcap``, ``log-2.mcap``, ... in the run folder (docs/logs.md)."""

    mcap: bool | Literal["auto"] = "auto"
    """Whether to write a log; ``auto``: if the package mcap is installed (extra ``log``)."""
    decimation: Count = 1
    """Keep every n-th tick, and the first and last of each episode; only a complete log can be replayed."""
    max_bytes: Count | None = None
    """Total size of the run's log files, at which logging stops."""
    keep_free_bytes: Annotated[int, msgspec.Meta(ge=0)] = 200_000_000
    """Free disk space below which logging stops, to leave room for checkpoints of the memory."""
