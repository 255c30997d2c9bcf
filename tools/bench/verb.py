"""``onrig bench WHAT``: benchmarks of Onrig, next to peer libraries where they are installed."""

from __future__ import annotations

import argparse
import importlib
from typing import Final, NamedTuple

from onrig.tools.terminal import VerbParser, refer_to_laboratory, tell_missing_library


class Benchmark(NamedTuple):
    """One benchmark of the list."""

    module: str
    """Below ``onrig.tools``; its ``main`` takes the arguments."""
    measures: str


WHAT: Final = {
    "loop": Benchmark(
        "bench.loop.verb", "timing of the control loop on this board at 50 to 2000 Hz, next to cyclictest"
    ),
    "replay": Benchmark(
        "bench.replay.verb", "insert, sample and update of the replay memory, next to other libraries' buffers"
    ),
    "link": Benchmark(
        "bench.link.verb",
        "time from the last gradient step to the rig; experiences per second, with and without keys",
    ),
    "policy": Benchmark(
        "bench.policy", "what policies of several sizes cost in a tick and to build, next to numpy and torch"
    ),
}
_LABORATORY: Final = ("faults", "learner", "learning", "seeds")
"""Benchmarks of earlier versions."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the first argument; the benchmark parses the rest."""
    p = VerbParser(
        prog="onrig bench",
        description=__doc__,
        usage="onrig bench WHAT [--json FILE] [ARGUMENT ...]",
        epilog="; ".join(f"{what}: {benchmark.measures}" for what, benchmark in WHAT.items()),
    )
    p.add_argument("what", metavar="WHAT", choices=WHAT, help=f"one of {', '.join(WHAT)}; details: WHAT --help")
    return p


def main(arguments: list[str]) -> int:
    """Run one benchmark; returns the exit code, 0 whether or not its checks hold."""
    if arguments and arguments[0] in _LABORATORY:
        return refer_to_laboratory(f"onrig bench {arguments[0]}", arguments[0])
    what = parser().parse_args(arguments[:1]).what
    tell_missing_library("bench")
    module = importlib.import_module(f"onrig.tools.{WHAT[what].module}")
    code: int = module.main(arguments[1:])
    return code
