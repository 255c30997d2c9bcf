"""Plant boxes: the interface through which the shield predicts the effect of a command on a family of plants.

Each family is one file of this package (``pendulum``, ``magman``), which contains the schema of ``limits.predicted``,
its checks, and the prediction.  It is registered under its kind (``onrig.runtime.registry``) as a msgspec struct
(frozen, ``tag_field="kind"``) with the members of :class:`PlantBox`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from onrig.hw.rig import Rig
from onrig.runtime.config.problem import Finding, describe_unknown_name
from onrig.runtime.safety.fallback import Fallback
from onrig.runtime.safety.rules import Envelope, Ranges

Sketch = dict[str, object]
"""Drawing of a rig: its registered ``kind`` (``onrig.runtime.view.drawing``) and its fields."""

MAX_DELAY_PERIODS: Final = 2
"""Maximum delay between the device's output and its effect on the plant, in periods."""
MAX_PLAUSIBLE: Final = 1e6
"""Largest plausible reading, in any unit; NaN and infinity fail the comparison with it as well."""
MAX_MAGNETS: Final = 4


class PredictionContext(NamedTuple):
    """Everything that a prediction depends on apart from the plants."""

    rig: Rig
    period_s: float
    ranges: Ranges
    """Range of each actuator's commands."""
    envelope: Mapping[str, Envelope]
    fallback: Fallback


class Units(NamedTuple):
    """Units of a family's equations; the unit of the velocity is that of the position per second."""

    place: str
    actuator: str


