"""Warnings about a valid configuration: magnitudes and delays that are possible but usually a mistake."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from onrig.hw.framing import encode_frame
from onrig.hw.messages import CommandLayout, StateLayout
from onrig.hw.rig import targets_of
from onrig.hw.roles import measured_range, observation_of, velocity_lag_s
from onrig.runtime.config.problem import Finding, NodePath, format_path, parse_path
from onrig.runtime.reset.schema import Draw
from onrig.runtime.safety.fallback import Damp
from onrig.runtime.safety.magman import MagmanBox
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.runtime.safety.plant_box import covers_all, dead_band_of
from onrig.runtime.safety.plausibility import guarded_observations
from onrig.runtime.starts import extreme_starts
from onrig.runtime.tracking import followers

if TYPE_CHECKING:
    from onrig.runtime.run_config import RunConfig

_MIN_COUNTS: Final = 50
"""Number of counts in an observation's range below which its unit or resolution is probably wrong."""
_MAX_ANGLE_RANGE: Final = 4.0 * math.pi
_MIN_ENVELOPE_FRACTION: Final = 0.01
"""Share of an observation's range below which its envelope is probably wrong."""
_MIN_FULL_EFFORT_COUNTS: Final = 4
_MAX_USUAL_LEASE_S: Final = 1.0
_USUAL_LEASE_PERIODS: Final = 5
_MAX_ACCELERATION_RATIO: Final = 50.0
"""Ratio between two accelerations of a plant above which a unit is probably wrong."""
_MIN_SPREAD: Final = 0.01
_MAX_MODEL_DEVIATION: Final = 0.3
"""Relative deviation of a coil's model that a reset tolerates."""
_MIN_DELAY_PERIODS: Final = 0.5
"""Delay, in periods, at or above which policies need the command in force as an input."""


