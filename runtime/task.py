"""Task of a rig: reward, episode, start state and performance scale (docs/architecture.md).

A task names observations and actuators of a rig and is compiled for it once, so that only arithmetic is left in the
tick.  The reward is the generic form of de Bruin et al. 2018, eq. (9),

    r = -(sum_i w_i |x'_i - target_i| + sum_j w_j |a_j|) - [x' at a wall] * penalty,

with x' the observation *after* the action and a the applied action, both in SI units (docs/methods.md).  Tasks that
terminate add ``alive`` in every step and ``terminal`` in the one that ends the episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from onrig.hw.bounds import SMALLEST, NotNegative, Positive, Quantity
from onrig.hw.rig import Rig, is_word
from onrig.hw.units import is_rate
from onrig.runtime.inputs import PolicyInput, input_problems
from onrig.runtime.reset.schema import Reset, reset_problems

ScalarReward = Callable[[Sequence[float], Sequence[float]], float]
ScalarTest = Callable[[Sequence[float]], bool]
BatchedTest = Callable[[NDArray[np.floating[Any]]], NDArray[np.bool_]]
BatchedReward = Callable[[NDArray[np.floating[Any]], NDArray[np.floating[Any]]], NDArray[np.float64]]
Mean = TypeVar("Mean", float, NDArray[np.float64])


class Wall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mechanical stops of an observation, and their penalty (docs/methods.md, "Walls")."""

    observation: str
    """Whose ends the stops are."""
    low: Quantity
    """Lower stop."""
    high: Quantity
    """Upper stop."""
    penalty: NotNegative
    """Taken off the reward at a stop."""
    margin: NotNegative
    """Distance from a bound within which the wall counts as met: half a count of the sensor is enough, because the
    plant puts the ball exactly at the bound."""


class Reward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of eq. (9) by the rig's names, in SI units; signals not named cost nothing."""

    target: dict[str, Quantity]
    """Observation name to reference value."""
    weights: dict[str, NotNegative]
    """Observation name to the weight of its distance from the target."""
    folded: tuple[str, ...] = ()
    """Observations compared by their absolute value: ``| |x'| - target |`` (the pendulum's angle)."""
    action_weights: dict[str, NotNegative] = {}
    """Actuator name to the weight of the absolute applied action."""
    wall: Wall | None = None
    alive: Quantity | UnsetType = UNSET
    """Added in every step: without it an early end saves costs (``onrig check`` says whether it pays)."""
    terminal: Quantity | UnsetType = UNSET
    """Added in the step in which the task terminates, as a rule negative."""

    @property
    def at_end(self) -> float:
        """What a termination adds."""
        return 0.0 if self.terminal is UNSET else self.terminal


class Normalization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean rewards per step that correspond to performance mu_r = 0 and 1 (de Bruin et al. 2018, §5.1)."""

    random_reward: Quantity
    """Of uniformly random actions: 0."""
    reference_reward: Quantity
    """Of the reference controller: 1."""

    def performance(self, mean_reward: Mean) -> Mean:
        """Performance mu_r of mean rewards per step over whole episodes: 0 the random policy, 1 the reference."""
        return (mean_reward - self.random_reward) / (self.reference_reward - self.random_reward)


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task for one kind of rig, defined in YAML."""

    name: str
    """Of the task."""
    episode_s: Positive
    """Length of an episode."""
    start: dict[str, Quantity]
    """State of the plant at the start of an episode, by observation name (the twin's reset; SI units)."""
    reward: Reward
    normalization: Normalization | None = None
    """Mean rewards per step, ``alive`` included, that are 0 and 1; without them scores are returns in raw units."""
    terminate: dict[str, tuple[Quantity, Quantity]] = {}
    """Observation name to the [low, high] outside of which the episode terminates."""
    reset: Reset | None = None
    """Reset controller for devices without the capability RESET; if missing, such devices are refused."""
    inputs: tuple[PolicyInput, ...] | msgspec.UnsetType = msgspec.UNSET
    """What policies see; left out: all observations of the rig.  Everything else sees these."""


def _observation_index(rig: Rig) -> dict[str, int]:
    return {o.name: i for i, o in enumerate(rig.signals)}


def _state_terms(task: Task, rig: Rig) -> list[tuple[int, float, float, bool]]:
    """(index, weight, target, folded) of each observation that costs, in the rig's order."""
    reward = task.reward
    return [
        (i, reward.weights[name], reward.target[name], name in reward.folded)
        for name, i in _observation_index(rig).items()
        if reward.weights.get(name, 0.0) != 0.0
    ]


