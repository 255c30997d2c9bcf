"""Common reward terms, and expressions for all others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
import numpy as np

from onrig.hw.bounds import NotNegative, Quantity
from onrig.hw.rig import Rig, targets_of
from onrig.runtime.expressions.evaluation import evaluate_batch
from onrig.runtime.expressions.syntax import expression_problems, parse, slots_of
from onrig.runtime.rewards import (
    Cost,
    Problems,
    RewardTerm,
    Transitions,
    Values,
    actuator_index,
    build_cost,
    observation_index,
    unknown_name_problems,
)

Decrease = Literal["gaussian", "linear", "quadratic", "cosine"]


class Tolerance(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="tolerance"):
    """Reward of ``weight`` while an observation is within bounds, decreasing outside them (as in dm_control's
    rewards)."""

    observation: str
    """Name of the observation."""
    bounds: tuple[Quantity, Quantity]
    """[low, high] in the observation's unit; two equal numbers stand for a single value."""
    margin: NotNegative = 0.0
    """Distance from the bounds at which the reward has decreased to ``value_at_margin``; 0: no reward outside the
    bounds."""
    shape: Decrease = "gaussian"
    """Shape of the decrease; all but ``gaussian`` reach 0."""
    value_at_margin: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.1
    """Share of the weight that remains at the margin; must be above 0 for ``gaussian``."""
    weight: NotNegative = 1.0
    """Reward within the bounds."""
    folded: bool = False
    """Whether the observation's absolute value is compared with the bounds."""

    def problems(self, rig: Rig) -> Problems:
        """Report a missing observation, crossed bounds, and a gaussian with ``value_at_margin`` 0."""
        yield from unknown_name_problems("observation", self.observation, rig)
        low, high = self.bounds
        if not low <= high:
            yield "bounds", f"needs low <= high, got {low} and {high}"
        if self.shape == "gaussian" and self.value_at_margin == 0.0:
            yield "value_at_margin", "must be above 0 for gaussian, which never reaches 0"

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the weighted tolerance."""
        index, (low, high) = observation_index(rig)[self.observation], self.bounds
        decrease = build_decrease(self.shape, self.value_at_margin)

        def tolerance(transitions: Transitions) -> Values:
            x = np.abs(transitions.observation[..., index]) if self.folded else transitions.observation[..., index]
            is_in_bounds = (low <= x) & (x <= high)
            excess = np.zeros(np.shape(x))
            if self.margin > 0.0:
                excess = decrease(np.where(x < low, low - x, x - high) / self.margin)
            return np.asarray(self.weight * np.where(is_in_bounds, 1.0, excess))

        return tolerance


def build_decrease(shape: Decrease, value_at_margin: float) -> Callable[[Values], Values]:
    """Build the function that decreases from 1 at distance 0 to ``value_at_margin`` at distance 1, from (...,) to
    (...,)."""
    if shape == "gaussian":
        rate = -2.0 * math.log(value_at_margin) if value_at_margin > 0.0 else math.inf
        return lambda d: np.exp(-0.5 * rate * (d * d))
    if shape == "linear":
        slope = 1.0 - value_at_margin
        return lambda d: np.where(slope * d < 1.0, 1.0 - slope * d, 0.0)
    if shape == "quadratic":
        curvature = 1.0 - value_at_margin
        return lambda d: np.where(curvature * (d * d) < 1.0, 1.0 - curvature * (d * d), 0.0)
    angle = math.acos(2.0 * value_at_margin - 1.0)
    return lambda d: np.where(angle * d < math.pi, 0.5 * (1.0 + np.cos(angle * d)), 0.0)


class ActionChange(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="action_change"):
    """Minus ``weight`` times the absolute or squared change of the applied action since the previous one.

    For an episode's first action, the previous action is the output at the first sample (after a reset, the safe
    output).
    """

    actuator: str
    """Name of the actuator."""
    weight: NotNegative
    """Weight per unit of the actuator, or of its square."""
    shape: Cost = "absolute"
    """Cost of the change: its absolute value or its square."""

    def problems(self, rig: Rig) -> Problems:
        """Report a missing actuator."""
        yield from unknown_name_problems("actuator", self.actuator, rig)

    def uses_previous_action(self, rig: Rig) -> bool:
        return True

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the weighted change."""
        index, cost = actuator_index(rig)[self.actuator], build_cost(self.shape)
        return lambda transitions: np.asarray(
            -self.weight * cost(transitions.action[..., index] - transitions.previous_action[..., index])
        )


