"""``onrig bench WHAT``: measures a part of Onrig, with peers beside it where they are installed."""

from __future__ import annotations

import argparse
import importlib
from typing import Final

from onrig.tools.arguments import VerbParser

WHAT: Final = {
    "loop": "how punctual the control loop is on this board at 50 to 2000 Hz, beside cyclictest",
    "replay": "insert, sample and update of the memory of experiences, beside other libraries' buffers",
    "learner": "updates of DDPG, one trial and many at once, beside Stable-Baselines3's and what one core can do",
    "link": "a policy from its last gradient step into the rig; experiences per second, with and without keys",
    "faults": "the fault matrix: cable pulled, processes killed, disk full, ...: how soon the actuators are safe",
}


def parser() -> argparse.ArgumentParser:
    """Build the parser of the first argument; what follows is the benchmark's own (WHAT --help)."""
    p = VerbParser(
        prog="onrig bench",
        description=__doc__,
        usage="onrig bench WHAT [--json FILE] [ARGUMENT ...]",
        epilog="; ".join(f"{what}: {does}" for what, does in WHAT.items()),
    )
    p.add_argument("what", metavar="WHAT", choices=WHAT, help=f"one of {', '.join(WHAT)}; WHAT --help tells more")
    return p


def main(arguments: list[str]) -> int:
    """Run one benchmark; returns the exit code, 0 whether or not its checks hold."""
    what = parser().parse_args(arguments[:1]).what
    code: int = importlib.import_module(f"onrig.tools.benchmarks.{what}").main(arguments[1:])
    return code