def _action_terms(task: Task, rig: Rig) -> list[tuple[int, float]]:
    """(index, weight) of each actuator that costs, in the rig's order."""
    weights = task.reward.action_weights
    return [(j, weights[a.name]) for j, a in enumerate(rig.actuators) if weights.get(a.name, 0.0) != 0.0]


def compile_reward(task: Task, rig: Rig) -> ScalarReward:
    """Build ``reward(observation, action) -> float`` of one transition, for the tick.

    ``observation`` holds the rig's observations of s' (SI, wrapped; a previous command after them is ignored),
    ``action`` the applied action (SI).  Plain Python floats: about a microsecond, no allocation that is kept.
    Expects a task without :func:`task_problems`.
    """
    plain = tuple((i, w, t) for i, w, t, folded in _state_terms(task, rig) if not folded)
    folded = tuple((i, w, t) for i, w, t, folded in _state_terms(task, rig) if folded)
    costs = tuple(_action_terms(task, rig))
    wall = task.reward.wall

    def distance(observation: Sequence[float], action: Sequence[float]) -> float:
        cost = 0.0
        for i, w, t in folded:
            cost += w * abs(abs(observation[i]) - t)
        for i, w, t in plain:
            cost += w * abs(observation[i] - t)
        for j, w in costs:
            cost += w * abs(action[j])
        return -cost

    if wall is None:
        return _with_bonuses(distance, task, rig)
    at = _observation_index(rig)[wall.observation]
    low, high, penalty = wall.low + wall.margin, wall.high - wall.margin, wall.penalty

    def distance_and_wall(observation: Sequence[float], action: Sequence[float]) -> float:
        x = observation[at]
        r = distance(observation, action)
        return r - penalty if x <= low or x >= high else r

    return _with_bonuses(distance_and_wall, task, rig)


def _with_bonuses(cost: ScalarReward, task: Task, rig: Rig) -> ScalarReward:
    """Add ``alive`` and ``terminal``; the same function where a task has neither, so that no tick pays for them."""
    if task.reward.alive is UNSET and task.reward.terminal is UNSET:
        return cost
    alive = 0.0 if task.reward.alive is UNSET else task.reward.alive
    at_end, terminated = task.reward.at_end, compile_terminated(task, rig)

    def reward(observation: Sequence[float], action: Sequence[float]) -> float:
        r = cost(observation, action) + alive
        return r + at_end if terminated(observation) else r

    return reward


