"""Score the random controller and model-based controllers on a task.

Fuzzy Q-iteration maximises the discounted sum of rewards; the finite-horizon optimum maximises the mean reward. Its
"polished" row is the reference: an achieved score and therefore a lower bound on the optimum. Its "estimate" is not a
bound. Rewards are means per step over an episode from the task's start, on the exact plant, without quantization, delay
or shield. If the twin has noise, one row shows the best of 1000 noisy episodes (mean of 50 repetitions) of the
controller computed without noise, which is the reference under noise of de Bruin et al. 2018 (App. C).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from onrig.tools.options import Config, Overrides, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config
    """Path or shipped name of a configuration with a twin."""
    _: KW_ONLY
    grid: Literal["coarse", "fine"] = "coarse"
    """Grids for the computation: two fast ones (coarse) or three fine ones (fine)."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Compute or look up the scores, print them, and return the exit code."""
    from onrig.tools.baseline import baseline

    return baseline(options.config, options.set, options.grid)
