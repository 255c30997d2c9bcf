"""Performance of an episode in runs, evaluations and trials, and whether it pays to end an episode early."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET

from onrig.hw.rig import Rig, targets_of
from onrig.runtime.guard import Guard
from onrig.runtime.reward_terms import Terminal
from onrig.runtime.rewards import build_term_reward, probe_points
from onrig.runtime.starts import middle_start
from onrig.runtime.task import Task, compile_reward, compile_termination, conditions_of
from onrig.runtime.terminations import ScalarTest

FORMAT: Final = 2
"""Version of the normalised rewards in a run's files: 2 counts steps cut off by a termination, 1 did not."""


class Measure(NamedTuple):
    """Performance measure of episodes."""

    column: str
    """Column of ``episodes.csv``."""
    title: str
    """Title for an axis."""
    scale: str
    """Meaning of the values, shown in brackets."""
    number_format: str
    """Number format, such as ``.2f``."""


_NORMALIZED_MEASURE: Final = Measure("normalized", "normalised reward", "0 random, 1 reference", ".2f")
_RETURN_MEASURE: Final = Measure("return", "return", "raw units, no references in the task", ".6g")


def measure_of(task: Task) -> Measure:
    """Return the measure for a task: normalised performance, or the return if the task has no references."""
    return _RETURN_MEASURE if task.normalization is None else _NORMALIZED_MEASURE


def normalized(
    task: Task, total: float, steps: int, cut_off_steps: int = 0, cut_off_reward: float = 0.0
) -> float | None:
    """Return the performance mu_r of an episode (de Bruin et al. 2018, §5.1); None for a task without references.

    ``total``: sum of the rewards of ``steps`` steps; without any steps the result is NaN.  ``cut_off_steps``: steps cut
    off by a termination, each of which counts as ``cut_off_reward``; otherwise an episode could improve its score by
    ending early.
    """
    if task.normalization is None:
        return None
    if cut_off_steps:
        total, steps = total + cut_off_steps * cut_off_reward, steps + cut_off_steps
    return task.normalization.performance(total / steps if steps else math.nan)


def compile_cut_off_reward(task: Task, rig: Rig) -> Callable[[Sequence[float]], float]:
    """Build the function that returns the reward of each step cut off by a termination, given the last observation (n,)
    in SI units.

    That reward is the random controller's mean reward, or the reward of the termination if that is lower; 0 for a task
    without references.
    """
    if task.normalization is None:
        return lambda observation: 0.0
    random_reward, common_rewards = task.normalization.random_reward, _common_ends(task)
    # Failures in third-party code are ignored here, because the tick has already reported them.
    third_party_guard = Guard(lambda detail: None, 0, None)

    def guard_condition(name: str, test: ScalarTest) -> ScalarTest:
        return third_party_guard.wrap(name, test, False)

    rewarded_conditions = [
        (float(amount), test) for amount, test in conditions_of(task, rig, guard_condition) if amount is not UNSET
    ]
    terminates = compile_termination(task, rig, guard_condition)

    def cut_off_reward(observation: Sequence[float]) -> float:
        conditional_rewards = [amount for amount, test in rewarded_conditions if test(observation)]
        if rewarded_conditions and not terminates(
            observation
        ):  # no condition holds, because the record was rounded to float32: assume the lowest
            conditional_rewards = [min(amount for amount, _ in rewarded_conditions)]
        return (
            min(random_reward, sum([*common_rewards, *conditional_rewards]))
            if common_rewards or conditional_rewards
            else random_reward
        )

    return cut_off_reward


def lowest_cut_off_reward(task: Task, random_reward: float) -> float:
    """Return the lowest reward assigned to a cut-off step by any termination, given the reward of random actions."""
    common_rewards = _common_ends(task)
    conditional_rewards = [t.reward for t in (task.terminations or {}).values() if t.reward is not UNSET]
    return (
        min(random_reward, sum(common_rewards) + min(conditional_rewards, default=0.0))
        if common_rewards or conditional_rewards
        else random_reward
    )


def _common_ends(task: Task) -> list[float]:
    """Return the rewards that every termination gives: ``reward.terminal`` and those of terms of kind ``terminal``."""
    terms = [term.reward for term in (task.reward.terms or {}).values() if isinstance(term, Terminal)]
    return terms if task.reward.terminal is UNSET else [task.reward.terminal, *terms]


def _highest_end(task: Task) -> float:
    """Return the highest reward that a termination can give."""
    conditional_rewards = [0.0 if t.reward is UNSET else t.reward for t in (task.terminations or {}).values()]
    return sum(_common_ends(task)) + max([*conditional_rewards, *([0.0] if task.terminate else [])], default=0.0)


class EarlyEnd(NamedTuple):
    """Return of a termination in the next step, compared with continuing to the end of the episode."""

    ending_reward: float
    """Highest reward of a termination; 0 without terminations."""
    typical_return: float
    """Discounted return of continuing, at the random controller's mean reward if the task has references, otherwise at
    the reward of the start state with zero action."""
    worst_return: float
    """Discounted return of continuing in the worst non-terminal state, under the most expensive action."""

    @property
    def is_profitable(self) -> bool:
        """Whether an early end is profitable for an untrained policy."""
        return self.ending_reward > self.typical_return


def early_end(task: Task, rig: Rig, steps: int, gamma: float) -> EarlyEnd:
    """Compare an early end with continuing under a terminating task's reward, in episodes of ``steps`` steps with
    discount ``gamma``."""
    alive = 0.0 if task.reward.alive is UNSET else task.reward.alive
    worst_return = alive - sum(_highest_cost(task, rig, name) for name in task.reward.weights)
    weights = task.reward.action_weights
    worst_return -= sum(weights.get(a.name, 0.0) * max(abs(a.low), abs(a.high)) for a in rig.actuators)
    if task.reward.wall is not None:
        worst_return -= task.reward.wall.penalty
    add = build_term_reward(task.reward.terms, rig)
    if add is not None:  # the terms contribute their lowest value at the corners of the rig's ranges
        transitions = probe_points(rig)
        worst_return += float(add(transitions, np.zeros(len(transitions.action))).min())
    if task.normalization is not None:
        typical_return = task.normalization.random_reward
    else:
        middle_values = {**middle_start(task.all_starts), **{o.name: 0.5 * (o.low + o.high) for o in targets_of(rig)}}
        start = [middle_values.get(o.name, 0.0) for o in rig.signals]
        typical_return = compile_reward(task, rig)(start, [0.0 for _ in rig.actuators])
    discount_sum = (1.0 - gamma**steps) / (1.0 - gamma)
    return EarlyEnd(_highest_end(task), discount_sum * typical_return, discount_sum * worst_return)


def _highest_cost(task: Task, rig: Rig, name: str) -> float:
    """Return the largest cost of an observation within its range, in non-terminal states."""
    o = next(signal for signal in rig.signals if signal.name == name)
    low, high = task.terminate.get(name, (o.low, o.high))
    ends = [max(low, o.low), min(high, o.high)]
    if name in task.reward.folded:
        ends = [*map(abs, ends), *([0.0] if ends[0] < 0.0 < ends[1] else [])]
    return task.reward.weights[name] * max(abs(end - task.reward.target[name]) for end in ends)
