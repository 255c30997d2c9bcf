"""Plant interface: dynamics, parameters, and optional data for safety tests and drawings.

A plant is one file of this package: a frozen struct that derives from :class:`Plant`.  Its fields are its parameters,
in YAML under ``device.twin.plant``; each has a unit and bounds.  A field may hold an array over trials, so that one
step advances many different plants (:meth:`Plant.varied`).  Only ``state_names``, ``n_actions`` and ``derivative`` are
required; the shield's test campaigns and the plots use the other members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
from msgspec import inspect

from onrig.hw.bounds import NotNegative, Positive, Seconds
from onrig.hw.rig import Rig
from onrig.runtime.safety.plant_box import PlantBox, PredictionContext, Sketch
from onrig.runtime.safety.rules import Ranges
from onrig.sim.plants.excitation import Excitation, chirps
from onrig.sim.plants.integrate import Array, Maths, V, rk4

Command = tuple[float, ...]
Law = Callable[[Sequence[float]], Command]
"""A policy, which maps a state (n,) in SI units, in the rig's order, to a command (m,)."""
Box = TypeVar("Box")


def unit(name: str) -> msgspec.Meta:
    """Return the annotation that gives a parameter's unit, next to its bounds."""
    return msgspec.Meta(extra={"unit": name})


class Parameter(NamedTuple):
    """One parameter of a plant."""

    name: str
    unit: str
    low: float
    high: float
    value: float | Array


class Adversaries(NamedTuple):
    """Adversarial policies for testing the shield on a plant."""

    push: Law
    """Policy that always commands what adds the most energy at the moment."""
    aim: Law
    """Policy for the rig's task that ignores limits."""


class Curve(NamedTuple):
    """A curve in the plot of a safe set."""

    x: Array
    y: Array
    label: str
    colour: str
    dashes: str
    """matplotlib line style; empty for points."""


class SafeSet(NamedTuple):
    """A safe set in the plane of position and velocity."""

    position: Array
    low: Array
    high: Array
    label: str
    curves: tuple[Curve, ...]
    axes: dict[str, Any]
    """Limits and labels."""


class Stroke(NamedTuple):
    """White line with round ends in a camera's image; x points right, y up."""

    start: tuple[float, float]
    end: tuple[float, float]
    width: float


