"""Rig: sensors, actuators, their units and limits, and the policy's observations.

A rig contains neither physics (``onrig.sim.plants``) nor a purpose (``onrig.runtime.task``).  All values are in SI
units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from onrig.hw.bounds import SMALLEST, NotNegative, Positive, Quantity
from onrig.hw.messages import MAX_COUNT, MAX_STATE_COUNTS, NAME_BYTES, UNIT_BYTES
from onrig.hw.units import per_second, same_unit

PIXELS_PER_VALUE: Final = 3
PixelCount = Annotated[int, msgspec.Meta(ge=4, le=128)]
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_UNIT: Final = re.compile(r"[\w%°/^*·.() -]*")
MAX_OBSERVATIONS: Final = MAX_STATE_COUNTS


class Sensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured quantity as the device reports it: ``value = count * resolution``."""

    name: str
    """Name as reported by the device."""
    unit: str
    """SI unit, e.g. rad or m/s."""
    resolution: Positive
    """SI units per count on the wire; must equal the device's resolution."""
    wrap: bool = False
    """Whether the sensor measures an angle, which the host wraps into [-pi, pi)."""
    low: Quantity | msgspec.UnsetType = msgspec.UNSET
    """Smallest readable value, below which the sensor saturates; default: the low of observations derived from it."""
    high: Quantity | msgspec.UnsetType = msgspec.UNSET
    """Largest readable value; default: the high of observations derived from it."""


class Actuator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commanded quantity: ``value = count * resolution`` within [low, high]; ``safe`` is its safe value."""

    name: str
    """Name as reported by the device."""
    unit: str
    """SI unit, e.g. V or A^2."""
    resolution: Positive
    """SI units per count on the wire; must equal the device's."""
    low: Quantity
    """Smallest command."""
    high: Quantity
    """Largest command."""
    safe: Quantity = 0.0
    """Command at which the actuator does no harm."""

    @property
    def centre(self) -> float:
        """Middle of the range: normalised action 0."""
        return 0.5 * (self.low + self.high)

    @property
    def half_range(self) -> float:
        """Half of the range: normalised action 1 is ``centre + half_range``."""
        return 0.5 * (self.high - self.low)


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One component of the observation; [low, high] maps to [-1, 1] without clipping (as in de Bruin et al. 2018)."""

    name: str
    """Name of the component, and by default also of its sensor."""
    unit: str
    """SI unit."""
    low: Quantity
    """Value that is -1 when normalised."""
    high: Quantity
    """Value that is 1 when normalised."""
    sensor: str | None = None
    """Sensor that measures this component (default: the one with the same name)."""
    derivative_of: str | None = None
    """For a velocity without a sensor of its own: the sensor whose difference quotient estimates it."""
    cutoff_hz: NotNegative = 0.0
    """Cut-off frequency of the first-order low-pass on the difference quotient; 0: no filter."""


class Camera(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Camera next to the device, whose grey images bypass the device's connection (docs/cameras.md)."""

    name: str
    """Name of the camera among the policy inputs; must differ from the names of sensors and observations."""
    rows: PixelCount
    """Rows of an image."""
    columns: PixelCount
    """Columns of an image."""
    max_age_ms: Positive = 100.0
    """Age of the newest image, in device time, above which an episode ends with a fault."""

    @property
    def pixels(self) -> int:
        """Number of pixels of an image, one byte each."""
        return self.rows * self.columns

    @property
    def values(self) -> int:
        """Number of policy inputs that hold an image (``onrig.runtime.images``)."""
        return values_per_image(self.pixels)


class Rig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sensors, actuators and observations of one rig, in wire order, and the lease of its device."""

    name: str
    """Name of the rig; the device must report the same."""
    sensors: tuple[Sensor, ...]
    actuators: tuple[Actuator, ...]
    observations: tuple[Observation, ...]
    lease_periods: int = 5
    """Number of periods without a command after which the device switches to its safe output by itself."""
    safe_output: Literal["driven", "released"] = "driven"
    """Effect of the device's safe output while disarmed: actuators are driven to their safe values, or released (driver
    stages off: a motor coasts without braking).  The device must report the same."""
    previous_command: bool = False
    """Whether to append the command in force to the observation (for high rates, at which the delay matters)."""
    cameras: tuple[Camera, ...] | msgspec.UnsetType = msgspec.UNSET
    """Cameras next to the device; a task selects their images in ``inputs``."""

    @property
    def channels(self) -> tuple[Sensor | Actuator, ...]:
        """Sensors and actuators, in wire order."""
        return (*self.sensors, *self.actuators)

    @property
    def releases(self) -> bool:
        """Whether a disarmed device releases its actuators."""
        return self.safe_output == "released"

    @property
    def safe_counts(self) -> tuple[float, ...]:
        """Safe value of each actuator in counts, not rounded."""
        return tuple(a.safe / a.resolution for a in self.actuators)

    @property
    def signals(self) -> tuple[Observation, ...]:
        """Components of the policy's input, in order: observations, then the previous command if configured."""
        return self.observations + self._previous_commands()

    def _previous_commands(self) -> tuple[Observation, ...]:
        if not self.previous_command:
            return ()
        return tuple(
            Observation(name=f"previous_{a.name}", unit=a.unit, low=a.low, high=a.high) for a in self.actuators
        )

    def wraps(self, name: str) -> bool:
        """Whether an observation is an angle that the host wraps into [-pi, pi)."""
        sensors = {o.sensor or o.name for o in self.observations if o.name == name and o.derivative_of is None}
        return any(s.wrap and s.name in sensors for s in self.sensors)


