"""Processor time that trials in a world will take, from a second of training of each kind of cell."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from onrig.learner.trials.step_run import StepRun
from onrig.tools.experiments.grid import shown
from onrig.tools.experiments.store import WorldCell
from onrig.tools.progress import Progress, progress_for

PROBE_S: Final = 1.0
_STEPS: Final = 20


class Cost(NamedTuple):
    """Processor time on one thread, of trials trained together."""

    step_s: float
    evaluation_s: float


def processor_s(cells: Sequence[WorldCell], at_once: int) -> float:
    """Processor time of one trial of every cell, of ``at_once`` trained together, on one thread.

    Shows its progress on stderr.  The policies of the probes have learned nothing: where their evaluations end early,
    those of later ones take longer.
    """
    kinds = {kind_of(cell.config): cell for cell in reversed(cells)}
    progress = progress_for(len(kinds))
    try:
        costs = {kind: _probed(cell, at_once, progress) for kind, cell in reversed(kinds.items())}
    finally:
        progress.close()
    total_s = 0.0
    for cell in cells:
        run, cost = cell.config, costs[kind_of(cell.config)]
        total_s += (cost.step_s * run.steps + cost.evaluation_s * run.points) / at_once
    return total_s


def kind_of(run: StepRun) -> bytes:
    """What the cost of a step depends on: not on fractions such as rates and exponents, nor on the memory's size."""
    learner = msgspec.structs.replace(run.learner, klper=msgspec.UNSET, prop_per=msgspec.UNSET)
    selection = msgspec.structs.replace(run.selection, capacity=None)
    alike = msgspec.structs.replace(run, learner=learner, selection=selection)
    return msgspec.json.encode(_without_fractions(msgspec.to_builtins(alike)), order="sorted")


def _without_fractions(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_fractions(v) for name, v in value.items()}
    return None if isinstance(value, float) else value


def _probed(cell: WorldCell, at_once: int, progress: Progress) -> Cost:
    import torch

    from onrig.learner.trials.batches import world_trials

    progress.doing(f"trying {shown(cell)}")
    run = cell.config
    steps = run.learner.selected.batch_steps or run.update_every * math.ceil(_STEPS / run.update_every)
    torch.set_num_threads(1)
    trials = world_trials(msgspec.structs.replace(run, random_steps=run.learner.batch), range(at_once))
    try:
        trials.train(run.learner.batch + steps)
        start, done = time.process_time(), 0
        while done == 0 or time.process_time() - start < PROBE_S:
            trials.train(steps)
            done += steps
        step_s = (time.process_time() - start) / done
        start = time.process_time()
        trials.evaluate()
        evaluation_s = time.process_time() - start
    finally:
        trials.close()
    progress.done(1)
    return Cost(step_s, evaluation_s)
