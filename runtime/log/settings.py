"""The section ``log`` of a run: whether its records are kept as MCAP, and how much of them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import Count


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files ``log.mcap``, ``log-2.mcap``, ... in the run folder (docs/logs.md)."""

    mcap: bool | Literal["auto"] = "auto"
    """Whether to write them; ``auto``: where the package mcap is installed (extra ``log``)."""
    decimation: Count = 1
    """Keep every n-th tick, and the first and last of each episode; a run can be replayed from a whole log only."""
    max_bytes: Count | None = None
    """All files of the run together; then logging stops."""
    keep_free_bytes: Annotated[int, msgspec.Meta(ge=0)] = 200_000_000
    """Logging stops before the disk has less room than this: the memory's checkpoints need it more."""
