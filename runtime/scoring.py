"""How well an episode went, one definition for runs, evaluations and trials; and what an early end of it pays."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET

from onrig.hw.rig import Rig
from onrig.runtime.rewards import corners, term_reward
from onrig.runtime.task import Task, compile_reward

FORMAT: Final = 2
"""Version of the normalised rewards in a run's files: 2 counts steps that a termination cut off, 1 did not."""


class Measure(NamedTuple):
    """What says how well an episode went."""

    column: str
    """Of ``episodes.csv``."""
    title: str
    """For an axis."""
    scale: str
    """What its values mean, in brackets behind it."""
    form: str
    """Format of a figure."""


_NORMALIZED: Final = Measure("normalized", "normalised reward", "0 random, 1 reference", ".2f")
_RETURN: Final = Measure("return", "return", "raw units, no references in the task", ".6g")


def measure_of(task: Task) -> Measure:
    """Normalised performance, or the return where a task has no references."""
    return _RETURN if task.normalization is None else _NORMALIZED


def normalized(task: Task, total: float, steps: int, unlived: int = 0) -> float | None:
    """Performance mu_r of an episode (de Bruin et al. 2018, §5.1); None for a task without references.

    ``total``: the rewards of ``steps`` steps; NaN without any.  ``unlived``: steps that a termination cut off, which
    count as ``unlived_reward``: otherwise an episode that ends before it fails would be as good as its first steps.
    """
    if task.normalization is None:
        return None
    if unlived:
        total, steps = total + unlived * unlived_reward(task), steps + unlived
    return task.normalization.performance(total / steps if steps else math.nan)


def unlived_reward(task: Task) -> float:
    """What a step counts that a termination cut off: the random controller's reward, or the terminal one if lower.

    Expects a task with references.
    """
    assert task.normalization is not None
    random_reward = task.normalization.random_reward
    return random_reward if task.reward.terminal is UNSET else min(random_reward, task.reward.terminal)


class EarlyEnd(NamedTuple):
    """What a learner gains by a termination in the next step, against living on to the end of the episode."""

    ending: float
    """Terminal reward; 0 without one."""
    typical: float
    """Discounted sum of the rewards of living on: of the random controller where the task has references, else of
    what the task's start earns without an action."""
    worst: float
    """The same in the worst state in which the task goes on, under the most expensive action."""

    @property
    def pays(self) -> bool:
        """Whether a learner that does not know better yet is paid for an early end."""
        return self.ending > self.typical


def early_end(task: Task, rig: Rig, steps: int, gamma: float) -> EarlyEnd:
    """Weigh an early end under a task's reward, which terminates, in episodes of ``steps`` under discount ``gamma``."""
    alive = 0.0 if task.reward.alive is UNSET else task.reward.alive
    worst = alive - sum(_highest_cost(task, rig, name) for name in task.reward.weights)
    weights = task.reward.action_weights
    worst -= sum(weights.get(a.name, 0.0) * max(abs(a.low), abs(a.high)) for a in rig.actuators)
    if task.reward.wall is not None:
        worst -= task.reward.wall.penalty
    add = term_reward(task.reward.terms, rig)
    if add is not None:  # of the terms, the worst corner of the rig's ranges
        moves = corners(rig)
        worst += float(add(moves, np.zeros(len(moves.action))).min())
    if task.normalization is not None:
        typical = task.normalization.random_reward
    else:
        start = [task.start.get(o.name, 0.0) for o in rig.signals]
        typical = compile_reward(task, rig)(start, [0.0 for _ in rig.actuators])
    weight = (1.0 - gamma**steps) / (1.0 - gamma)
    return EarlyEnd(task.reward.at_end, weight * typical, weight * worst)


def _highest_cost(task: Task, rig: Rig, name: str) -> float:
    """Largest cost of an observation within its range, as far as the task goes on."""
    o = next(signal for signal in rig.signals if signal.name == name)
    low, high = task.terminate.get(name, (o.low, o.high))
    ends = [max(low, o.low), min(high, o.high)]
    if name in task.reward.folded:
        ends = [*map(abs, ends), *([0.0] if ends[0] < 0.0 < ends[1] else [])]
    return task.reward.weights[name] * max(abs(end - task.reward.target[name]) for end in ends)
