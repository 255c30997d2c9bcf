"""The replay process of a run: ``python -m onrig.sim.replay RUN_FOLDER SHM_FOLDER [--resume]``.

It is ``onrig.runtime.replay.main`` with the parts that need a plant of ``sim``, which are loaded only if a run uses
them: synthetic experiences, and the comparison of measured steps with the shield's promise.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onrig.runtime.memory.transitions import Resynthesiser
from onrig.runtime.replay.main import main
from onrig.runtime.replay.promise_watch import StepCheck
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.promise import promise_of


def resynthesiser_for(config: RunConfig, run_folder: Path) -> Resynthesiser | None:
    """Return the source of synthetic experiences, or None if they are not configured."""
    if config.selection.synthetic is None:
        return None
    from onrig.sim.synthetic.replay import RunResynthesiser

    return RunResynthesiser(config, run_folder)


def step_check_for(config: RunConfig) -> StepCheck | None:
    """Return the comparison with the promise's plants; None if it has none or the rig does not observe their state."""
    box = config.limits.predicted
    if box is None or not promise_of(config.limits).basis.has_plants:
        return None
    from onrig.sim.barrier.one_step import OneStepCheck

    try:
        return OneStepCheck(config, box)
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], resynthesiser_for, step_check_for))
