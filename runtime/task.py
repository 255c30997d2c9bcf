"""Task of a rig: reward, episode, start state and performance scale (docs/architecture.md).

A task refers to observations and actuators of a rig and is compiled for it once, so that only arithmetic remains in the
tick.  The reward has the form of de Bruin et al. 2018, eq. (9),

    r = -(sum_i w_i |x'_i - target_i| + sum_j w_j |a_j|) - [x' at a wall] * penalty,

with x' the observation *after* the action and a the applied action, both in SI units (docs/methods.md).  Terminating
tasks add ``alive`` in every step and ``terminal`` in the step that ends the episode.  Named terms
(``onrig.runtime.rewards``) are added on top: the tick computes the reward without them, and the replay process adds
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.config.registered import WithRegistered
from onrig.runtime.inputs import PolicyInput
from onrig.runtime.reset.schema import AnyReset
from onrig.runtime.rewards import (
    AnyTerm,
    BaseReward,
    BatchedReward,
    ScalarReward,
    Transitions,
    build_term_reward,
    observation_index,
)
from onrig.runtime.starts import Starts, StartValue
from onrig.runtime.targets import AnyTarget
from onrig.runtime.terminations import AnyTermination, BatchedTest, ScalarTest

Mean = TypeVar("Mean", float, NDArray[np.float64])
ConditionGuard = Callable[[str, ScalarTest], ScalarTest]
"""Function that takes the name and the test of a third-party condition and returns the test wrapped in a guard."""


class Wall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mechanical stops at the ends of an observation's travel, and the penalty for touching them (docs/methods.md,
    "Walls")."""

    observation: str
    """Observation whose travel ends at the stops."""
    low: Quantity
    """Lower stop."""
    high: Quantity
    """Upper stop."""
    penalty: NotNegative
    """Penalty subtracted from the reward at a stop."""
    margin: NotNegative
    """Distance from a stop that counts as contact: half a count of the sensor is enough, because the plant puts the
    ball exactly at the stop."""


