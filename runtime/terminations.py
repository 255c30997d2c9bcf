"""Conditions that end an episode, in addition to the bounds of ``task.terminate``, chosen by ``kind``.

The tick evaluates them at every frame, because the end of an episode stops the actuators. Third-party conditions in
Python run under a guard (``onrig.runtime.guard``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from onrig.hw.bounds import Quantity
from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.config.registered import registered
from onrig.runtime.expressions.evaluation import UndefinedValueError, compile_scalar, evaluate_batch
from onrig.runtime.expressions.syntax import expression_problems, parse
from onrig.runtime.rewards import Bools, Problems, Values, observation_index, unknown_name_problems

ScalarTest = Callable[[Sequence[float]], bool]
BatchedTest = Callable[[Values], Bools]


class Termination(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", kw_only=True):
    """Base of terminations; a subclass declares its settings as fields and its name as the tag."""

    reward: Quantity | msgspec.UnsetType = msgspec.UNSET
    """Reward of this termination, added to ``reward.terminal`` in the terminal step; every condition that holds adds
    its reward."""

    def problems(self, rig: Rig) -> Problems:
        """List the reasons why the condition cannot be used on a rig."""
        return iter(())

    def build(self, rig: Rig) -> BatchedTest:
        """Build a stateless function that maps observations (..., n), in SI units and the order of ``Rig.signals``, to
        (...).

        It must use numpy throughout, so that single and batched results are equal.
        """
        raise NotImplementedError

    def build_scalar(self, rig: Rig) -> ScalarTest:
        """Build the function for one observation (n,) of floats; the default converts it to an array, which takes a few
        µs."""
        test = self.build(rig)
        return lambda observation: to_bool(test(np.array(observation, np.float64)))


def to_bool(result: object) -> bool:
    """Convert a condition's result to bool; raises ValueError if it is neither true nor false."""
    if isinstance(result, np.ndarray) and result.shape == ():
        result = result[()]
    if not isinstance(result, bool | np.bool_):
        raise ValueError(f"expected true or false, got {result!r}")
    return bool(result)


class Outside(Termination, frozen=True, forbid_unknown_fields=True, tag="outside"):
    """End of the episode when an observation leaves [low, high] or is NaN."""

    observation: str
    """Name of the observation."""
    low: Quantity
    """Lower bound in the observation's unit."""
    high: Quantity
    """Upper bound in the observation's unit."""

    def problems(self, rig: Rig) -> Problems:
        """Report a missing observation, or an empty range."""
        yield from unknown_name_problems("observation", self.observation, rig)
        if not self.low < self.high:
            yield "", f"needs low < high, got {self.low} and {self.high}"

    def build(self, rig: Rig) -> BatchedTest:
        """Compare arrays."""
        index, low, high = observation_index(rig)[self.observation], self.low, self.high
        return lambda observations: ~((low <= observations[..., index]) & (observations[..., index] <= high))

    def build_scalar(self, rig: Rig) -> ScalarTest:
        """Compare floats."""
        index, low, high = observation_index(rig)[self.observation], self.low, self.high
        return lambda observation: not low <= observation[index] <= high


class ExpressionTermination(Termination, frozen=True, forbid_unknown_fields=True, tag="expression"):
    """End of the episode when an expression over the observations is true, or compares non-finite values."""

    value: str
    """Condition such as ``abs(angle) > 0.2 or position**2 > 4``, which refers to observations by name
    (docs/your-rig.md)."""

    def problems(self, rig: Rig) -> Problems:
        """Report an invalid expression, with the line and column of the error."""
        yield from expression_problems(self.value, _names(rig), condition=True)

    def build(self, rig: Rig) -> BatchedTest:
        """Evaluate the condition on arrays."""
        node = parse(self.value, _names(rig), condition=True)

        def test(observations: Values) -> Bools:
            outcome = evaluate_batch(node, lambda slot: observations[..., slot])
            return np.asarray(outcome.value | outcome.is_undefined, np.bool_)

        return test

    def build_undefined(self, rig: Rig) -> BatchedTest:
        """Build the test for points at which the condition compares non-finite values."""
        node = parse(self.value, _names(rig), condition=True)
        return lambda observations: np.asarray(
            evaluate_batch(node, lambda slot: observations[..., slot]).is_undefined, np.bool_
        )

    def build_scalar(self, rig: Rig) -> ScalarTest:
        """Evaluate the condition on floats."""
        condition = compile_scalar(parse(self.value, _names(rig), condition=True))

        def test(observation: Sequence[float]) -> bool:
            try:
                return bool(condition(observation))
            except UndefinedValueError:
                return True

        return test


def _names(rig: Rig) -> list[str]:
    return [o.name for o in rig.signals]


if TYPE_CHECKING:
    AnyTermination = Termination
else:
    AnyTermination = Annotated[Any, registered(registry.TERMINATIONS)]
Terminations = Mapping[str, Termination] | msgspec.UnsetType
"""Terminations, keyed by their names in the task."""
