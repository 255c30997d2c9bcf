"""Forms of what policies see of an observation: descriptions, chosen by ``kind``.

The tick composes them at every frame.  One in Python from outside runs there under a guard
(``onrig.runtime.guard``).
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

One = Callable[[Sequence[float]], float]
Many = Callable[[Values], Values]


class InputTransform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Description of a form; a subclass adds its settings as fields, and its name as the tag."""

    def problems(self, of: Observation) -> Problems:
        """List what keeps the form from an observation."""
        return iter(())

    def signal(self, of: Observation) -> Observation:
        """Name, unit and range of the result; [low, high] maps onto [-1, 1]."""
        raise NotImplementedError

    def build(self, at: int, rig: Rig) -> Many:
        """The form as a function of observations (..., n) in SI, as of ``rig.signals``, to (...), without state.

        ``at`` is the index of the observation that it is of.  A function of numpy's alone, so that one observation has
        the same result as many.
        """
        raise NotImplementedError

    def build_scalar(self, at: int, rig: Rig) -> One:
        """The same for one observation (n,) as floats; by default by way of an array, in a few microseconds."""
        form = self.build(at, rig)
        return lambda observation: float(form(np.array(observation, np.float64)))


class Value(InputTransform, frozen=True, forbid_unknown_fields=True, tag="value"):
    """The observation itself."""

    def signal(self, of: Observation) -> Observation:
        """That of the observation."""
        return Observation(of.name, of.unit, of.low, of.high)

    def build(self, at: int, rig: Rig) -> Many:
        """The column."""
        return lambda observations: observations[..., at]

    def build_scalar(self, at: int, rig: Rig) -> One:
        """The value."""
        return lambda observation: float(observation[at])


class _OfAngle(InputTransform, frozen=True, forbid_unknown_fields=True):
    def problems(self, of: Observation) -> Problems:
        if of.unit != _ANGLE:
            yield "", f"expected 'value', '{of.name}' is not an angle in {_ANGLE} but in {of.unit}"

    def signal(self, of: Observation) -> Observation:
        return Observation(f"{self.__struct_config__.tag}_{of.name}", "1", -1.0, 1.0)


class Cosine(_OfAngle, frozen=True, forbid_unknown_fields=True, tag="cos"):
    """Cosine of an angle."""

    def build(self, at: int, rig: Rig) -> Many:
        """numpy's, which may differ from the scalar one by rounding."""
        return lambda observations: np.asarray(np.cos(observations[..., at]))

    def build_scalar(self, at: int, rig: Rig) -> One:
        """That of ``math``."""
        return lambda observation: math.cos(observation[at])


class Sine(_OfAngle, frozen=True, forbid_unknown_fields=True, tag="sin"):
    """Sine of an angle."""

    def build(self, at: int, rig: Rig) -> Many:
        """numpy's, which may differ from the scalar one by rounding."""
        return lambda observations: np.asarray(np.sin(observations[..., at]))

    def build_scalar(self, at: int, rig: Rig) -> One:
        """That of ``math``."""
        return lambda observation: math.sin(observation[at])


if TYPE_CHECKING:
    AnyForm = str | InputTransform
else:
    AnyForm = str | Annotated[Any, registered(registry.INPUT_TRANSFORMS)]
"""A form, or its name where its settings are the defaults."""