class Prediction(Protocol):
    """Prediction for a family of plants."""

    def evaluate(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        """Return (excess, margin) for a command (m,) in a state (n,), both in SI units, over one period and in case the
        host is then lost.

        excess: how far the worst plant would exceed the limit, in normalised units of the velocity; the command may be
        sent if it is 0.  margin: 1 far inside the limit, 0 if the command is refused.
        """


class PlantBox(Protocol):
    """All plants of a family whose lumped parameters lie within ``spread`` of the nominal ones."""

    varying: ClassVar[frozenset[str]]
    """Parameters that may change while the plant moves; the others are constant, but may be anywhere in the box.

    A family may have further members.  If it covers actuators with a dead band, the field ``dead_band`` is the largest
    dead band (unset: none).  If it covers a delay between the device's output and its effect, the field
    ``plant_delay_us`` is the longest delay (unset: none).  ``apart`` maps the names of parameters other than the lumped
    ones to the names of the fields with their nominal value and spread.  Three members extend the checks of a
    configuration: ``units`` (:class:`Units`), ``actuators`` (the names of the covered actuators), and
    ``max_acceleration(context)``, which returns the largest acceleration of any plant within the envelope.  ``promise``
    (``onrig.runtime.safety.promise.Basis``) is the basis of the prediction; without it, a rig's promise remains
    *measured*.  If ``covers_all`` is true, every envelope is guaranteed, and every observation is evaluated.
    """

    @property
    def place(self) -> str:
        """Observation of the position or angle."""

    @property
    def velocity(self) -> str:
        """Observation of the rate of ``place``, whose envelope the shield guarantees."""

    @property
    def spread(self) -> float:
        """Largest relative deviation of each lumped parameter."""

    @property
    def late_us(self) -> int:
        """Longest time from a sample to the effect of its command in ordinary operation; the lease is added to it."""

    @property
    def sensor_error(self) -> Mapping[str, float]:
        """Bound on each observation's error in its unit; default: half a count of its sensor."""

    @property
    def nominal(self) -> dict[str, float]:
        """Lumped parameters by name."""

    def findings(self, context: PredictionContext) -> Iterator[Finding]:
        """List the problems that prevent a prediction, with their paths under ``limits``."""

    def prediction(self, context: PredictionContext) -> Prediction:
        """Build the prediction; raises ValueError if no guarantee is possible."""

    def sketch(self) -> Sketch:
        """Return the drawing of these plants."""


def box_name(box: PlantBox) -> str:
    """Return the name that messages use for a family of plants."""
    return f"the plant box '{type(box).__struct_config__.tag}'"  # type: ignore[attr-defined]


def dead_band_of(box: PlantBox) -> float:
    """Return the largest dead band of the actuators (in their unit) that the family covers; 0 if it covers none."""
    return float(getattr(box, "dead_band", None) or 0.0)


def plant_delay_s_of(box: PlantBox) -> float:
    """Return the longest delay (s) from the device's output to its effect that the family covers; 0 if it covers
    none."""
    return 1e-6 * float(getattr(box, "plant_delay_us", None) or 0)


def separate_parameter_fields(box: PlantBox) -> Mapping[str, tuple[str, str]]:
    """Return, for each parameter that is not lumped, the names of the fields with its nominal value and relative
    spread."""
    fields: Mapping[str, tuple[str, str]] = getattr(box, "apart", {})
    return fields


def separate_parameters(box: PlantBox) -> dict[str, tuple[float, float]]:
    """Return, for each parameter that is not lumped, its nominal value and its relative spread."""
    fields = separate_parameter_fields(box).items()
    return {name: (float(getattr(box, value)), float(getattr(box, spread) or 0.0)) for name, (value, spread) in fields}


def guaranteed_observations(box: PlantBox, envelope: Mapping[str, Envelope]) -> tuple[str, ...]:
    """Return the names of the observations whose envelopes a prediction guarantees."""
    return tuple(envelope) if covers_all(box) else (box.velocity,)


def evaluated_observations(box: PlantBox, rig: Rig) -> tuple[str, ...]:
    """Return the names of the observations that a prediction evaluates."""
    return tuple(o.name for o in rig.observations) if covers_all(box) else (box.place, box.velocity)


def covers_all(box: PlantBox) -> bool:
    """Return whether a prediction covers every envelope and evaluates every observation."""
    return bool(getattr(box, "covers_all", False))


def units_of(box: PlantBox) -> Units | None:
    """Return the units of a family; None if it does not define them."""
    return getattr(box, "units", None)


def actuators_of(box: PlantBox) -> tuple[str, ...]:
    """Return the names of the actuators that a prediction covers; empty if the family does not define them."""
    return tuple(getattr(box, "actuators", ()))


def max_acceleration_of(box: PlantBox, context: PredictionContext) -> float | None:
    """Return the largest acceleration of any plant within the envelope; None if the family does not define it."""
    bound = getattr(box, "max_acceleration", None)
    return None if bound is None else float(bound(context))


def error_bound(box: PlantBox, rig: Rig, name: str) -> float:
    """Return the bound on an observation's error: as configured, otherwise half a count of its sensor.

    Raises KeyError for an estimated velocity without a configured bound.
    """
    if name in box.sensor_error:
        return box.sensor_error[name]
    observation = next(o for o in rig.observations if o.name == name)
    if observation.derivative_of is not None:
        raise KeyError(name)
    return 0.5 * next(s.resolution for s in rig.sensors if s.name == (observation.sensor or name))


def common_findings(box: PlantBox, context: PredictionContext, position_field: str) -> Iterator[Finding]:
    """List the problems in the members that all families have; ``position_field``: name of the family's field for the
    position."""
    rig, place, velocity = context.rig, box.place, box.velocity
    period_us = round(context.period_s * 1e6)
    for field, name in ((position_field, place), ("velocity", velocity)):
        if message := unknown_name_message(rig, "observation", name):
            yield ("predicted", field), message
    if not 0 <= box.spread < 1:
        yield ("predicted", "spread"), f"expected 0 to less than 1, got {box.spread:g}"
    delay_us = round(1e6 * plant_delay_s_of(box))
    if not 0 <= delay_us <= MAX_DELAY_PERIODS * period_us:
        limit = f"{MAX_DELAY_PERIODS} periods ({MAX_DELAY_PERIODS * period_us} us)"
        yield ("predicted", "plant_delay_us"), f"expected 0 to {limit}, got {delay_us}"
    elif not delay_us <= box.late_us <= period_us + delay_us:
        bounds = f"{delay_us} to {period_us + delay_us} us, the plant's delay and a period"
        if not delay_us:
            bounds = f"0 to one period ({period_us} us)"
        yield ("predicted", "late_us"), f"expected {bounds}, got {box.late_us}"
    for name in box.sensor_error:
        if name not in (place, velocity):
            yield ("predicted", "sensor_error", name), f"expected an error bound for {place} or {velocity}"
    for o in rig.observations:
        if o.name in (place, velocity) and o.derivative_of is not None and o.name not in box.sensor_error:
            yield ("predicted",), f"'{o.name}' is estimated from differences: give its bound in sensor_error"
    envelope = context.envelope.get(velocity)
    if envelope is None or not envelope.low < 0 < envelope.high:
        yield ("predicted",), f"expected an envelope of '{velocity}' that contains 0 (limits.envelope)"


def unknown_name_message(rig: Rig, kind: str, name: str) -> str | None:
    """Return a message if the rig has no actuator or observation (``kind``) of this name; None if it has."""
    names: Sequence[str] = [i.name for i in (rig.actuators if kind == "actuator" else rig.observations)]
    return None if name in names else describe_unknown_name(f"rig '{rig.name}'", kind, name, names)


def magnet_findings(rig: Rig, section: str, magnets: Mapping[str, float]) -> Iterator[Finding]:
    """List the problems in ``magnets``, which maps actuators to positions (m)."""
    for name, position in magnets.items():
        if message := unknown_name_message(rig, "actuator", name):
            yield (section, "magnets", name), message
        elif not math.isfinite(position):
            yield (section, "magnets", name), "expected a finite position"
    if not 1 <= len(magnets) <= MAX_MAGNETS or len(set(magnets.values())) < len(magnets):
        yield (section, "magnets"), f"expected 1 to {MAX_MAGNETS} magnets at different positions"
