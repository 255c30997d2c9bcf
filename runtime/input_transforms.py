"""Input transforms: functions of one observation that a policy receives, chosen by ``kind``.

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

_ANGLE: Final = "rad"

ScalarFunction = Callable[[Sequence[float]], float]
BatchFunction = Callable[[Values], Values]


class InputTransform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of input transforms; a subclass declares its settings as fields and its name as the tag."""

    def problems(self, of: Observation) -> Problems:
        """List the reasons why the transform cannot be applied to an observation."""
        return iter(())

    def signal(self, of: Observation) -> Observation:
        """Return name, unit and range of the result; [low, high] maps to [-1, 1]."""
        raise NotImplementedError

    def build(self, at: int, rig: Rig) -> BatchFunction:
        """Build the stateless function from observations (..., n) in SI units, in the order of ``rig.signals``, to
        (...).

        ``at`` is the index of its observation. It must use numpy throughout, so that single and batched results are
        equal.
        """
        raise NotImplementedError

    def build_scalar(self, at: int, rig: Rig) -> ScalarFunction:
        """Build the function for one observation (n,) of floats; by default through an array, which takes a few µs."""
        form = self.build(at, rig)
        return lambda observation: float(form(np.array(observation, np.float64)))


class Value(InputTransform, frozen=True, forbid_unknown_fields=True, tag="value"):
    """Identity: the observation itself."""

    def signal(self, of: Observation) -> Observation:
        """Return the observation's signal."""
        return Observation(of.name, of.unit, of.low, of.high)

    def build(self, at: int, rig: Rig) -> BatchFunction:
        """Select the column."""
        return lambda observations: observations[..., at]

    def build_scalar(self, at: int, rig: Rig) -> ScalarFunction:
        """Select the value."""
        return lambda observation: float(observation[at])


class _OfAngle(InputTransform, frozen=True, forbid_unknown_fields=True):
    def problems(self, of: Observation) -> Problems:
        if of.unit != _ANGLE:
            yield "", f"expected 'value', because '{of.name}' is not an angle in {_ANGLE} but in {of.unit}"

    def signal(self, of: Observation) -> Observation:
        return Observation(f"{self.__struct_config__.tag}_{of.name}", "1", -1.0, 1.0)


class Cosine(_OfAngle, frozen=True, forbid_unknown_fields=True, tag="cos"):
    """Cosine of an angle."""

    def build(self, at: int, rig: Rig) -> BatchFunction:
        """Use numpy, whose result may differ from ``math`` by rounding."""
        return lambda observations: np.asarray(np.cos(observations[..., at]))

    def build_scalar(self, at: int, rig: Rig) -> ScalarFunction:
        """Use ``math``."""
        return lambda observation: math.cos(observation[at])


class Sine(_OfAngle, frozen=True, forbid_unknown_fields=True, tag="sin"):
    """Sine of an angle."""

    def build(self, at: int, rig: Rig) -> BatchFunction:
        """Use numpy, whose result may differ from ``math`` by rounding."""
        return lambda observations: np.asarray(np.sin(observations[..., at]))

    def build_scalar(self, at: int, rig: Rig) -> ScalarFunction:
        """Use ``math``."""
        return lambda observation: math.sin(observation[at])


if TYPE_CHECKING:
    AnyForm = str | InputTransform
else:
    AnyForm = str | Annotated[Any, registered(registry.INPUT_TRANSFORMS)]
"""A transform, or its name if all settings are defaults."""
