"""What policies see of a rig: all of its observations, or values composed of them, present and past.

The one definition for the tick, trials and environments.  Shield, reward and reset see the rig's observations as ever,
and so do the records, which hold both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import MAX_OBSERVATIONS, Observation, Rig

MOST_LAG: Final = 15
_ANGLE: Final = "rad"

Form = Literal["value", "cos", "sin"]


class PolicyInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One component of what policies see."""

    observation: str
    """Of the rig, by name; ``previous_NAME`` for a command in force, where the rig adds them."""
    form: Form = "value"
    """``cos`` and ``sin`` are for angles."""
    lag: Annotated[int, msgspec.Meta(ge=0, le=MOST_LAG)] = 0
    """Frames ago; an episode's first frame stands for those before it."""


Inputs = Sequence[PolicyInput] | msgspec.UnsetType


def policy_signals(inputs: Inputs, rig: Rig) -> tuple[Observation, ...]:
    """Components of the policy's input, in order; [low, high] maps onto [-1, 1].

    Expects inputs without :func:`input_problems`.
    """
    if inputs is msgspec.UNSET:
        return rig.signals
    of = {o.name: o for o in rig.signals}
    return tuple(_signal(term, of[term.observation]) for term in inputs if term.observation in of)


def _signal(term: PolicyInput, of: Observation) -> Observation:
    ago = f"-{term.lag}" if term.lag else ""
    if term.form == "value":
        return Observation(f"{of.name}{ago}", of.unit, of.low, of.high)
    return Observation(f"{term.form}_{of.name}{ago}", "1", -1.0, 1.0)


class Composition:
    """Policy inputs from the rig's observations."""

    def __init__(self, inputs: Sequence[PolicyInput], rig: Rig) -> None:
        at = {o.name: i for i, o in enumerate(rig.signals)}
        self._ones: Final = tuple((term.lag, at[term.observation], _ONE[term.form]) for term in inputs)
        self._many: Final = tuple((term.lag, at[term.observation], _MANY[term.form]) for term in inputs)
        self.reach: Final = max(term.lag for term in inputs)
        """Observations before the present one that are needed."""

    def __call__(self, seen: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """Compose the inputs (k,) of observations (n,) in SI, the present one first.

        Where there are fewer than ``reach`` before it, the last one stands for those that are missing.
        """
        oldest = len(seen) - 1
        return tuple([form(seen[lag if lag < oldest else oldest][i]) for lag, i, form in self._ones])

    def of_many(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compose many at once: (r, ..., n), the present ones first, to inputs (..., k); equal but for rounding."""
        oldest = len(seen) - 1
        return np.stack([form(seen[min(lag, oldest)][..., i]) for lag, i, form in self._many], axis=-1)


_ONE: Final[dict[Form, Any]] = {"value": float, "cos": math.cos, "sin": math.sin}
_MANY: Final[dict[Form, Any]] = {"value": np.asarray, "cos": np.cos, "sin": np.sin}


def composition_of(inputs: Inputs, rig: Rig) -> Composition | None:
    """Return how policy inputs are composed; None where they are the rig's observations."""
    return None if inputs is msgspec.UNSET else Composition(inputs, rig)


def input_problems(inputs: Inputs, rig: Rig) -> list[tuple[str, str]]:
    """List problems of a task's inputs on a rig as (path, message) pairs; empty if valid."""
    if inputs is msgspec.UNSET:
        return []
    if not 0 < len(inputs) <= MAX_OBSERVATIONS:
        return [
            ("inputs", f"expected 1 to {MAX_OBSERVATIONS}, got {len(inputs)}; leave it out to see all observations")
        ]
    units = {o.name: o.unit for o in rig.signals}
    problems = []
    for i, term in enumerate(inputs):
        unit = units.get(term.observation)
        if unit is None:
            there = ", ".join(units)
            message = f"rig '{rig.name}' has no observation '{term.observation}' (there are: {there})"
            problems.append((f"inputs[{i}].observation", message))
        elif term.form != "value" and unit != _ANGLE:
            message = f"expected 'value', '{term.observation}' is not an angle in {_ANGLE} but in {unit}"
            problems.append((f"inputs[{i}].form", message))
        elif term in inputs[:i]:
            problems.append((f"inputs[{i}]", "is there twice"))
    return problems
