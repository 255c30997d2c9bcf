"""Options of a twin, in YAML ``device: {twin: ...}``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Quantity
from onrig.hw.rig import Rig
from onrig.runtime.config.problem import describe_unknown_name
from onrig.runtime.config.registered import WithRegistered
from onrig.runtime.random_streams import plant_stream
from onrig.runtime.safety.plant_box import PlantBox, error_bound, evaluated_observations
from onrig.runtime.starts import Start
from onrig.sim.plants.integrate import SUBSTEPS
from onrig.sim.plants.registry import AnyPlant
from onrig.sim.twin.faults import FaultPlan

DRAWN_BOOT_ID: Final = 1
"""Placeholder for a boot id that is drawn at start; a fixed number, because the digest of a resolved configuration,
which identifies the run, must not depend on the draw."""
ZERO_PREFIX: Final = "zero_"
"""Name prefix of a sensor's zero among parameters: its reading at state 0."""
NOISE_PREFIX: Final = "noise_"
"""Name prefix of a sensor's noise among parameters, in the unit of ``sensor_noise``."""


class TwinOptions(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Physics, imperfections and limits of a simulated device."""

    plant: AnyPlant
    """Physics, by its ``kind``."""
    substeps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = SUBSTEPS
    """Runge-Kutta steps per period."""
    sensor_noise: NotNegative | dict[str, NotNegative] = 0.0
    """Standard deviation per normalised unit of the observation derived from the sensor (de Bruin et al. 2018, eq. 1),
    for all sensors or by name; sensors without an entry have no noise."""
    sensor_zero: dict[str, Quantity] | msgspec.UnsetType = msgspec.UNSET
    """Reading of each sensor at the plant's zero (SI units), if not 0."""
    actuator_noise: NotNegative = 0.0
    """Standard deviation per normalised unit of the actuator (eq. 2); invisible to the device."""
    samples: dict[str, Annotated[tuple[Quantity, ...], msgspec.Meta(min_length=1)]] | msgspec.UnsetType = msgspec.UNSET
    """Joint samples of the plant's identifiable parameters and imperfections, and of ``zero_SENSOR`` and
    ``noise_SENSOR``, by name; each reset draws one sample, which replaces the values above (`onrig pretrain`)."""
    latency_us: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    """Device time from decoding a command to its effect, which occurs at the next sample at the latest."""
    boot_id: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = DRAWN_BOOT_ID
    """Boot id of the twin; 1, the default, draws a new one at each start."""
    period_min_us: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)] = 100
    """Shortest sampling period offered in the hello."""
    period_max_us: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)] = 1_000_000
    """Longest sampling period offered in the hello."""
    lease_max: Annotated[int, msgspec.Meta(ge=1, le=255)] = 255
    """Longest lease offered in the hello, in periods."""
    reset: bool = True
    """Whether the hello advertises RESET; real hardware does not, and needs a reset controller."""
    line: Literal["pty", "socket"] = "pty"
    """Transport to the host.  A pty passes through the kernel's tty layer and its worker, like a serial port; a Unix
    socket does not, which isolates the loop's own timing.
    """
    trace: bool = False
    """Whether to record in the run's shared memory when each frame was due and sent, for `onrig bench loop`; in real or
    scaled time."""
    faults: FaultPlan = FaultPlan()

    def noise_of(self, sensor: str) -> float:
        """Return the standard deviation of a sensor's noise in normalised units."""
        noise = self.sensor_noise
        return noise.get(sensor, 0.0) if isinstance(noise, dict) else noise

    def noise(self, rig: Rig) -> list[float]:
        """Return standard deviations of the noise on a rig's observations, then its actions, in normalised units."""
        return [
            *[self.noise_of(o.sensor or o.name) for o in rig.observations],
            *[self.actuator_noise] * len(rig.actuators),
        ]


def draw_options(options: TwinOptions, reset_seed: int) -> TwinOptions:
    """Return the options of the episode whose reset has this seed (``onrig.runtime.random_streams.device_seed``)."""
    if options.samples is msgspec.UNSET:
        return options
    n = len(next(iter(options.samples.values())))
    return sampled_options(options, int(plant_stream(reset_seed).integers(n)))


def sampled_options(options: TwinOptions, index: int) -> TwinOptions:
    """Return the options with the values of one sample applied and ``samples`` unset.

    Raises ValueError if a value is out of bounds, KeyError for an unknown or missing parameter.
    """
    values = {name: column[index] for name, column in (options.samples or {}).items()}
    zeros, noise = (
        {n.removeprefix(p): v for n, v in values.items() if n.startswith(p)} for p in (ZERO_PREFIX, NOISE_PREFIX)
    )
    physical_values = {
        name: value for name, value in values.items() if not name.startswith((ZERO_PREFIX, NOISE_PREFIX))
    }
    return msgspec.structs.replace(
        options,
        plant=options.plant.with_identifiable(physical_values),
        sensor_zero={**(options.sensor_zero or {}), **zeros} or msgspec.UNSET,
        sensor_noise={**options.sensor_noise, **noise}
        if isinstance(options.sensor_noise, dict)
        else noise or options.sensor_noise,
        samples=msgspec.UNSET,
    )


