"""Input transforms: functions of one observation whose results a policy receives, chosen by ``kind``.

The tick evaluates them at every frame; third-party transforms in Python run under a guard (``onrig.runtime.guard``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np

from onrig.hw.rig import Observation, Rig
from onrig.runtime import registry
from onrig.runtime.config.registered import registered
from onrig.runtime.rewards import Problems, Values

_ANGLE_UNIT: Final = "rad"

ScalarFunction = Callable[[Sequence[float]], float]
BatchFunction = Callable[[Values], Values]


class InputTransform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of input transforms; a subclass declares its settings as fields and its name as the tag."""

    def problems(self, observation: Observation) -> Problems:
        """List the reasons why the transform cannot be applied to an observation."""
        return iter(())

    def signal(self, observation: Observation) -> Observation:
        """Return the name, unit and range of the result; [low, high] maps to [-1, 1]."""
        raise NotImplementedError

    def build(self, index: int, rig: Rig) -> BatchFunction:
        """Build a stateless function that maps observations (..., n), in SI units and the order of ``rig.signals``, to
        results (...).

        ``index``: index of the transformed observation. The function must use numpy throughout, so that single and
        batched results are equal.
        """
        raise NotImplementedError

    def build_scalar(self, index: int, rig: Rig) -> ScalarFunction:
        """Build the function for one observation (n,) of floats; the default converts it to an array, which takes a few
        µs."""
        function = self.build(index, rig)
        return lambda observation: float(function(np.array(observation, np.float64)))


class Value(InputTransform, frozen=True, forbid_unknown_fields=True, tag="value"):
    """Identity: the observation itself."""

    def signal(self, observation: Observation) -> Observation:
        """Return the observation's signal."""
        return Observation(observation.name, observation.unit, observation.low, observation.high)

    def build(self, index: int, rig: Rig) -> BatchFunction:
        """Select the column."""
        return lambda observations: observations[..., index]

    def build_scalar(self, index: int, rig: Rig) -> ScalarFunction:
        """Select the value."""
        return lambda observation: float(observation[index])


class _AngleTransform(InputTransform, frozen=True, forbid_unknown_fields=True):
    def problems(self, observation: Observation) -> Problems:
        if observation.unit != _ANGLE_UNIT:
            yield (
                "",
                f"expected 'value', because '{observation.name}' is in {observation.unit}, "
                f"not an angle in {_ANGLE_UNIT}",
            )

    def signal(self, observation: Observation) -> Observation:
        return Observation(f"{self.__struct_config__.tag}_{observation.name}", "1", -1.0, 1.0)


class Cosine(_AngleTransform, frozen=True, forbid_unknown_fields=True, tag="cos"):
    """Cosine of an angle."""

    def build(self, index: int, rig: Rig) -> BatchFunction:
        """Use numpy, which may differ from ``math`` by rounding."""
        return lambda observations: np.asarray(np.cos(observations[..., index]))

    def build_scalar(self, index: int, rig: Rig) -> ScalarFunction:
        """Use ``math``."""
        return lambda observation: math.cos(observation[index])


class Sine(_AngleTransform, frozen=True, forbid_unknown_fields=True, tag="sin"):
    """Sine of an angle."""

    def build(self, index: int, rig: Rig) -> BatchFunction:
        """Use numpy, which may differ from ``math`` by rounding."""
        return lambda observations: np.asarray(np.sin(observations[..., index]))

    def build_scalar(self, index: int, rig: Rig) -> ScalarFunction:
        """Use ``math``."""
        return lambda observation: math.sin(observation[index])


if TYPE_CHECKING:
    AnyTransform = str | InputTransform
else:
    AnyTransform = str | Annotated[Any, registered(registry.INPUT_TRANSFORMS)]
"""A transform, or just its name if all its settings have their default values."""
