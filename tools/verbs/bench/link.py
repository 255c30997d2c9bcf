"""Measure the delay from gradient step to rig, and the experiences per second, with and without keys.

The rig's end and the learner are two processes on this machine, connected over ipc and tcp. The checks test Onrig
against bounds; the exit code is 0 whether or not they hold.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import File


@dataclass(frozen=True)
class Options:
    """Arguments of the benchmark."""

    _: KW_ONLY
    json: File | None = None
    """Also write the results to FILE, as JSON."""
    quick: bool = False
    """Send fewer policies, and use a memory of 1e5 experiences instead of 1e6."""


def main(options: Options) -> int:
    """Measure, print the table and the checks, and return the exit code."""
    from onrig.tools.bench.link.benchmark import benchmark
    from onrig.tools.terminal import warn_missing_library

    warn_missing_library("bench")
    return benchmark(options.json, quick=options.quick)
