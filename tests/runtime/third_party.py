"""Pieces of a task as provided by another package, valid and broken ones."""

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


def apply_defect(defect: str, values: Values) -> Any:
    """A result for (..., n) values, or an exception."""
    match defect:
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


class DefectiveTerm(RewardTerm, frozen=True, tag="term"):
    defect: str = ""

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        return lambda transitions: apply_defect(self.defect, transitions.observation)


class DefectiveTarget(Target, frozen=True, tag="course"):
    defect: str = ""

    def span(self) -> tuple[float, float]:
        return -1.0, 1.0

    def draw(self, times: Values, rng: np.random.Generator) -> Values:
        if self.defect == "shape":
            return times[1:]
        if self.defect == "beyond":
            return times + 2.0
        values: Values = apply_defect(self.defect, times[:, None])
        return values


class DefectiveTermination(Termination, frozen=True, tag="condition"):
    defect: str = ""

    def build(self, rig: Rig) -> BatchedTest:
        if self.defect:
            return lambda observations: apply_defect(self.defect, observations)
        return lambda observations: observations[..., 0] > 2.0


class DefectiveTransform(InputTransform, frozen=True, tag="form"):
    defect: str = ""

    def signal(self, observation: Observation) -> Observation:
        return Observation(f"form_{observation.name}", observation.unit, -1.0, 1.0)

    def build(self, index: int, rig: Rig) -> BatchFunction:
        return lambda observations: apply_defect(self.defect, observations)


class DefectiveDrive:
    """Applies the action of ``defect`` to every observation."""

    opposed: float | None = None

    def __init__(self, reset: DefectiveReset, start: Mapping[str, float], rig: Rig) -> None:
        self._how = reset.defect

    def begin(self, attempt: int) -> None:
        pass

    def drive(self, observation: Sequence[float], elapsed_s: float) -> tuple[float, ...]:
        return {"": (0.5,), "infinite": (math.inf,), "whole": (0.0, 0.0)}[self._how]


class DefectiveReset(Reset, frozen=True, kw_only=True, tag="home"):
    home = ":DefectiveDrive"
    defect: str = ""


def draw_steps(noise: DefectiveNoise, rng: np.random.Generator, steps: int, dimensions: int) -> npt.NDArray[np.float64]:
    if noise.defect == "random":
        return np.random.default_rng().random((steps, dimensions))
    return (
        np.zeros((steps, dimensions + (noise.defect == "whole"))) if noise.defect else rng.random((steps, dimensions))
    )


class DefectiveNoise(ActionNoise, frozen=True, kw_only=True, tag="noise"):
    title = "noise from outside"
    home = ":draw_steps"
    defect: str = ""
