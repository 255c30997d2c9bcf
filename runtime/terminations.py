"""Conditions that end an episode, in addition to the bounds of ``task.terminate``, chosen by ``kind``.

The tick evaluates them at every frame, since the end of an episode stops the actuators. Foreign ones in Python run
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
    """Base of terminations; a subclass has its settings as fields and its name as the tag."""

    def problems(self, rig: Rig) -> Problems:
        """List the reasons why the condition cannot be used on a rig."""
        return iter(())

    def build(self, rig: Rig) -> BatchedTest:
        """Build the stateless function from observations (..., n) in SI, in the order of ``Rig.signals``, to (...).

        It must use numpy throughout, so that single and batched results are equal.
        """
        raise NotImplementedError

    def build_scalar(self, rig: Rig) -> ScalarTest:
        """Build the function for one observation (n,) of floats; by default via an array, which takes a few µs."""
        test = self.build(rig)
        return lambda observation: verdict(test(np.array(observation, np.float64)))


def verdict(answer: object) -> bool:
    """Convert a condition's answer to bool; ValueError if it is neither true nor false."""
    if isinstance(answer, np.ndarray) and answer.shape == ():
        answer = answer[()]
    if not isinstance(answer, bool | np.bool_):
        raise ValueError(f"expected true or false, got {answer!r}")
    return bool(answer)


class Outside(Termination, frozen=True, forbid_unknown_fields=True, tag="outside"):
    """End of the episode when an observation leaves [low, high] or is NaN."""

    observation: str
    """Name of an observation of the rig."""
    low: Quantity
    """Bound in the observation's unit."""
    high: Quantity
    """Bound in the observation's unit."""

    def problems(self, rig: Rig) -> Problems:
        """Report a missing observation, or an empty range."""
        yield from missing("observation", self.observation, rig)
        if not self.low < self.high:
            yield "", f"needs low < high, got {self.low} and {self.high}"

    def build(self, rig: Rig) -> BatchedTest:
        """Compare arrays."""
        at, low, high = observation_index(rig)[self.observation], self.low, self.high
        return lambda observations: ~((low <= observations[..., at]) & (observations[..., at] <= high))

    def build_scalar(self, rig: Rig) -> ScalarTest:
        """Compare floats."""
        at, low, high = observation_index(rig)[self.observation], self.low, self.high
        return lambda observation: not low <= observation[at] <= high


if TYPE_CHECKING:
    AnyTermination = Termination
else:
    AnyTermination = Annotated[Any, registered(registry.TERMINATIONS)]
Terminations = Mapping[str, Termination] | msgspec.UnsetType
"""Terminations by their names in the task."""
