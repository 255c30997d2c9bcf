"""Measure insertion, sampling and updates of the replay memory, compared with other libraries' buffers.

Every library runs in a separate process. First, the distribution of the draws is tested; then all libraries are timed
in turn, round by round, so that disturbances affect them equally. The checks test Onrig against bounds; the exit code
is 0 whether or not they hold.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import File, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the benchmark."""

    _: KW_ONLY
    json: File | None = None
    """Also write the results to FILE, as JSON."""
    quick: bool = False
    """Take one minute instead of six: 10000 transitions, fewer rounds."""
    capacity: Annotated[tuple[int, ...], Value("N")] = ()
    """Measure only this capacity; may be repeated."""


def main(options: Options) -> int:
    """Measure, print the tables and the checks, and return the exit code."""
    from onrig.tools.bench.replay.benchmark import benchmark
    from onrig.tools.terminal import warn_missing_library

    warn_missing_library("bench")
    return benchmark(options.capacity, options.json, quick=options.quick)