def _sample_problems(options: TwinOptions, sensors: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield problems that prevent a twin from drawing its samples."""
    samples = options.samples or {}
    if len({len(column) for column in samples.values()}) > 1:
        yield "samples", "expected the same number of values for each parameter, because they are drawn together"
        return
    for name in samples:
        sensor = name.removeprefix(ZERO_PREFIX).removeprefix(NOISE_PREFIX)
        if sensor != name and sensor not in sensors:
            yield f"samples.{name}", describe_unknown_name("the rig", "sensor", sensor, sensors)
    for name in options.plant.lumped:
        if samples and name not in samples:
            yield "samples", f"no values of {name}, which is drawn together with the others"
            return
    for index in range(len(next(iter(samples.values()), ()))):
        try:
            sampled_options(options, index)
        except KeyError as error:
            yield "samples", f"the plant has no parameter {error}"
            return
        except ValueError as error:
            yield "samples", str(error)
            return


def twin_problems(options: TwinOptions, rig: Rig, start: Start) -> list[tuple[str, str]]:
    """List problems that prevent a twin from simulating a rig, as (path under ``twin``, message) pairs."""
    plant = options.plant
    problems = [
        (
            "plant.kind",
            f"{describe_unknown_name('the plant', 'state', s.name, plant.state_names)}, which the rig measures",
        )
        for s in rig.sensors
        if s.name not in plant.state_names
    ]
    if len(rig.actuators) != plant.n_actions:
        problems.append(
            ("plant.kind", f"the plant takes {plant.n_actions} actions, but the rig has {len(rig.actuators)} actuators")
        )
    actuator_names = tuple(a.name for a in rig.actuators)
    if plant.action_names and len(actuator_names) == plant.n_actions and actuator_names != plant.action_names:
        order = ", ".join(plant.action_names)
        problems.append(
            ("plant.kind", f"the plant's actions are {order}, but the rig's actuators are {', '.join(actuator_names)}")
        )
    for name in plant.state_names:
        if name not in start:
            problems.append(("plant.kind", f"task.start has no value for the plant's state '{name}'"))
    for name in start:
        if name not in plant.state_names:
            description = describe_unknown_name("the plant", "state", name, plant.state_names)
            problems.append(("plant.kind", f"{description}, which task.start names"))
    sensor_names = [s.name for s in rig.sensors]
    noise = {
        "sensor_noise": [options.noise_of(name) for name in sensor_names],
        "actuator_noise": [options.actuator_noise],
    }
    problems += [(f, "must be a finite number") for f, sigmas in noise.items() if not all(map(math.isfinite, sigmas))]
    problems.extend(
        ("sensor_noise", f"no observation gives the range of sensor '{s.name}' that the noise is relative to")
        for s in rig.sensors
        if options.noise_of(s.name) > 0 and sensor_half_range(rig, s.name) is None
    )
    sensor_noise = options.sensor_noise if isinstance(options.sensor_noise, dict) else {}
    problems += [
        (f"{field}.{name}", describe_unknown_name(f"rig '{rig.name}'", "sensor", name, sensor_names))
        for field, names in (("sensor_noise", sensor_noise), ("sensor_zero", options.sensor_zero or {}))
        for name in names
        if name not in sensor_names
    ]
    if options.period_min_us > options.period_max_us:
        problems.append(("period_min_us", "must not exceed period_max_us"))
    problems += _sample_problems(options, sensor_names)
    return problems


def exact_problems(options: TwinOptions) -> list[str]:
    """Return the reasons why the next state cannot be computed from this twin's sensors; empty if it can."""
    if options.samples is not msgspec.UNSET:
        return ["each episode has a different plant (device.twin.samples)"]
    return ["a sensor has an offset (sensor_zero) and does not read the plant's state"] if options.sensor_zero else []


def uncovered_zeros(options: TwinOptions, rig: Rig, box: PlantBox) -> Iterator[str]:
    """Yield a message for each sensor whose error exceeds the shield's bound."""
    zeros = options.sensor_zero or {}
    for o in rig.observations:
        sensor = next((s for s in rig.sensors if s.name == (o.sensor or o.name) and o.derivative_of is None), None)
        if sensor is None or not zeros.get(sensor.name) or o.name not in evaluated_observations(box, rig):
            continue
        error = abs(zeros[sensor.name]) + 0.5 * sensor.resolution
        if error > error_bound(box, rig, o.name):
            yield f"the twin's {o.name} is up to {error:.3g} {o.unit} off, which sensor_error does not cover"


def uncovered_latency(options: TwinOptions, box: PlantBox) -> Iterator[str]:
    """Yield a message if the device acts later than the shield covers, although its plant alone would not."""
    delay_us = (options.plant.delay_s or 0.0) * 1e6
    if delay_us <= box.late_us < delay_us + options.latency_us:
        yield (
            f"the twin acts {delay_us + options.latency_us:g} us late, but the shield covers {box.late_us} us (late_us)"
        )


def twin_advice(options: TwinOptions, max_command: float, period_us: int) -> Iterator[tuple[str, str]]:
    """Yield (path under ``twin``, message) for imperfections that are possible but more often a mistake.

    ``max_command``: largest command of any actuator, in its unit.
    """
    if options.latency_us > period_us:
        message = f"a command acts within one period at the latest ({period_us} us): set longer delays in the plant"
        yield "latency_us", f"{message} (plant.delay_s)"
    if (options.plant.dead_band or 0.0) >= max_command:
        yield "plant.dead_band", f"no command moves this plant, since the largest is {max_command:g}: reduce dead_band"


def sensor_half_range(rig: Rig, sensor: str) -> float | None:
    """Return the SI value of one normalised unit of a sensor: half the range of the observation derived directly from
    it; None without such an observation."""
    for o in rig.observations:
        if o.derivative_of is None and (o.sensor or o.name) == sensor:
            return 0.5 * (o.high - o.low)
    return None
