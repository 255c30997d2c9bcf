"""``onrig bench WHAT``: measures a part of Onrig, with peers beside it where they are installed."""

from __future__ import annotations

import argparse
import importlib
from typing import Final, NamedTuple

from onrig.tools.terminal import VerbParser, complain


class Benchmark(NamedTuple):
    """One benchmark of the list."""

    module: str
    """Below ``onrig.tools``; its ``main`` takes the arguments."""
    measures: str


WHAT: Final = {
    "loop": Benchmark(
        "bench.loop.verb", "how punctual the control loop is on this board at 50 to 2000 Hz, beside cyclictest"
    ),
    "replay": Benchmark(
        "bench.replay.verb", "insert, sample and update of the memory of experiences, beside other libraries' buffers"
    ),
    "learner": Benchmark(
        "bench.learner.verb",
        "updates of DDPG, one trial and many at once, beside Stable-Baselines3's and what one core can do",
    ),
    "link": Benchmark(
        "bench.link.verb",
        "a policy from its last gradient step into the rig; experiences per second, with and without keys",
    ),
    "faults": Benchmark(
        "faultlab.bench",
        "the fault matrix: cable pulled, processes killed, disk full, ...: how soon the actuators are safe",
    ),
}


def parser() -> argparse.ArgumentParser:
    """Build the parser of the first argument; the rest belongs to the benchmark (WHAT --help)."""
    p = VerbParser(
        prog="onrig bench",
        description=__doc__,
        usage="onrig bench WHAT [--json FILE] [ARGUMENT ...]",
        epilog="; ".join(f"{what}: {benchmark.measures}" for what, benchmark in WHAT.items()),
    )
    p.add_argument("what", metavar="WHAT", choices=WHAT, help=f"one of {', '.join(WHAT)}; WHAT --help tells more")
    return p


def main(arguments: list[str]) -> int:
    """Run one benchmark; returns the exit code, 0 whether or not its checks hold."""
    what = parser().parse_args(arguments[:1]).what
    try:
        module = importlib.import_module(f"onrig.tools.{WHAT[what].module}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return complain(f"bench {what}", "torch is not installed (pip install 'onrig[learner]')")
    code: int = module.main(arguments[1:])
    return code
