"""Recompute every decision of a recorded run and compare.

The frames, the clock and which policy acted are taken from the run's log; observation, policy, exploration, shield,
command, reward and the end of every episode are recomputed with the tick's pure core and compared bit for bit. Equality
holds on the machine that recorded the run, with the same versions; elsewhere onnxruntime and the C library may round
differently, which --tolerance allows for.

Exit codes: 0 equal, 70 a difference, 6 equal but incomplete, 2 nothing to replay.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import RunFolder, Trust, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    run: RunFolder
    """Folder of a run."""
    _: KW_ONLY
    tolerance: Annotated[float, Value("X")] = 0.0
    """Treat differences up to X as equal (normalised units, 1 is half a range); for runs of another machine."""
    trust: Trust = False


def main(options: Options) -> int:
    """Replay; returns the exit code."""
    from onrig.tools.replay import replay

    return replay(options.run, options.tolerance)
