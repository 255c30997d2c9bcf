"""Recompute every decision of a recorded run and compare it with the record.

The frames, the clock and the acting policies are taken from the run's log; observation, policy, exploration, shield,
command, reward and the end of every episode are recomputed with the tick's pure core and compared bit for bit. They are
equal on the machine that recorded the run, with the same versions; elsewhere onnxruntime and the C library may round
differently, for which --tolerance is provided.

Exit codes: 0 equal, 70 different, 6 equal but incomplete, 2 nothing to replay.
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
    """Accept differences up to X (in normalised units: 1 is half a range), for runs of another machine."""
    trust: Trust = False


def main(options: Options) -> int:
    """Replay the run; returns the exit code."""
    from onrig.tools.replay import replay

    return replay(options.run, options.tolerance)