def batched_reward(task: Task, rig: Rig) -> BatchedReward:
    """Build ``reward(observations, actions)`` of many transitions at once.

    Shapes ``(..., n)`` and ``(..., m)`` to ``(...)``, SI units, float64.  Equal to :func:`compile_reward` bit for bit,
    since the terms are added in the same order.
    """
    terms = sorted(_state_terms(task, rig), key=lambda term: not term[3])
    costs = _action_terms(task, rig)
    wall = task.reward.wall
    at = None if wall is None else _observation_index(rig)[wall.observation]
    has_bonuses = task.reward.alive is not UNSET or task.reward.terminal is not UNSET
    alive = 0.0 if task.reward.alive is UNSET else task.reward.alive
    at_end, terminated = task.reward.at_end, batched_terminated(task, rig)

    def reward(observations: NDArray[np.floating[Any]], actions: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        r = costs_of(observations, actions)
        if not has_bonuses:
            return r
        r = r + alive
        return np.where(terminated(observations), r + at_end, r)

    def costs_of(observations: NDArray[np.floating[Any]], actions: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        x = np.asarray(observations, dtype=np.float64)
        a = np.asarray(actions, dtype=np.float64)
        cost = np.zeros(np.broadcast_shapes(x.shape[:-1], a.shape[:-1]))
        for i, w, t, folded in terms:
            value = np.abs(x[..., i]) if folded else x[..., i]
            cost = cost + w * np.abs(value - t)
        for j, w in costs:
            cost = cost + w * np.abs(a[..., j])
        if wall is None or at is None:
            return -cost
        hit = (x[..., at] <= wall.low + wall.margin) | (x[..., at] >= wall.high - wall.margin)
        return np.where(hit, -cost - wall.penalty, -cost)

    return reward


def compile_terminated(task: Task, rig: Rig) -> ScalarTest:
    """Build ``terminated(observation) -> bool`` for the tick (SI units); a NaN terminates."""
    index = _observation_index(rig)
    bounds = tuple((index[name], low, high) for name, (low, high) in task.terminate.items())
    if not bounds:
        return lambda observation: False

    def terminated(observation: Sequence[float]) -> bool:
        return not all(low <= observation[i] <= high for i, low, high in bounds)

    return terminated


def batched_terminated(task: Task, rig: Rig) -> BatchedTest:
    """Build ``terminated(observations)`` of many at once, ``(..., n)`` to ``(...)``; equal to the scalar form."""
    index = _observation_index(rig)
    bounds = [(index[name], low, high) for name, (low, high) in task.terminate.items()]

    def terminated(observations: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        x = np.asarray(observations, dtype=np.float64)
        inside = np.ones(x.shape[:-1], bool)
        for i, low, high in bounds:
            inside &= (low <= x[..., i]) & (x[..., i] <= high)
        return ~inside

    return terminated


def episode_steps(task: Task, rate_hz: float) -> int:
    """Transitions in a whole episode: exactly round(T/Ts) (docs/methods.md, "Steps per episode")."""
    return round(task.episode_s * rate_hz)


def task_problems(task: Task, rig: Rig) -> list[tuple[str, str]]:
    """List problems of a task on a rig as (path, message) pairs; empty if valid."""
    observations = {o.name: o for o in rig.signals}
    actuators = [a.name for a in rig.actuators]
    problems: list[tuple[str, str]] = []

    def known(path: str, names: Sequence[str], there: Sequence[str], kind: str) -> None:
        for name in names:
            if name not in there:
                listed = ", ".join(there)
                problems.append((f"{path}.{name}", f"rig '{rig.name}' has no {kind} '{name}' (there are: {listed})"))

    def finite(path: str, values: dict[str, float]) -> None:
        problems.extend((f"{path}.{k}", "must be a finite number") for k, v in values.items() if not math.isfinite(v))

    reward = task.reward
    seen = list(observations)
    if not is_word(task.name):
        problems.append(("name", f"expected a plain word of letters, digits and _ . + -, got {task.name!r}"))
    if not math.isfinite(task.episode_s):
        problems.append(("episode_s", "must be a finite number of seconds"))
    for path, values in (
        ("start", task.start),
        ("reward.target", reward.target),
        ("reward.weights", reward.weights),
    ):
        known(path, list(values), seen, "observation")
        finite(path, values)
    known("reward.action_weights", list(reward.action_weights), actuators, "actuator")
    finite("reward.action_weights", reward.action_weights)
    for i, name in enumerate(reward.folded):
        if name not in reward.weights:
            problems.append((f"reward.folded[{i}]", f"'{name}' has no weight, so folding it does nothing"))
    for name in reward.weights:
        if name not in reward.target:
            problems.append((f"reward.weights.{name}", "has a weight but no target"))
    if reward.wall is not None:
        wall = reward.wall
        if wall.observation not in observations:
            problems.append(("reward.wall.observation", f"rig '{rig.name}' has no observation '{wall.observation}'"))
        elif is_rate(unit := observations[wall.observation].unit):
            message = f"expected a place, and '{wall.observation}' is in {unit!r}"
            problems.append(("reward.wall.observation", message))
        if not (math.isfinite(wall.low) and math.isfinite(wall.high) and wall.low < wall.high):
            problems.append(("reward.wall", f"needs low < high, got {wall.low} and {wall.high}"))
        elif not 2.0 * wall.margin < wall.high - wall.low:
            problems.append(("reward.wall.margin", "must be less than half the distance between the walls"))
        if not math.isfinite(wall.penalty):
            problems.append(("reward.wall.penalty", "must be a finite number"))
    for name, value in (("alive", reward.alive), ("terminal", reward.terminal)):
        if value is not UNSET and not math.isfinite(value):
            problems.append((f"reward.{name}", "must be a finite number"))
    if reward.terminal is not UNSET and not task.terminate:
        problems.append(("reward.terminal", "the task never terminates: give terminate, or leave this out"))
    known("terminate", list(task.terminate), seen, "observation")
    for name, (low, high) in task.terminate.items():
        if not low < high:
            problems.append((f"terminate.{name}", f"needs low < high, got {low} and {high}"))
        elif name in task.start and not low <= task.start[name] <= high:
            problems.append((f"terminate.{name}", f"the start state {task.start[name]} lies outside [{low}, {high}]"))
    problems += input_problems(task.inputs, rig)
    if task.reset is not None:
        problems.extend((f"reset.{path}", message) for path, message in reset_problems(task.reset, task.start, rig))
    n = task.normalization
    if n is None:
        return problems
    if not (math.isfinite(n.random_reward) and math.isfinite(n.reference_reward)):
        problems.append(("normalization", "needs finite numbers"))
    elif n.random_reward < n.reference_reward < n.random_reward + SMALLEST:
        problems.append(("normalization", f"the two rewards must be at least {SMALLEST:g} apart"))
    elif not n.random_reward < n.reference_reward:
        problems.append(("normalization", "needs random_reward < reference_reward"))
    return problems