def probable_mistakes(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for probable mistakes in a valid configuration."""
    findings = [
        *_scale_findings(config),
        *_fallback_findings(config),
        *_delay_findings(config),
        *_value_findings(config),
        *_model_findings(config),
        *_update_findings(config),
    ]
    yield from ((path, f"{message}, at {format_path(path)}") for path, message in findings)


def _update_findings(config: RunConfig) -> Iterator[Finding]:
    """Report a fixed number of updates after episodes that may end after a few experiences."""
    updates = config.learner.get("updates_per_episode")
    if not config.task.may_terminate or not isinstance(updates, int):
        return
    message = f"{updates} updates also follow an episode that ends early, and overfit to its few experiences"
    yield ("learner", "updates_per_episode"), f"{message}: set updates_per_transition and learning_starts instead"


def unobserved_delay(config: RunConfig, delay_s: float) -> str | None:
    """Return a message about a delay from sample to effect that policies cannot observe; None if it is short or
    observed."""
    inputs = config.task.inputs
    if inputs is msgspec.UNSET:
        is_observed = config.rig.previous_command
    else:
        is_observed = any(term.observation.startswith("previous_") for term in inputs)
    if is_observed or delay_s * config.rate_hz < _MIN_DELAY_PERIODS:
        return None
    delay = f"{delay_s * 1e3:.3g} ms of a period of {1e3 / config.rate_hz:.3g} ms"
    remedies = "set rig.previous_command: true (and name it in task.inputs), or lower rate_hz"
    return f"commands act up to {delay} after their sample, but the command in force is not a policy input: {remedies}"


def _scale_findings(config: RunConfig) -> Iterator[Finding]:
    rig = config.rig
    for i, o in enumerate(rig.observations):
        sensor = next(s for s in rig.sensors if s.name == (o.derivative_of or o.sensor or o.name))
        if o.derivative_of is None and (o.high - o.low) / sensor.resolution < _MIN_COUNTS:
            counts = f"{(o.high - o.low) / sensor.resolution:.2g} counts of {sensor.resolution:g} {sensor.unit}"
            yield ("rig", "observations", i), f"the range of '{o.name}' is only {counts}: check units and resolution"
        if o.derivative_of is None and sensor.wrap and o.high - o.low > _MAX_ANGLE_RANGE:
            one_turn = f"one turn, {_MAX_ANGLE_RANGE / 2:.3g} rad"
            message = f"'{o.name}' is wrapped into {one_turn}, but has a range of {o.high - o.low:g}"
            yield ("rig", "observations", i), f"{message}: check its unit"
        e = config.limits.envelope.get(o.name)
        if e is not None and e.high - e.low < _MIN_ENVELOPE_FRACTION * (o.high - o.low):
            message = f"less than {_MIN_ENVELOPE_FRACTION:.0%} of the range of '{o.name}': check units and ranges"
            yield ("limits", "envelope", o.name), message


def _fallback_findings(config: RunConfig) -> Iterator[Finding]:
    limits, rig, fallback = config.limits, config.rig, config.limits.fallback
    if not isinstance(fallback, Damp) or (o := observation_of(rig, fallback.observation)) is None:
        return
    node_path, e = ("limits", "fallback", "full_at"), limits.envelope.get(o.name)
    edge = None if e is None else min(abs(e.low), abs(e.high))
    if edge and fallback.full_at > edge:
        yield (
            node_path,
            f"at the envelope's edge of {edge:g} {o.unit} the fallback brakes with only {edge / fallback.full_at:.0%} "
            "of full effort",
        )
    count = next(s.resolution for s in rig.sensors if s.name == (o.derivative_of or o.sensor or o.name))
    count /= config.period_us * 1e-6 if o.derivative_of is not None else 1.0
    if fallback.full_at < _MIN_FULL_EFFORT_COUNTS * count:
        yield (
            node_path,
            f"the fallback brakes with full effort from {fallback.full_at:g} on, but one count is {count:.2g} {o.unit}",
        )


def _delay_findings(config: RunConfig) -> Iterator[Finding]:
    limits, rig, box = config.limits, config.rig, config.limits.predicted
    period_s = config.period_us * 1e-6
    lease_s = rig.lease_periods * period_s
    if lease_s > _MAX_USUAL_LEASE_S and rig.lease_periods > _USUAL_LEASE_PERIODS:
        message = f"the device holds the last command of a dead host for {lease_s:g} s: use fewer periods"
        yield ("rig", "lease_periods"), message
    for name in guarded_observations(limits.context(rig, period_s), box):
        if (lag := velocity_lag_s(rig, name, period_s)) > lease_s:
            i = next(i for i, o in enumerate(rig.observations) if o.name == name)
            message = f"the shield uses '{name}' with a delay of {lag:.2g} s, longer than the lease of {lease_s:.2g} s"
            yield ("rig", "observations", i, "cutoff_hz"), f"{message}: filter less"
    if box is None:
        return
    late_path: NodePath = ("limits", "predicted", "late_us")
    if message_of_delay := unobserved_delay(config, box.late_us * 1e-6):
        yield late_path, message_of_delay
    on_wire_us = _wire_us(config)
    if on_wire_us > box.late_us:
        description = (
            f"a state and a command take {on_wire_us:.0f} us on this connection, but the shield covers {box.late_us} us"
        )
        yield late_path, f"{description}: increase it, or the baud rate (device.port.baud)"


def _wire_us(config: RunConfig) -> float:
    """Return how long a state frame and its command take on a UART, in us; 0 if no baud rate determines this."""
    line, rig = config.device.line, config.rig
    if line is None or config.device.pace != "realtime" or "ttyACM" in os.path.realpath(line.address):
        return 0.0
    bodies = StateLayout(len(rig.sensors), len(rig.actuators)).size, CommandLayout(len(rig.actuators)).size
    return line.duration_us([len(encode_frame(bytes(size))) for size in bodies])


def _value_findings(config: RunConfig) -> Iterator[Finding]:
    task, rig = config.task, config.rig
    starts = [(("task", *parse_path(path)), start) for path, start in extreme_starts(task.all_starts)]
    values_by_path = [*starts, (("task", "reward", "target"), task.reward.target)]
    values = [((*path, name), name, value) for path, values in values_by_path for name, value in values.items()]
    for name, observation in followers(task).items():
        ends = [end for o in targets_of(rig) if o.name == name for end in (o.low, o.high)]
        values += [(("task", "targets", name), observation, end) for end in ends]
    for path, name, value in dict.fromkeys(values):
        o = observation_of(rig, name)
        if o is None:
            continue
        low, high = measured_range(rig, o)
        if not low <= value <= high:
            message = f"{value:g} {o.unit} lies outside the readings of '{name}', {low:g} to {high:g}"
            yield path, f"{message}: check its unit"


def _model_findings(config: RunConfig) -> Iterator[Finding]:
    box, path = config.limits.predicted, ("limits", "predicted")
    if box is None:
        return
    context = config.limits.context(config.rig, config.period_us * 1e-6)
    largest = max(max(map(abs, context.ranges[name])) for name in getattr(box, "actuators", context.ranges))
    if dead_band_of(box) >= largest:
        message = f"no command is certain to take effect: the largest is {largest:g}"
        yield (*path, "dead_band"), message
    if box.spread < _MIN_SPREAD and not covers_all(box):
        yield (
            (*path, "spread"),
            f"a plant is rarely known to within {box.spread:.2%}: {_MIN_SPREAD:.0%} or more is usual",
        )
    if isinstance(box, PendulumBox):
        motor, gravity = box.gain_per_v_s2 * largest, box.gravity_per_s2
        if gravity > 0 and not 1.0 / _MAX_ACCELERATION_RATIO < motor / gravity < _MAX_ACCELERATION_RATIO:
            message = f"{largest:g} V accelerate by {motor:.3g} rad/s^2, gravity by {gravity:.3g}: check their units"
            yield (*path, "gain_per_v_s2"), message
    reset = config.task.reset
    if isinstance(box, MagmanBox) and isinstance(reset, Draw):
        pairs = ("strength", reset.strength, box.pull_m6_per_a2_s2), ("reach", reset.reach, box.c2_m2)
        for field, configured, assumed in pairs:
            if abs(configured / assumed - 1.0) > _MAX_MODEL_DEVIATION:
                message = f"is {configured:g}, but limits.predicted has {assumed:g} for the same coils"
                yield ("task", "reset", field), message
