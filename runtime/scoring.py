"""Performance of an episode, for runs, evaluations and trials, and the gain of an early end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET

from onrig.hw.rig import Rig, targets_of
from onrig.runtime.guard import Guard
from onrig.runtime.reward_terms import Terminal
from onrig.runtime.rewards import probe_points, term_reward
from onrig.runtime.starts import middle_of
from onrig.runtime.task import Task, compile_reward, compile_termination, conditions_of
from onrig.runtime.terminations import ScalarTest

FORMAT: Final = 2
"""Version of the normalised rewards in a run's files: 2 counts steps cut off by a termination, 1 did not."""


class Measure(NamedTuple):
    """Performance measure of episodes."""

    column: str
    """Column of ``episodes.csv``."""
    title: str
    """Title of an axis."""
    scale: str
    """Meaning of its values, shown in brackets."""
    number_format: str
    """Number format, such as ``.2f``."""


_NORMALIZED_MEASURE: Final = Measure("normalized", "normalised reward", "0 random, 1 reference", ".2f")
_RETURN_MEASURE: Final = Measure("return", "return", "raw units, no references in the task", ".6g")


def measure_of(task: Task) -> Measure:
    """Return normalised performance, or the return for a task without references."""
    return _RETURN_MEASURE if task.normalization is None else _NORMALIZED_MEASURE


def normalized(
    task: Task, total: float, steps: int, cut_off_steps: int = 0, cut_off_reward: float = 0.0
) -> float | None:
    """Performance mu_r of an episode (de Bruin et al. 2018, §5.1); None for a task without references.

    ``total``: rewards of ``steps`` steps; NaN if there are none.  ``cut_off_steps``: steps cut off by a termination,
    each of which counts as ``cut_off_reward``; otherwise an episode could improve its score by ending early."""
    if task.normalization is None:
        return None
    if cut_off_steps:
        total, steps = total + cut_off_steps * cut_off_reward, steps + cut_off_steps
    return task.normalization.performance(total / steps if steps else math.nan)


def compile_cut_off_reward(task: Task, rig: Rig) -> Callable[[Sequence[float]], float]:
    """Build the reward assigned to a step cut off by a termination, from the last observation (n,) in SI units.

    It is the random controller's, or the reward of this end if lower; 0 for a task without references.
    """
    if task.normalization is None:
        return lambda observation: 0.0
    random_reward, common = task.normalization.random_reward, _common_ends(task)
    guard = Guard(lambda detail: None, 0, None)  # the tick has already reported failures in third-party code

    def watch(name: str, test: ScalarTest) -> ScalarTest:
        return guard.wrap(name, test, False)

    paid = [(float(amount), test) for amount, test in conditions_of(task, rig, watch) if amount is not UNSET]
    ends = compile_termination(task, rig, watch)

    def cut_off_reward(observation: Sequence[float]) -> float:
        own = [amount for amount, test in paid if test(observation)]
        if paid and not ends(observation):  # float32 rounding in the record hid the end: assume the lowest
            own = [min(amount for amount, _ in paid)]
        return min(random_reward, sum([*common, *own])) if common or own else random_reward

    return cut_off_reward


def lowest_cut_off_reward(task: Task, random_reward: float) -> float:
    """Return the lowest value of a cut-off step, whichever end cut it off, for a given reward of random actions."""
    common = _common_ends(task)
    own = [t.reward for t in (task.terminations or {}).values() if t.reward is not UNSET]
    return min(random_reward, sum(common) + min(own, default=0.0)) if common or own else random_reward


def _common_ends(task: Task) -> list[float]:
    """Return the rewards that every end gives, from the standard form and from terms."""
    terms = [term.reward for term in (task.reward.terms or {}).values() if isinstance(term, Terminal)]
    return terms if task.reward.terminal is UNSET else [task.reward.terminal, *terms]


def _highest_end(task: Task) -> float:
    """Return the reward of the end with the highest one."""
    own = [0.0 if t.reward is UNSET else t.reward for t in (task.terminations or {}).values()]
    return sum(_common_ends(task)) + max([*own, *([0.0] if task.terminate else [])], default=0.0)


class EarlyEnd(NamedTuple):
    """Return of a termination in the next step, compared with continuing to the end of the episode."""

    ending: float
    """Highest reward of an end; 0 without one."""
    typical: float
    """Discounted return of continuing: the random controller's if the task has references, otherwise that of the start
    state without action."""
    worst: float
    """Discounted return of continuing in the worst non-terminal state, under the most expensive action."""

    @property
    def is_profitable(self) -> bool:
        """Whether an early end pays for an untrained policy."""
        return self.ending > self.typical


def early_end(task: Task, rig: Rig, steps: int, gamma: float) -> EarlyEnd:
    """Evaluate an early end under the reward of a terminating task, in episodes of ``steps`` with discount
    ``gamma``."""
    alive = 0.0 if task.reward.alive is UNSET else task.reward.alive
    worst = alive - sum(_highest_cost(task, rig, name) for name in task.reward.weights)
    weights = task.reward.action_weights
    worst -= sum(weights.get(a.name, 0.0) * max(abs(a.low), abs(a.high)) for a in rig.actuators)
    if task.reward.wall is not None:
        worst -= task.reward.wall.penalty
    add = term_reward(task.reward.terms, rig)
    if add is not None:  # the terms contribute their worst corner of the rig's ranges
        transitions = probe_points(rig)
        worst += float(add(transitions, np.zeros(len(transitions.action))).min())
    if task.normalization is not None:
        typical = task.normalization.random_reward
    else:
        middle = {**middle_of(task.all_starts), **{o.name: 0.5 * (o.low + o.high) for o in targets_of(rig)}}
        start = [middle.get(o.name, 0.0) for o in rig.signals]
        typical = compile_reward(task, rig)(start, [0.0 for _ in rig.actuators])
    weight = (1.0 - gamma**steps) / (1.0 - gamma)
    return EarlyEnd(_highest_end(task), weight * typical, weight * worst)


def _highest_cost(task: Task, rig: Rig, name: str) -> float:
    """Largest cost of an observation within its range, in non-terminal states."""
    o = next(signal for signal in rig.signals if signal.name == name)
    low, high = task.terminate.get(name, (o.low, o.high))
    ends = [max(low, o.low), min(high, o.high)]
    if name in task.reward.folded:
        ends = [*map(abs, ends), *([0.0] if ends[0] < 0.0 < ends[1] else [])]
    return task.reward.weights[name] * max(abs(end - task.reward.target[name]) for end in ends)
