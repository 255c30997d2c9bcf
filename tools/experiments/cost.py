"""Processor time that trials in a world will take, from a second of each cell's own training."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from onrig.tools.experiments.store import WorldCell

PROBE_S: Final = 1.0
_STEPS: Final = 20


def processor_s(cell: WorldCell, at_once: int) -> float:
    """Processor time of one trial of a cell, of ``at_once`` trained together, on one thread.

    The policy of the probe has learned nothing: where its evaluations end early, those of later ones take longer.
    """
    import torch

    from onrig.learner.trials.steps import StepTrials

    run = cell.config
    torch.set_num_threads(1)
    trials = StepTrials(msgspec.structs.replace(run, random_steps=run.learner.batch), range(at_once))
    try:
        trials.train(run.learner.batch + _STEPS)
        start, done = time.process_time(), 0
        while done == 0 or time.process_time() - start < PROBE_S:
            trials.train(_STEPS)
            done += _STEPS
        step_s = (time.process_time() - start) / done
        start = time.process_time()
        trials.evaluate()
        evaluation_s = time.process_time() - start
    finally:
        trials.close()
    return (step_s * run.steps + evaluation_s * run.points) / at_once
