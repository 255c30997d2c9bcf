"""Pieces of a task as another package brings them, sound and broken ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Observation, Rig
from onrig.runtime.explore.settings import ActionNoise
from onrig.runtime.input_transforms import BatchFunction, InputTransform
from onrig.runtime.reset.schema import Reset
from onrig.runtime.rewards import RewardTerm, Transitions, Values
from onrig.runtime.targets import Target
from onrig.runtime.terminations import BatchedTest, Termination


def broken(how: str, values: Values) -> Any:
    """A result for (..., n) values, or an exception."""
    match how:
        case "raises":
            return dict[str, Any]()["table"]
        case "infinite":
            return np.full(values.shape[:-1], math.inf)
        case "random":
            return random.random() * values[..., 0]
        case "whole":
            return values
        case "alone":
            return math.cos(values[0]) if values.ndim == 1 else np.cos(values[..., 0]) + 1e-15
        case "changes":
            values[...] = 0.0
    return np.sin(values[..., 0])


class Term(RewardTerm, frozen=True, tag="term"):
    how: str = ""

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        return lambda moves: broken(self.how, moves.observation)


class Course(Target, frozen=True, tag="course"):
    how: str = ""

    def span(self) -> tuple[float, float]:
        return -1.0, 1.0

    def draw(self, times: Values, rng: np.random.Generator) -> Values:
        if self.how == "shape":
            return times[1:]
        if self.how == "beyond":
            return times + 2.0
        found: Values = broken(self.how, times[:, None])
        return found


class Condition(Termination, frozen=True, tag="condition"):
    how: str = ""

    def build(self, rig: Rig) -> BatchedTest:
        if self.how:
            return lambda observations: broken(self.how, observations)
        return lambda observations: observations[..., 0] > 2.0


class Form(InputTransform, frozen=True, tag="form"):
    how: str = ""

    def signal(self, observation: Observation) -> Observation:
        return Observation(f"form_{observation.name}", observation.unit, -1.0, 1.0)

    def build(self, index: int, rig: Rig) -> BatchFunction:
        return lambda observations: broken(self.how, observations)


class Drive:
    """Brings the action of ``how`` to every observation."""

    opposed: float | None = None

    def __init__(self, reset: Home, start: Mapping[str, float], rig: Rig) -> None:
        self._how = reset.how

    def begin(self, attempt: int) -> None:
        pass

    def drive(self, observation: Sequence[float], elapsed_s: float) -> tuple[float, ...]:
        return {"": (0.5,), "infinite": (math.inf,), "whole": (0.0, 0.0)}[self._how]


class Home(Reset, frozen=True, kw_only=True, tag="home"):
    home = ":Drive"
    how: str = ""


def steps_of(noise: Noise, rng: np.random.Generator, steps: int, dimensions: int) -> npt.NDArray[np.float64]:
    if noise.how == "random":
        return np.random.default_rng().random((steps, dimensions))
    return np.zeros((steps, dimensions + (noise.how == "whole"))) if noise.how else rng.random((steps, dimensions))


class Noise(ActionNoise, frozen=True, kw_only=True, tag="noise"):
    title = "noise from outside"
    home = ":steps_of"
    how: str = ""
