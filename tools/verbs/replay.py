"""Recompute every decision of a recorded run and compare it with the record.

The frames, the clock and the acting policies are taken from the run's log; observation, policy, exploration, shield,
command, reward and the end of every episode are recomputed with the code of the tick, and compared bit for bit. They
are equal on the machine that recorded the run, if its software has the same versions. Elsewhere, onnxruntime and the C
library may round differently: use --tolerance.

Exit codes: 0 equal; 70 different; 6 equal, but the log is incomplete; 2 nothing to replay.
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
    """Accept differences up to X (normalised: 1 is half a range), for runs recorded on a different machine."""
    trust: Trust = False


def main(options: Options) -> int:
    """Replay the run and return the exit code."""
    from onrig.tools.replay import replay

    return replay(options.run, options.tolerance)