class Alive(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="alive"):
    """Constant ``reward`` in every step."""

    reward: Quantity
    """Reward in raw units of the task."""

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the constant."""
        return lambda transitions: np.asarray(self.reward, np.float64)


class Terminal(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="terminal"):
    """``reward`` in the step that terminates the episode, usually negative."""

    reward: Quantity
    """Reward in raw units of the task."""

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the reward for the terminal step."""
        return lambda transitions: np.where(transitions.terminated, self.reward, 0.0)


class AtWall(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="wall"):
    """Minus ``penalty`` while an observation is at one of its mechanical stops."""

    observation: str
    """Observation whose travel ends at the stops."""
    low: Quantity
    """Lower stop."""
    high: Quantity
    """Upper stop."""
    penalty: NotNegative
    """Penalty subtracted from the reward at a stop."""
    margin: NotNegative = 0.0
    """Distance from a stop that counts as contact."""

    def problems(self, rig: Rig) -> Problems:
        """Report a missing observation, crossed stops, and overlapping margins."""
        yield from unknown_name_problems("observation", self.observation, rig)
        if not self.low < self.high:
            yield "", f"needs low < high, got {self.low} and {self.high}"
        elif not 2.0 * self.margin < self.high - self.low:
            yield "margin", "must be less than half the distance between the walls"

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the penalty at the stops."""
        index, low, high = observation_index(rig)[self.observation], self.low + self.margin, self.high - self.margin

        def at_wall(transitions: Transitions) -> Values:
            x = transitions.observation[..., index]
            return np.where((x <= low) | (x >= high), -self.penalty, 0.0)

        return at_wall


class ExpressionTerm(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="expression"):
    """Value of an expression over observations, targets, action and previous action (docs/your-rig.md)."""

    value: str
    """Text such as ``cos(angle) - 0.01 * velocity**2``, with the names of observations and targets (their values after
    the action) and of actuators; ``previous_ACTUATOR`` is the previous action."""

    def problems(self, rig: Rig) -> Problems:
        """Report an invalid expression, with the line and column of the error."""
        yield from expression_problems(self.value, expression_names(rig))

    def uses_previous_action(self, rig: Rig) -> bool:
        """Return whether the expression names a previous action."""
        names = expression_names(rig)
        first_previous = len(names) - len(rig.actuators)
        return not any(self.problems(rig)) and max(slots_of(parse(self.value, names)), default=-1) >= first_previous

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the evaluation of the expression, which returns NaN where a comparison is undefined."""
        node, index = parse(self.value, expression_names(rig)), observation_index(rig)
        columns = [index[o.name] for o in (*rig.observations, *targets_of(rig))]
        n, m = len(columns), len(rig.actuators)

        def expression(transitions: Transitions) -> Values:
            def column(slot: int) -> Values:
                if slot < n:
                    return transitions.observation[..., columns[slot]]
                values, index_in_values = (
                    (transitions.action, slot - n) if slot < n + m else (transitions.previous_action, slot - n - m)
                )
                return values[..., index_in_values]

            outcome = evaluate_batch(node, column)
            return np.where(outcome.is_undefined, np.nan, outcome.value)

        return expression


def expression_names(rig: Rig) -> list[str]:
    """Return the names available to a reward's expression, in order: observations, targets, actuators, previous
    actions."""
    actuators = [a.name for a in rig.actuators]
    observation_names = [o.name for o in (*rig.observations, *targets_of(rig))]
    return [*observation_names, *actuators, *(f"previous_{name}" for name in actuators)]