class TrackingRig(Rig, frozen=True):
    """Rig with the targets of a task as additional signals for policies, rewards and records; not stored in files."""

    targets: tuple[Observation, ...] = ()
    """Name, unit and range of each target."""

    @property
    def signals(self) -> tuple[Observation, ...]:
        """Signals of the rig, then the targets."""
        return self.observations + self._previous_commands() + self.targets


def with_targets(rig: Rig, targets: tuple[Observation, ...]) -> Rig:
    """Return the rig with its targets replaced; without targets, a plain `Rig`."""
    values = {name: getattr(rig, name) for name in Rig.__struct_fields__}
    if targets:
        return TrackingRig(**values, targets=targets)
    return Rig(**values) if isinstance(rig, TrackingRig) else rig


def targets_of(rig: Rig) -> tuple[Observation, ...]:
    """Return the targets of a rig, which come last among its signals; empty for a plain `Rig`."""
    return rig.targets if isinstance(rig, TrackingRig) else ()


def values_per_image(pixels: int) -> int:
    """Return the number of policy inputs that hold an image."""
    return -(-pixels // PIXELS_PER_VALUE)


def cameras_of(rig: Rig) -> tuple[Camera, ...]:
    """Return the cameras of a rig."""
    return () if rig.cameras is msgspec.UNSET else rig.cameras


def is_valid_name(name: str) -> bool:
    """Whether a name is valid in files, columns, topics and terminals: ASCII letters, digits and ``_ . + -``."""
    return _NAME.fullmatch(name) is not None


def _text_problem(text: str, *, unit: bool = False) -> str:
    expected = "letters, digits and % ° / ^ * · . ( ) -" if unit else "a plain word of letters, digits and _ . + -"
    return f"expected {expected}, got {text!r}"


def rig_problems(rig: Rig) -> list[tuple[str, str]]:
    """List problems of a rig as (path, message) pairs; empty if valid."""
    channel_checks = (_name_problems, _channel_problems, _size_problems, _resolution_problems, _actuator_problems)
    signal_checks = (_observation_problems, _consistency_problems, _camera_problems)
    return [problems for check in (*channel_checks, *signal_checks) for problems in check(rig)]


def _name_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield problems with the rig's name and lease, missing channels and duplicate names."""
    if not (0 < len(rig.name.encode()) <= NAME_BYTES):
        yield "name", f"must be 1 to {NAME_BYTES} bytes, to fit into the device's hello"
    elif not is_valid_name(rig.name):
        yield "name", _text_problem(rig.name)
    if not rig.sensors or not rig.actuators or not rig.observations:
        yield "", "needs at least one sensor, one actuator and one observation"
    if not 1 <= rig.lease_periods <= 255:
        yield "lease_periods", "must be 1 to 255"
    for kind, items in (("sensors", rig.sensors), ("actuators", rig.actuators), ("observations", rig.observations)):
        names = [item.name for item in items]
        for i, name in enumerate(names):
            if name in names[:i]:
                yield f"{kind}[{i}].name", f"'{name}' is used twice: give distinct names"


def _channels(rig: Rig) -> dict[str, tuple[Sensor | Actuator, ...]]:
    return {"sensors": rig.sensors, "actuators": rig.actuators}


def _channel_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield problems with the channels' names and units."""
    for kind, devices in _channels(rig).items():
        for i, channel in enumerate(devices):
            for field, text, limit in (("name", channel.name, NAME_BYTES), ("unit", channel.unit, UNIT_BYTES)):
                if not (_NAME if field == "name" else _UNIT).fullmatch(text):
                    yield f"{kind}[{i}].{field}", _text_problem(text, unit=field == "unit")
                elif len(text.encode()) > limit:
                    yield f"{kind}[{i}].{field}", f"must be at most {limit} bytes, to fit into the device's description"


def _size_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield problems with the numbers of channels and observations."""
    if len(rig.sensors) + 2 * len(rig.actuators) > MAX_STATE_COUNTS:
        yield "", f"sensors plus twice the actuators must be at most {MAX_STATE_COUNTS}, to fit into a frame"
    if len(rig.observations) > MAX_OBSERVATIONS:
        yield "observations", f"at most {MAX_OBSERVATIONS}, got {len(rig.observations)}"


def _resolution_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    for kind, devices in _channels(rig).items():
        for i, channel in enumerate(devices):
            value = channel.resolution
            if not (math.isfinite(value) and value > 0):
                yield f"{kind}[{i}].resolution", "must be a positive number"
            elif isinstance(channel, Sensor) and channel.wrap and not 2 <= 2.0 * math.pi / value <= 2 * MAX_COUNT:
                message = f"one turn must be 2 to {2 * MAX_COUNT} counts; at {value} rad per count it has"
                yield f"{kind}[{i}].resolution", f"{message} {2.0 * math.pi / value:.3g}"


def _actuator_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield problems with the actuators' limits and safe values."""
    for i, a in enumerate(rig.actuators):
        if not (math.isfinite(a.low) and math.isfinite(a.high) and a.low < a.high):
            yield f"actuators[{i}]", f"needs low < high, got {a.low} and {a.high}"
        elif not a.low <= a.safe <= a.high:
            yield f"actuators[{i}].safe", f"{a.safe} lies outside [{a.low}, {a.high}]"
        elif a.resolution > 0 and a.high - a.low < a.resolution:
            yield f"actuators[{i}].resolution", f"{a.resolution} is coarser than the whole range"
        elif a.resolution > 0 and max(abs(a.low), abs(a.high)) / a.resolution > MAX_COUNT:
            yield f"actuators[{i}].resolution", f"{a.resolution} is too fine: the limits overflow 32 bits"


def _observation_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield problems with the observations' names, sources and limits."""
    sensors = {s.name for s in rig.sensors}
    for i, o in enumerate(rig.observations):
        for field, text in (("name", o.name), ("unit", o.unit)):
            if not (_NAME if field == "name" else _UNIT).fullmatch(text):
                yield f"observations[{i}].{field}", _text_problem(text, unit=field == "unit")
        source = o.derivative_of or o.sensor or o.name
        if source not in sensors:
            yield f"observations[{i}]", f"no sensor '{source}' (known: {', '.join(sorted(sensors))})"
        if not (math.isfinite(o.low) and math.isfinite(o.high) and o.low < o.high):
            yield f"observations[{i}]", f"needs low < high, got {o.low} and {o.high}"
        elif o.high - o.low < SMALLEST:
            yield f"observations[{i}]", f"low and high must be at least {SMALLEST:g} apart"
        if o.cutoff_hz < 0:
            yield f"observations[{i}].cutoff_hz", "must not be negative"


def _camera_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield camera names that are invalid or already used by a sensor, a signal or another camera."""
    names = [s.name for s in rig.sensors] + [o.name for o in rig.signals]
    for i, camera in enumerate(cameras_of(rig)):
        if not _NAME.fullmatch(camera.name):
            yield f"cameras[{i}].name", _text_problem(camera.name)
        elif camera.name in names:
            yield f"cameras[{i}].name", f"'{camera.name}' is used twice: give distinct names"
        names.append(camera.name)


def _consistency_problems(rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield invalid sensor ranges, and observations that contradict their sensors; units are never converted."""
    for i, s in enumerate(rig.sensors):
        if s.wrap and not same_unit(s.unit, "rad"):
            yield f"sensors[{i}].unit", f"a wrapped angle must be in rad, got {s.unit!r}: remove wrap"
        if (s.low is msgspec.UNSET) != (s.high is msgspec.UNSET):
            yield f"sensors[{i}]", "give both low and high, or neither"
        elif s.low is not msgspec.UNSET and s.high is not msgspec.UNSET:
            if not s.low < s.high:
                yield f"sensors[{i}]", f"needs low < high, got {s.low} and {s.high}"
            elif s.resolution > 0 and max(abs(s.low), abs(s.high)) / s.resolution > MAX_COUNT:
                yield f"sensors[{i}]", f"its readings overflow 32 bits: {s.low:g} to {s.high:g} {s.unit}"
    sensors = {s.name: s for s in rig.sensors}
    for i, o in enumerate(rig.observations):
        source = sensors.get(o.derivative_of or o.sensor or o.name)
        if source is None:
            continue
        unit = source.unit if o.derivative_of is None else per_second(source.unit)
        if not same_unit(o.unit, unit):
            quantity = f"sensor '{source.name}'" if o.derivative_of is None else f"the derivative of '{source.name}'"
            message = f"'{o.name}' is in {o.unit!r}, {quantity} is in {unit!r}, and units are never converted"
            yield f"observations[{i}].unit", f"{message}: use the same unit, or another sensor or derivative_of"
        if o.cutoff_hz > 0 and o.derivative_of is None:
            message = (
                "only an estimated velocity (derivative_of) is filtered, but this one is measured: remove cutoff_hz"
            )
            yield f"observations[{i}].cutoff_hz", message
