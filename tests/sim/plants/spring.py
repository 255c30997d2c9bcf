"""A plant as provided by another package: a mass between springs, with everything that shield and pages need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, sqrt
from typing import Annotated, Any, ClassVar, Self

import msgspec
import numpy as np

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.rig import Rig
from onrig.runtime.config.problem import Finding
from onrig.runtime.safety.fallback import SafeOutput
from onrig.runtime.safety.plant_box import (
    MAX_PLAUSIBLE,
    PlantBox,
    Prediction,
    PredictionContext,
    Sketch,
    common_findings,
    error_bound,
)
from onrig.runtime.safety.rules import Ranges
from onrig.sim.plants.integrate import Array, Maths, V
from onrig.sim.plants.plant import Adversaries, Command, Plant, narrow_box, unit


class SpringBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="spring", tag_field="kind"):
    """Plants x'' = -k x - d x' + g u; each parameter within ``spread`` of the given one."""

    position: str
    velocity: str
    stiffness_per_s2: Positive
    damping_per_s: NotNegative
    gain_m_per_v_s2: Positive
    spread: Quantity = 0.2
    late_us: int = 1000
    sensor_error: dict[str, NotNegative] = {}

    # A spring with a time-varying stiffness would add energy.
    varying: ClassVar[frozenset[str]] = frozenset({"damping_per_s", "gain_m_per_v_s2"})

    @property
    def place(self) -> str:
        return self.position

    @property
    def nominal(self) -> dict[str, float]:
        return {
            "stiffness_per_s2": self.stiffness_per_s2,
            "damping_per_s": self.damping_per_s,
            "gain_m_per_v_s2": self.gain_m_per_v_s2,
        }

    def findings(self, context: PredictionContext) -> Iterator[Finding]:
        yield from common_findings(self, context, "position")
        if not isinstance(context.fallback, SafeOutput):
            yield ("predicted",), "expected the fallback 'safe'"

    def prediction(self, context: PredictionContext) -> Prediction:
        return SpringPrediction(self, context)

    def sketch(self) -> Sketch:
        return {"kind": "track", "position": self.position, "magnets": {}}


class SpringPrediction:
    """The speed permitted by the energy: sqrt(v^2 + k x^2) grows by at most g |u| per second."""

    def __init__(self, box: SpringBox, context: PredictionContext) -> None:
        names, rig = [o.name for o in context.rig.observations], context.rig
        self._position, self._velocity = names.index(box.position), names.index(box.velocity)
        envelope = context.envelope[box.velocity]
        self._fastest = min(-envelope.low, envelope.high)
        observed = rig.observations[self._velocity]
        self._per_unit = 2.0 / (observed.high - observed.low)
        self._stiffest = box.stiffness_per_s2 * (1.0 + box.spread)
        longest_s = (rig.lease_periods + 1) * context.period_s + box.late_us * 1e-6
        self._gained_per_v = box.gain_m_per_v_s2 * (1.0 + box.spread) * longest_s
        self._errors = error_bound(box, rig, box.position), error_bound(box, rig, box.velocity)

    def evaluate(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        x, v = abs(observation[self._position]), abs(observation[self._velocity])
        if not (x < MAX_PLAUSIBLE and v < MAX_PLAUSIBLE):
            return inf, 0.0
        x, v = x + self._errors[0], v + self._errors[1]
        reached = sqrt(v * v + self._stiffest * x * x) + self._gained_per_v * abs(action[0])
        if reached > self._fastest:
            return (reached - self._fastest) * self._per_unit, 0.0
        return 0.0, 1.0 - reached / self._fastest


class Spring(Plant, frozen=True, tag="spring"):
    """State (position in m, velocity in m/s), action (voltage,)."""

    stiffness: Annotated[Positive, unit("1/s^2")] = 40.0
    damping: Annotated[NotNegative, unit("1/s")] = 0.5
    gain: Annotated[Positive, unit("m/(V s^2)")] = 2.0

    state_names: ClassVar[tuple[str, ...]] = ("position", "velocity")

    @property
    def n_actions(self) -> int:
        return 1

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        x, v = state
        return (v, self.gain * action[0] - self.stiffness * x - self.damping * v)

    @property
    def lumped(self) -> dict[str, Any]:
        return {
            "stiffness_per_s2": self.stiffness,
            "damping_per_s": self.damping,
            "gain_m_per_v_s2": self.gain,
        }

    def with_lumped(self, values: Mapping[str, float | Array]) -> Self:
        stiffness, damping, gain = (values[name] for name in self.lumped)
        return self.varied({"stiffness": stiffness, "damping": damping, "gain": gain})

    @classmethod
    def of_box(cls, box: PlantBox, rig: Rig) -> Self:
        return cls().with_lumped(narrow_box(box, SpringBox).nominal)

    @classmethod
    def adversaries(cls, box: PlantBox, rig: Rig, ranges: Ranges) -> Adversaries:
        low, high = ranges[rig.actuators[0].name]
        velocity = [o.name for o in rig.observations].index(box.velocity)

        def push(observation: Sequence[float]) -> Command:
            return (high if observation[velocity] >= 0 else low,)

        return Adversaries(push, lambda observation: (0.5 * high,))

    @classmethod
    def safe_states(
        cls, box: PlantBox, context: PredictionContext, n: int, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        envelope = context.envelope[box.velocity]
        stiffest = narrow_box(box, SpringBox).stiffness_per_s2 * (1.0 + box.spread)
        share = rng.uniform(-1.0, 1.0, n)
        most = 0.98 * envelope.high * np.sqrt(1.0 - share**2)
        return 0.98 * envelope.high * share / np.sqrt(stiffest), -most, most