class Reward(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of eq. (9), keyed by signal name, in SI units; signals without a weight cost nothing.  The rewards of
    ``terms`` are added."""

    target: dict[str, Quantity] = {}
    """Reference value by observation name."""
    weights: dict[str, NotNegative] = {}
    """Weight of the distance from the target, by observation name."""
    folded: tuple[str, ...] = ()
    """Observations compared by their absolute value, ``| |x'| - target |``, such as the pendulum's angle."""
    action_weights: dict[str, NotNegative] = {}
    """Weight of the absolute applied action, by actuator name."""
    wall: Wall | None = None
    alive: Quantity | UnsetType = UNSET
    """Reward added in every step; without it, ending an episode early saves costs (``onrig check`` reports whether it
    pays)."""
    terminal: Quantity | UnsetType = UNSET
    """Reward added in the terminal step, usually negative."""
    terms: dict[str, AnyTerm] | UnsetType = UNSET
    """Further terms, by name."""

    @property
    def terminal_reward(self) -> float:
        """Reward added on termination."""
        return 0.0 if self.terminal is UNSET else self.terminal


class Normalization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean rewards per step that correspond to performance mu_r = 0 and 1 (de Bruin et al. 2018, §5.1)."""

    random_reward: Quantity
    """Mean reward of uniformly random actions, which maps to 0."""
    reference_reward: Quantity
    """Mean reward of the reference controller, which maps to 1."""

    def performance(self, mean_reward: Mean) -> Mean:
        """Return the performance mu_r for mean rewards per step over complete episodes: 0 for the random policy, 1 for
        the reference."""
        return (mean_reward - self.random_reward) / (self.reference_reward - self.random_reward)


class Task(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task for one kind of rig, defined in YAML."""

    name: str
    """Name of the task."""
    episode_s: Positive
    """Length of an episode."""
    start: dict[str, StartValue] = {}
    """State of the plant at the start of an episode, by observation name (SI units): numbers, or intervals [low, high]
    from which each episode draws. The twin's reset, or a reset controller, establishes it."""
    reward: Reward
    normalization: Normalization | None = None
    """Mean rewards per step, ``alive`` included, that map to 0 and 1; without them scores are returns in raw units."""
    terminate: dict[str, tuple[Quantity, Quantity]] = {}
    """[low, high] by observation name, outside of which the episode terminates."""
    reset: AnyReset | None = None
    """Reset controller for devices without the capability RESET; these devices are refused if it is missing."""
    inputs: tuple[PolicyInput, ...] | msgspec.UnsetType = msgspec.UNSET
    """Policy inputs; default: all observations of the rig. Everything else always uses the observations."""
    terminations: dict[str, AnyTermination] | UnsetType = UNSET
    """Further conditions that end an episode, by name."""
    starts: tuple[dict[str, StartValue], ...] | UnsetType = UNSET
    """Alternative to ``start``: a list from which each episode draws one."""
    targets: dict[str, AnyTarget] | UnsetType = UNSET
    """Signals drawn for each episode or following a given course, by name: additional observations for policies, also
    available in rewards and terminations."""

    @property
    def all_starts(self) -> Starts:
        """``start``, or the list of ``starts``."""
        return self.start if self.starts is UNSET else self.starts

    @property
    def may_terminate(self) -> bool:
        """Whether an episode may end early."""
        return bool(self.terminate or self.terminations)


def _state_terms(task: Task, rig: Rig) -> list[tuple[int, float, float, bool]]:
    """Return (index, weight, target, folded) of each observation with a cost, in the rig's order."""
    reward = task.reward
    return [
        (i, reward.weights[name], reward.target[name], name in reward.folded)
        for name, i in observation_index(rig).items()
        if reward.weights.get(name, 0.0) != 0.0
    ]


def _action_terms(task: Task, rig: Rig) -> list[tuple[int, float]]:
    """Return (index, weight) of each actuator with a cost, in the rig's order."""
    weights = task.reward.action_weights
    return [(j, weights[a.name]) for j, a in enumerate(rig.actuators) if weights.get(a.name, 0.0) != 0.0]


def compile_base_reward(task: Task, rig: Rig, guard: ConditionGuard | None = None) -> BaseReward:
    """Build the reward of one transition without the named terms, for the tick.

    ``observation`` holds the rig's observations of s' (SI, wrapped; a previous command after them is ignored),
    ``action`` the applied action (SI).  The reward uses plain Python floats, which takes about a microsecond and leaves
    no allocation behind.  ``guard`` is as in :func:`compile_termination`.  Expects a task for which
    :func:`onrig.runtime.task_checks.task_problems` returns an empty list.
    """
    unfolded_terms = tuple((i, w, t) for i, w, t, folded in _state_terms(task, rig) if not folded)
    folded = tuple((i, w, t) for i, w, t, folded in _state_terms(task, rig) if folded)
    costs = tuple(_action_terms(task, rig))
    wall = task.reward.wall

    def distance(observation: Sequence[float], action: Sequence[float], terminated: bool | None = None, /) -> float:
        cost = 0.0
        for i, w, t in folded:
            cost += w * abs(abs(observation[i]) - t)
        for i, w, t in unfolded_terms:
            cost += w * abs(observation[i] - t)
        for j, w in costs:
            cost += w * abs(action[j])
        return -cost

    if wall is None:
        return _with_bonuses(distance, task, rig, guard)
    index = observation_index(rig)[wall.observation]
    low, high, penalty = wall.low + wall.margin, wall.high - wall.margin, wall.penalty

    def with_wall(observation: Sequence[float], action: Sequence[float], terminated: bool | None = None, /) -> float:
        x = observation[index]
        r = distance(observation, action)
        return r - penalty if x <= low or x >= high else r

    return _with_bonuses(with_wall, task, rig, guard)


def _with_bonuses(cost: BaseReward, task: Task, rig: Rig, guard: ConditionGuard | None) -> BaseReward:
    """Add the reward per step and those of terminations; return ``cost`` itself if the task has none, which adds no
    work to the tick."""
    rewarded_conditions = [(amount, test) for amount, test in conditions_of(task, rig, guard) if amount is not UNSET]
    if task.reward.alive is UNSET and task.reward.terminal is UNSET and not rewarded_conditions:
        return cost
    alive = 0.0 if task.reward.alive is UNSET else task.reward.alive
    terminal_reward, terminates = task.reward.terminal_reward, compile_termination(task, rig, guard)

    def reward(observation: Sequence[float], action: Sequence[float], terminated: bool | None = None, /) -> float:
        r = cost(observation, action) + alive
        if not (terminates(observation) if terminated is None else terminated):
            return r
        r += terminal_reward
        for amount, test in rewarded_conditions:
            r += amount if test(observation) else 0.0
        return r

    return reward


def compile_reward(task: Task, rig: Rig) -> ScalarReward:
    """Build the reward of one transition; building and evaluating it raise TermFailed if a term raises an exception."""
    base_reward, add = compile_base_reward(task, rig), build_term_reward(task.reward.terms, rig)
    terminates, safe_action = compile_termination(task, rig), tuple(a.safe for a in rig.actuators)

    def reward(
        observation: Sequence[float],
        action: Sequence[float],
        terminated: bool | None = None,
        previous: Sequence[float] | None = None,
        /,
    ) -> float:
        if add is None:
            return base_reward(observation, action, terminated)
        is_terminal = terminates(observation) if terminated is None else terminated
        observation_values, applied_action, previous_action = [
            np.array(values, np.float64) for values in (observation, action, previous or safe_action)
        ]
        return float(
            add(
                Transitions(observation_values, applied_action, previous_action, np.array(is_terminal)),
                np.array(base_reward(observation, action, is_terminal)),
            )
        )

    return reward


def batched_reward(task: Task, rig: Rig) -> BatchedReward:
    """Build ``reward(observations, actions, previous)`` for batches of transitions.

    The function maps shapes ``(..., n)`` and ``(..., m)`` to ``(...)``, in SI units and float64.  The results equal
    those of :func:`compile_reward` bit for bit, since the terms are added in the same order.
    """
    terms = sorted(_state_terms(task, rig), key=lambda term: not term[3])
    costs = _action_terms(task, rig)
    wall = task.reward.wall
    index = None if wall is None else observation_index(rig)[wall.observation]
    rewarded_conditions = [
        (t.reward, t.build(rig)) for t in (task.terminations or {}).values() if t.reward is not UNSET
    ]
    has_bonuses = bool(task.reward.alive is not UNSET or task.reward.terminal is not UNSET or rewarded_conditions)
    alive = 0.0 if task.reward.alive is UNSET else task.reward.alive
    terminal_reward, terminated = task.reward.terminal_reward, batched_termination(task, rig)
    add, safe_action = build_term_reward(task.reward.terms, rig), np.array([a.safe for a in rig.actuators])

    def reward(
        observations: NDArray[np.floating[Any]],
        actions: NDArray[np.floating[Any]],
        previous: NDArray[np.floating[Any]] | None = None,
        /,
    ) -> NDArray[np.float64]:
        x = np.asarray(observations, dtype=np.float64)
        a = np.asarray(actions, dtype=np.float64)
        r = costs_of(x, a)
        is_terminal = terminated(x) if has_bonuses or add is not None else np.array(False)
        if has_bonuses:
            r = r + alive
            r = np.where(is_terminal, r + terminal_reward, r)
            for amount, test in rewarded_conditions:
                r = r + np.where(test(x), amount, 0.0)
        if add is None:
            return r
        previous_action = (
            np.broadcast_to(safe_action, a.shape) if previous is None else np.asarray(previous, np.float64)
        )
        return add(Transitions(x, a, previous_action, is_terminal), r)

    def costs_of(x: NDArray[np.float64], a: NDArray[np.float64]) -> NDArray[np.float64]:
        cost = np.zeros(np.broadcast_shapes(x.shape[:-1], a.shape[:-1]))
        for i, w, t, folded in terms:
            value = np.abs(x[..., i]) if folded else x[..., i]
            cost = cost + w * np.abs(value - t)
        for j, w in costs:
            cost = cost + w * np.abs(a[..., j])
        if wall is None or index is None:
            return -cost
        is_at_wall = (x[..., index] <= wall.low + wall.margin) | (x[..., index] >= wall.high - wall.margin)
        return np.where(is_at_wall, -cost - wall.penalty, -cost)

    return reward


def compile_termination(task: Task, rig: Rig, guard: ConditionGuard | None = None) -> ScalarTest:
    """Build ``terminated(observation) -> bool`` for the tick (SI units); a NaN terminates.

    ``guard`` wraps third-party conditions.
    """
    index = observation_index(rig)
    bounds = tuple((index[name], low, high) for name, (low, high) in task.terminate.items())
    conditions = tuple(test for _, test in conditions_of(task, rig, guard))
    if not bounds and not conditions:
        return lambda observation: False

    def terminated(observation: Sequence[float]) -> bool:
        return not all(low <= observation[i] <= high for i, low, high in bounds)

    if not conditions:
        return terminated
    return lambda observation: terminated(observation) or any(ends(observation) for ends in conditions)


def conditions_of(task: Task, rig: Rig, guard: ConditionGuard | None) -> Iterator[tuple[float | UnsetType, ScalarTest]]:
    """Yield the reward and the test of each named condition."""
    for name, termination in (task.terminations or {}).items():
        condition = termination.build_scalar(rig)
        is_third_party = guard is not None and registry.is_third_party(termination)
        if guard is not None and is_third_party:
            condition = guard(f"the termination '{name}'", condition)
        yield termination.reward, condition


def batched_termination(task: Task, rig: Rig) -> BatchedTest:
    """Build ``terminated(observations)`` for batches, from ``(..., n)`` to ``(...)``, with the scalar version's
    results."""
    index = observation_index(rig)
    bounds = [(index[name], low, high) for name, (low, high) in task.terminate.items()]
    conditions = [termination.build(rig) for termination in (task.terminations or {}).values()]

    def terminated(observations: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        x = np.asarray(observations, dtype=np.float64)
        in_bounds = np.ones(x.shape[:-1], bool)
        for i, low, high in bounds:
            in_bounds &= (low <= x[..., i]) & (x[..., i] <= high)
        for ends in conditions:
            in_bounds &= ~np.broadcast_to(np.asarray(ends(x), bool), in_bounds.shape)
        return ~in_bounds

    return terminated


def episode_steps(task: Task, rate_hz: float) -> int:
    """Return the number of transitions in a complete episode: exactly round(T/Ts) (docs/methods.md, "Steps per
    episode")."""
    return round(task.episode_s * rate_hz)
