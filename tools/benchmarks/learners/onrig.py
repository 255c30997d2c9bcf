"""Onrig's DDPG: the update alone, and with what draws and gathers its minibatches in trials on plants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from onrig.learner.algorithms.ddpg import Ddpg
from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.memories import Memories
from onrig.tools.benchmarks.learner_cases import STORED, LearnerCase, Work
from onrig.tools.benchmarks.peers import Unavailable
from onrig.tools.benchmarks.transitions import transitions
from onrig.tools.load import load


def build(case: LearnerCase, updates: int, seed: int) -> Callable[[], object]:
    """Make the learner and full memories ready, one of each for every trial."""
    streams = [np.random.default_rng([seed, 3, s]) for s in range(case.trials)]
    ddpg = Ddpg(case.config, case.shape.n_obs, case.shape.n_act, streams)
    memories = full_memories(case, seed)
    if case.work is Work.UPDATE:
        minibatches, _ = memories.draw(updates)
        return partial(ddpg.update, minibatches)
    return lambda: ddpg.update(memories.draw(updates)[0])


def full_memories(case: LearnerCase, seed: int) -> Memories:
    """Fill FIFO[Uniform] memories with ``STORED`` random transitions; ``Unavailable`` where no rig has such sizes."""
    config = load(case.rig, ["selection.strategy=FIFO[Uniform]", f"selection.capacity={STORED}"])
    n, m = case.shape.n_obs, case.shape.n_act
    if (len(config.rig.signals), len(config.rig.actuators)) != (n, m):
        raise Unavailable(f"{case.rig} is not of sizes {case.shape}")
    memories = Memories(config, LearnerSettings(ddpg=case.config), range(case.trials), noisy=False)
    t = transitions(STORED, n, m, seed)
    rows = np.column_stack((t.observation, t.action, t.next_observation, t.reward / STORED, t.exploration))
    memories.insert(np.broadcast_to(rows.astype(np.float32), (case.trials, *rows.shape)), None)
    return memories
