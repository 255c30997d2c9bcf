"""Conditions that end an episode, beside the bounds of ``task.terminate``: descriptions, chosen by ``kind``.

The tick asks them at every frame, since an ended episode stops the actuators.  One in Python from outside runs there
under a guard (``onrig.runtime.guard``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.bounds import Quantity
from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.config.registered import registered
from onrig.runtime.rewards import Problems, Values, missing, observation_index

Bools = NDArray[np.bool_]
ScalarTest = Callable[[Sequence[float]], bool]
BatchedTest = Callable[[Values], Bools]


class Termination(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Description of a termination; a subclass adds its settings as fields, and its name as the tag."""

    def problems(self, rig: Rig) -> Problems:
        """List what keeps the condition from a rig."""
        return iter(())

    def build(self, rig: Rig) -> BatchedTest:
        """The condition as a function of observations (..., n) in SI, as of ``Rig.signals``, to (...), without state.

        A function of numpy's alone, so that one observation has the same answer as many.
        """
        raise NotImplementedError

    def build_scalar(self, rig: Rig) -> ScalarTest:
        """The same for one observation (n,) as floats; by default by way of an array, in a few microseconds."""
        test = self.build(rig)
        return lambda observation: verdict(test(np.array(observation, np.float64)))


def verdict(answer: object) -> bool:
    """The answer of a condition; ValueError for one that is neither true nor false."""
    if isinstance(answer, np.ndarray) and answer.shape == ():
        answer = answer[()]
    if not isinstance(answer, bool | np.bool_):
        raise ValueError(f"expected true or false, got {answer!r}")
    return bool(answer)


class Outside(Termination, frozen=True, forbid_unknown_fields=True, tag="outside"):
    """Ends where an observation leaves [low, high]; a NaN ends as well."""

    observation: str
    """Of the rig, by name."""
    low: Quantity
    """In the unit of the observation."""
    high: Quantity
    """In the unit of the observation."""

    def problems(self, rig: Rig) -> Problems:
        """A missing observation, or an empty range."""
        yield from missing("observation", self.observation, rig)
        if not self.low < self.high:
            yield "", f"needs low < high, got {self.low} and {self.high}"

    def build(self, rig: Rig) -> BatchedTest:
        """The comparison."""
        at, low, high = observation_index(rig)[self.observation], self.low, self.high
        return lambda observations: ~((low <= observations[..., at]) & (observations[..., at] <= high))

    def build_scalar(self, rig: Rig) -> ScalarTest:
        """The comparison of floats."""
        at, low, high = observation_index(rig)[self.observation], self.low, self.high
        return lambda observation: not low <= observation[at] <= high


if TYPE_CHECKING:
    AnyTermination = Termination
else:
    AnyTermination = Annotated[Any, registered(registry.TERMINATIONS)]
Terminations = Mapping[str, Termination] | msgspec.UnsetType
"""By the names that the task gives them."""