class Plant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", kw_only=True):
    """Dynamics x' = f(x, u) of states x (the last one a velocity) under a held action u, and their imperfections.

    The imperfections are off by default and then cost nothing.  An action passes through delay, backlash, dead band and
    saturation in this order.  Sensor errors belong to the twin (``sensor_zero``, ``sensor_noise``), quantisation of
    sensors and actuators to the rig (``resolution``).
    """

    dry_friction: Annotated[NotNegative, unit("unit/s^2")] | msgspec.UnsetType = msgspec.UNSET
    """Deceleration by dry friction; it stops the velocity within an integration step but does not reverse it."""
    dead_band: Annotated[NotNegative, unit("unit of the action")] | msgspec.UnsetType = msgspec.UNSET
    """Largest action without effect; of a larger one, only the excess acts."""
    delay_s: Annotated[Seconds, unit("s")] | msgspec.UnsetType = msgspec.UNSET
    """Delay from an actuator's output to its effect; invisible to the device."""
    backlash: Annotated[NotNegative, unit("unit of the action")] | msgspec.UnsetType = msgspec.UNSET
    """Play between an actuator and the plant: after a reversal, an action takes effect once it has changed by this
    width."""
    saturation: Annotated[Positive, unit("unit of the action")] | msgspec.UnsetType = msgspec.UNSET
    """Largest effective action, such as a torque limit; larger ones are clipped to it."""

    separable: ClassVar[tuple[str, ...]] = ()
    """Fields that are identifiable in addition to the lumped parameters (``onrig identify``)."""
    batched: ClassVar[bool] = True
    """Whether a step of many plants takes little longer than a step of one."""
    file_field: ClassVar[str] = ""
    """Field with the path of a file, relative to the configuration.  Such a plant also has a field ``sha256``, which is
    set to the file's digest when a configuration is read; the digest does not cover files that this file includes."""
    template: ClassVar[str] = ""
    """Folder next to the plant's module that ``onrig init`` copies (docs/extending.md); if unset, ``onrig init``
    generates files from names, ``units`` and ``spans``."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the states."""
        raise NotImplementedError

    @property
    def n_actions(self) -> int:
        """Number of actuators."""
        raise NotImplementedError

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names that the rig's actuators must have, in this order; empty if any names are allowed."""
        return ()

    @property
    def units(self) -> Mapping[str, str]:
        """Units of states and actions, by name; missing ones are left to the rig's owner."""
        return {}

    @property
    def spans(self) -> Mapping[str, tuple[float, float]]:
        """Lowest and highest value of states and actions that the plant itself limits, by name."""
        return {}

    @property
    def velocities_at(self) -> tuple[int, ...]:
        """Indices of the states that are velocities, to which dry friction applies; by default the last one."""
        return (len(self.state_names) - 1,)

    @property
    def velocities(self) -> tuple[str, ...]:
        """Names of the states that are velocities."""
        return tuple(self.state_names[index] for index in self.velocities_at)

    def integrate(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...], h: V | float) -> tuple[V, ...]:
        """Return the state after ``h`` seconds: one Runge-Kutta step, or a step of the plant's own solver."""
        return rk4(xp, self, state, action, h)

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Return the time derivative of the state."""
        raise NotImplementedError

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Wrap angles and apply walls, at a sample."""
        return state

    def moves_freely(self, state: tuple[Array, ...]) -> Array | bool:
        """Whether a state is clear of walls."""
        return True

    def released(self, friction_share: float | Array = 1.0) -> Self:
        """Return the plant with its actuators disconnected, and with this share of its remaining friction.

        Such a plant ignores actions.  By default, return the plant itself, which is then driven with the action 0.
        """
        return self

    # -- parameters ----------------------------------------------------------------------------------------------------

    def parameters(self) -> list[Parameter]:
        """List the parameters that are set."""
        return [
            Parameter(name, unit_, low, high, value)
            for name, (unit_, low, high) in declared_parameters(type(self)).items()
            if (value := self.number(name)) is not msgspec.UNSET
        ]

    def number(self, name: str) -> Any:
        """Return a parameter's value as a number (or array), with presets resolved."""
        return getattr(self, name)

    def varied(self, values: Mapping[str, float | Array]) -> Self:
        """Return a copy with different parameters, each a number or an array over trials.

        Raises ValueError if a value is out of bounds and KeyError for an unknown name.
        """
        declared = declared_parameters(type(self))
        for name, value in values.items():
            _, low, high = declared[name]
            if not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
                raise ValueError(f"{name}: expected {low:g} to {high:g}, got {value}")
        return msgspec.structs.replace(self, **values)

    # -- safety and identification -------------------------------------------------------------------------------------

    def box_deviations(self, box: PlantBox, rig: Rig) -> Iterator[str]:
        """Describe where parameters other than the lumped ones differ from a box's plants."""
        yield from ()

    @property
    def lumped(self) -> dict[str, Any]:
        """Lumped parameters, by their names in ``limits.predicted``."""
        return {}

    def with_lumped(self, values: Mapping[str, float | Array]) -> Self:
        """Return a copy with different lumped parameters, each a number or an array over trials."""
        raise _missing_family_error(self)

    @property
    def identifiable(self) -> dict[str, Any]:
        """Identifiable parameters: the lumped ones and the fields in ``separable``.

        If a plant defines neither, these are all fields with unit and bounds, up to 12; identification determines which
        of them the signals can distinguish.
        """
        fields: tuple[str, ...] = self.separable
        if not fields and not self.lumped:
            fields = tuple(n for n in declared_parameters(type(self)) if n not in declared_parameters(Plant))
        return {**self.lumped, **{name: self.number(name) for name in fields}}

    def with_identifiable(self, values: Mapping[str, float | Array]) -> Self:
        """Return a copy with different identifiable parameters and imperfections.

        Each value is a number or an array over trials.
        """
        lumped = {name: values[name] for name in self.lumped}
        other_values = {name: value for name, value in values.items() if name not in lumped}
        return (self.with_lumped(lumped) if lumped else self).varied(other_values)

    def excitations(self, rig: Rig, ranges: Ranges) -> list[Excitation]:
        """Return excitations for identification, the gentlest first; by default chirps of each actuator in turn."""
        return chirps(rig, ranges, chirp_s=12.0, rest_s=4.0)

    def brief_excitations(self, rig: Rig, ranges: Ranges) -> list[Excitation]:
        """Return excitations for an experiment that may end early (`onrig identify --until`), the gentlest first.

        By default short chirps, or the plant's own `excitations` if it defines any.
        """
        has_own_excitations = type(self).excitations is not Plant.excitations
        return self.excitations(rig, ranges) if has_own_excitations else chirps(rig, ranges, chirp_s=4.0, rest_s=0.5)

    @classmethod
    def of_box(cls, box: PlantBox, rig: Rig) -> Self:
        """Return the nominal plant of a box.  Raises ValueError if the box belongs to a different family."""
        raise _missing_family_error(cls)

    @classmethod
    def adversaries(cls, box: PlantBox, rig: Rig, ranges: Ranges) -> Adversaries:
        """Return adversarial policies for testing the shield."""
        raise _missing_family_error(cls)

    @classmethod
    def safe_states(
        cls, box: PlantBox, context: PredictionContext, n: int, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        """Draw n positions, and the lowest and highest safe velocity at each."""
        raise _missing_family_error(cls)

    @classmethod
    def safe_set(cls, box: PlantBox, context: PredictionContext) -> SafeSet:
        """Return the plot of the safe set."""
        raise _missing_family_error(cls)

    def strokes(self, state: tuple[float, ...]) -> tuple[Stroke, ...] | None:
        """Return what a camera of the twin sees at a state (SI units), within [-1, 1] x [-1, 1]; None if nothing."""
        return None

    def sketch(self, rig: Rig) -> Sketch | None:
        """Return drawing instructions with the rig's signal names; None to draw bars, or if the rig does not match."""
        return None


def wrapped(xp: Maths[V], angle: V) -> V:
    """Wrap an angle (rad) into [-pi, pi)."""
    wrapped_angle = (angle + math.pi) % (2.0 * math.pi) - math.pi
    # The remainder of a tiny negative number rounds up to a full turn.
    return xp.where(wrapped_angle < math.pi, wrapped_angle, -math.pi)


def narrow_box(box: PlantBox, family: type[Box]) -> Box:
    """Return the box if it belongs to a family.  Raises ValueError otherwise."""
    if not isinstance(box, family):
        raise ValueError("limits.predicted and the plant are of different kinds")
    return box


def _missing_family_error(plant: object) -> ValueError:
    kind = plant if isinstance(plant, type) else type(plant)
    return ValueError(f"{kind.__name__} does not define the members required to test a shield")


@lru_cache(maxsize=64)
def declared_parameters(plant: type[Plant]) -> dict[str, tuple[str, float, float]]:
    """Return the unit and bounds of each numeric field, by name."""
    type_info = inspect.type_info(plant)
    assert isinstance(type_info, inspect.StructType)
    parameters = {}
    for field in type_info.fields:
        for type_, extra in _flatten_type(field.type, {}):
            if isinstance(type_, inspect.FloatType):
                low = -np.inf if type_.ge is None else type_.ge
                high = np.inf if type_.le is None else type_.le
                parameters[field.name] = (str(extra.get("unit", "")), float(low), float(high))
    return parameters


def _flatten_type(type_: inspect.Type, extra: dict[str, Any]) -> Iterator[tuple[inspect.Type, dict[str, Any]]]:
    if isinstance(type_, inspect.Metadata):
        yield from _flatten_type(type_.type, {**extra, **(type_.extra or {})})
    elif isinstance(type_, inspect.UnionType):
        for member in type_.types:
            yield from _flatten_type(member, extra)
    else:
        yield type_, extra
