"""What policies see of a rig: all of its observations, or values composed of them, present and past.

The one definition for the tick, trials and environments.  Shield, reward and reset see the rig's observations as ever,
and so do the records, which hold both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isfinite
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import MAX_OBSERVATIONS, Observation, Rig, is_word
from onrig.runtime import registry
from onrig.runtime.config.problem import blamed
from onrig.runtime.config.registered import WithRegistered, chosen
from onrig.runtime.input_transforms import AnyForm, InputTransform, One

MOST_LAG: Final = 15


class PolicyInput(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One component of what policies see."""

    observation: str
    """Of the rig, by name; ``previous_NAME`` for a command in force, where the rig adds them."""
    form: AnyForm = "value"
    """``value``, ``cos`` or ``sin`` (of angles), or a mapping with the ``kind`` of another."""
    lag: Annotated[int, msgspec.Meta(ge=0, le=MOST_LAG)] = 0
    """Frames ago; an episode's first frame stands for those before it."""

    def __post_init__(self) -> None:
        """Compare the form with the registry; raises ValueError."""
        if isinstance(self.form, str):
            transform = _named(self.form)
            if registry.is_foreign(transform):  # its settings are recorded, its defaults may change
                msgspec.structs.force_setattr(self, "form", transform)
        else:
            super().__post_init__()

    @property
    def transform(self) -> InputTransform:
        """Description of the form."""
        return _named(self.form) if isinstance(self.form, str) else self.form


def _named(form: str) -> InputTransform:
    """A form with its default settings; ValueError in the form of msgspec's errors."""
    try:
        transform: InputTransform = chosen(registry.INPUT_TRANSFORMS, {"kind": form}, "$.form")
    except ValueError as error:
        raise ValueError(str(error).replace("$.form.kind", "$.form")) from None
    return transform


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
    try:
        signal = term.transform.signal(of)
    except Exception:  # foreign code, whose error ``input_problems`` reports
        signal = of
    return msgspec.structs.replace(signal, name=f"{signal.name}-{term.lag}") if term.lag else signal


Watch = Callable[[str, One], One]
"""Puts a named form of foreign code under guard."""


class Composition:
    """Policy inputs from the rig's observations."""

    def __init__(self, inputs: Sequence[PolicyInput], rig: Rig, watch: Watch | None = None) -> None:
        """``watch`` wraps the forms that are another package's."""
        at = {o.name: i for i, o in enumerate(rig.signals)}
        self._ones: Final = tuple((term.lag, _one(term, at[term.observation], rig, watch)) for term in inputs)
        self._many: Final = tuple((term.lag, term.transform.build(at[term.observation], rig)) for term in inputs)
        self.reach: Final = max(term.lag for term in inputs)
        """Observations before the present one that are needed."""

    def __call__(self, seen: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """Compose the inputs (k,) of observations (n,) in SI, the present one first.

        Where there are fewer than ``reach`` before it, the last one stands for those that are missing.
        """
        oldest = len(seen) - 1
        return tuple([form(seen[lag if lag < oldest else oldest]) for lag, form in self._ones])

    def of_many(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compose many at once: (r, ..., n), the present ones first, to inputs (..., k); equal but for rounding."""
        oldest = len(seen) - 1
        return np.stack([form(seen[min(lag, oldest)]) for lag, form in self._many], axis=-1)


def _one(term: PolicyInput, at: int, rig: Rig, watch: Watch | None) -> One:
    form = term.transform.build_scalar(at, rig)
    if watch is None or not registry.is_foreign(term.transform):
        return form

    def checked(observation: Sequence[float]) -> float:
        value = form(observation)
        if not isfinite(value):
            raise ValueError(f"{value} of the observation {tuple(observation)}")
        return value

    return watch(f"the input '{term.transform.signal(rig.signals[at]).name}'", checked)


def composition_of(inputs: Inputs, rig: Rig, watch: Watch | None = None) -> Composition | None:
    """Return how policy inputs are composed; None where they are the rig's observations."""
    return None if inputs is msgspec.UNSET else Composition(inputs, rig, watch)


def input_problems(inputs: Inputs, rig: Rig) -> list[tuple[str, str]]:
    """List problems of a task's inputs on a rig as (path, message) pairs; empty if valid."""
    if inputs is msgspec.UNSET:
        return []
    if not 0 < len(inputs) <= MAX_OBSERVATIONS:
        return [
            ("inputs", f"expected 1 to {MAX_OBSERVATIONS}, got {len(inputs)}; leave it out to see all observations")
        ]
    of = {o.name: o for o in rig.signals}
    problems = []
    for i, term in enumerate(inputs):
        if term.observation not in of:
            there = ", ".join(of)
            message = f"rig '{rig.name}' has no observation '{term.observation}' (there are: {there})"
            problems.append((f"inputs[{i}].observation", message))
            continue
        at = f"inputs[{i}].form"
        transform, observation = term.transform, of[term.observation]
        found = blamed(partial(_form_problems, transform, observation), "the input")
        problems += [(f"{at}.{path}" if path else at, message) for path, message in found]
        if not found and term in inputs[:i]:
            problems.append((f"inputs[{i}]", "is there twice"))
    names = [s.name for s in policy_signals(inputs, rig)]
    if not problems and (twice := next((name for name in names if names.count(name) > 1), None)):
        problems.append(("inputs", f"two of them are called '{twice}': leave one out"))
    return problems


def _form_problems(transform: InputTransform, of: Observation) -> Iterator[tuple[str, str]]:
    yield from transform.problems(of)
    signal = transform.signal(of)
    if not is_word(signal.name):
        yield "", f"expected a plain word as the name of its result, got {signal.name!r}"
