"""Insert, sample and update of the replay memory, next to other libraries' buffers.

Every library runs in a separate process. A gate first tests the distribution of its draws; then all are timed in
turns, round by round, so that disturbances affect all alike. The checks are bounds on Onrig; exit 0 whether or not they
hold.
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
    """Also write the figures to FILE."""
    quick: bool = False
    """A minute instead of six: 10000 transitions, fewer rounds."""
    capacity: Annotated[tuple[int, ...], Value("N")] = ()
    """Only this capacity; may be repeated."""


def main(options: Options) -> int:
    """Measure, print tables and checks; returns the exit code."""
    from onrig.tools.bench.replay.benchmark import benchmark
    from onrig.tools.terminal import warn_missing_library

    warn_missing_library("bench")
    return benchmark(options.capacity, options.json, quick=options.quick)
