"""What is wrong with the section ``limits``: limits against each other, the rig and the plants they are meant for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onrig.hw.rig import rig_problems
from onrig.runtime.config.limits import Damp, Hold, MagmanPlants, PendulumPlants, Plants, SafeOutput
from onrig.runtime.config.problem import NodePath, format_path, suggestion
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.magman import MAX_MAGNETS, hold_problem, table_problem
from onrig.runtime.safety.pendulum import cases
from onrig.runtime.safety.phase_plane import NoSafeSet, feasible

Finding = tuple[NodePath, str]

_MAX_DWELL_S: Final = 3600.0
_MIN_RATE_HZ: Final = 0.1
_MAX_RATE_HZ: Final = 10_000.0
"""Rates beyond are a finding of their own (``onrig.runtime.run_checks``)."""
_MAX_DELAY_S: Final = 5.0
"""Longest lease for which a safe set is computed."""


def limit_findings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for each value that does not fit the others; rate and rig of the run must be sound."""
    alone = [*_actuator_findings(config), *_envelope_findings(config), *_fallback_findings(config)]
    for at, message in alone or _predicted_findings(config):
        path: NodePath = ("limits", *at)
        yield path, f"{message} at {format_path(path)}"


def _unknown(config: RunConfig, kind: str, name: str) -> str | None:
    """What to say of a name the rig does not have; None of one it has."""
    items: Sequence[str] = [i.name for i in (config.rig.actuators if kind == "actuator" else config.rig.observations)]
    if name in items:
        return None
    hint = suggestion(name, sorted(items))
    return f"rig '{config.rig.name}' has no {kind} '{name}'{f', {hint}' if hint else ''}"


def _actuator_findings(config: RunConfig) -> Iterator[Finding]:
    limits = config.limits
    actuators = {a.name: a for a in config.rig.actuators}
    for name, (low, high) in limits.range.items():
        at: NodePath = ("range", name)
        unknown = _unknown(config, "actuator", name)
        if unknown:
            yield at, unknown
            continue
        a = actuators[name]
        if not low < high:
            yield at, f"expected low < high, got [{low:g}, {high:g}]"
        elif low < a.low or high > a.high:
            yield at, f"[{low:g}, {high:g}] {a.unit} is wider than the rig's [{a.low:g}, {a.high:g}]"
        elif not low <= a.safe <= high:
            yield at, f"the safe output {a.safe:g} {a.unit} lies outside"
    yield from _change_findings(config, "rate", limits.rate_per_s, "s", 1)
    yield from _change_findings(config, "jerk", limits.jerk_per_s2, "s^2", 2)


def _change_findings(
    config: RunConfig, what: str, limits: Mapping[str, float], per: str, order: int
) -> Iterator[Finding]:
    actuators = {a.name: a for a in config.rig.actuators}
    field = "rate_per_s" if order == 1 else "jerk_per_s2"
    for name, value in limits.items():
        at: NodePath = (field, name)
        unknown = _unknown(config, "actuator", name)
        if unknown:
            yield at, unknown
            continue
        a = actuators[name]
        if not value > 0:
            yield at, f"expected a positive {what}, got {value:g}"
        elif config.rate_hz > 0 and value / config.rate_hz**order < a.resolution:
            yield (
                at,
                f"{value:g} {a.unit}/{per} at {config.rate_hz:g} Hz is less than one count ({a.resolution:g} {a.unit}) "
                "per period: it could never move",
            )


def _envelope_findings(config: RunConfig) -> Iterator[Finding]:
    for name, e in config.limits.envelope.items():
        unknown = _unknown(config, "observation", name)
        if unknown:
            yield ("envelope", name), unknown
        elif not e.low < e.high or not 0 < e.release <= 1:
            yield ("envelope", name), "expected low < high and 0 < release <= 1"


def _fallback_findings(config: RunConfig) -> Iterator[Finding]:
    limits = config.limits
    match limits.fallback:
        case Damp() as damp:
            yield from _names(config, "fallback", {"actuator": damp.actuator}, "actuator")
            yield from _names(config, "fallback", {"observation": damp.observation}, "observation")
            if not damp.full_at > 0:
                yield ("fallback", "full_at"), "expected a positive number"
        case Hold() as hold:
            seen = {"position": hold.position, "velocity": hold.velocity}
            yield from _names(config, "fallback", seen, "observation")
            yield from _magnet_findings(config, "fallback", hold.magnets)
            if not 0 < hold.slow <= hold.brake_below:
                yield ("fallback", "slow"), f"expected 0 < slow <= brake_below, got {hold.slow:g}, {hold.brake_below:g}"
    if not 0 <= limits.fallback_dwell_s <= _MAX_DWELL_S:
        yield ("fallback_dwell_s",), f"expected 0 to {_MAX_DWELL_S:g}"


def _names(config: RunConfig, section: str, names: Mapping[str, str], kind: str) -> Iterator[Finding]:
    for field, name in names.items():
        unknown = _unknown(config, kind, name)
        if unknown:
            yield (section, field), unknown


def _magnet_findings(config: RunConfig, section: str, magnets: Mapping[str, float]) -> Iterator[Finding]:
    for name, position in magnets.items():
        unknown = _unknown(config, "actuator", name)
        if unknown:
            yield (section, "magnets", name), unknown
        elif not math.isfinite(position):
            yield (section, "magnets", name), "expected a finite position"
    if not 1 <= len(magnets) <= MAX_MAGNETS or len(set(magnets.values())) < len(magnets):
        yield (section, "magnets"), f"expected 1 to {MAX_MAGNETS} magnets, each in a place of its own"


def _predicted_findings(config: RunConfig) -> Iterator[Finding]:
    """What keeps the prediction from promising anything; the rest of the section is sound."""
    plants = config.limits.predicted
    if plants is None or not _MIN_RATE_HZ <= config.rate_hz <= _MAX_RATE_HZ or rig_problems(config.rig):
        return
    found = [*_plants_findings(config, plants)]
    if found:
        yield from found
    elif isinstance(plants, PendulumPlants):
        yield from _pendulum_findings(config, plants)
    else:
        yield from _magman_findings(config, plants)


def _plants_findings(config: RunConfig, plants: Plants) -> Iterator[Finding]:
    section = "predicted"
    velocity, limits = plants.velocity, config.limits
    place = plants.angle if isinstance(plants, PendulumPlants) else plants.position
    fields = {"angle" if isinstance(plants, PendulumPlants) else "position": place, "velocity": velocity}
    yield from _names(config, section, fields, "observation")
    if isinstance(plants, PendulumPlants):
        yield from _names(config, section, {"actuator": plants.actuator}, "actuator")
        positive = {"gain_per_v_s2": plants.gain_per_v_s2}
        others = {"gravity_per_s2": plants.gravity_per_s2, "damping_per_s": plants.damping_per_s}
    else:
        yield from _magnet_findings(config, section, plants.magnets)
        positive = {"pull_m6_per_a2_s2": plants.pull_m6_per_a2_s2, "c2_m2": plants.c2_m2}
        others = {"friction_per_s": plants.friction_per_s}
    for field, value in positive.items():
        if not (value > 0 and math.isfinite(value)):
            yield (section, field), f"expected a positive number, got {value:g}"
    for field, value in others.items():
        if not (value >= 0 and math.isfinite(value)):
            yield (section, field), f"expected 0 or more, got {value:g}"
    if not 0 <= plants.spread < 1:
        yield (section, "spread"), f"expected 0 to less than 1, got {plants.spread:g}"
    if not 0 <= plants.late_us <= config.period_us:
        yield (section, "late_us"), f"expected 0 to one period ({config.period_us} us), got {plants.late_us}"
    for name, bound in plants.sensor_error.items():
        if name not in (place, velocity) or not (bound >= 0 and math.isfinite(bound)):
            yield (section, "sensor_error", name), f"expected 0 or more, of {place} or {velocity}"
    for o in config.rig.observations:
        if o.name in (place, velocity) and o.derivative_of is not None and o.name not in plants.sensor_error:
            yield (section,), f"'{o.name}' is estimated from differences: give its bound in sensor_error"
    envelope = limits.envelope.get(velocity)
    if envelope is None or not envelope.low < 0 < envelope.high:
        yield (section,), f"expected an envelope of '{velocity}' around 0 to keep (limits.envelope)"


def _pendulum_findings(config: RunConfig, plants: PendulumPlants) -> Iterator[Finding]:
    limits, fallback = config.limits, config.limits.fallback
    named = (plants.actuator, plants.velocity)
    if not isinstance(fallback, Damp) or (fallback.actuator, fallback.observation) != named:
        yield ("predicted",), f"expected the fallback to damp {plants.velocity} with {plants.actuator}"
        return
    delay_s = (config.rig.lease_periods + 1) * config.period_us * 1e-6
    if delay_s > _MAX_DELAY_S:
        yield ("predicted",), f"a lease and a tick of {delay_s:g} s are too long, {_MAX_DELAY_S:g} s at most"
        return
    try:
        for case in cases(plants, limits, config.rig, config.period_us * 1e-6):
            feasible(case)
    except NoSafeSet as error:
        yield ("predicted",), f"{error}: widen the envelope, shorten the lease (rig.lease_periods) or the spread"


def _magman_findings(config: RunConfig, plants: MagmanPlants) -> Iterator[Finding]:
    limits, rig, fallback = config.limits, config.rig, config.limits.fallback
    if problem := table_problem(plants, rig):
        yield ("predicted", "magnets"), problem
        return
    for a in rig.actuators:
        low, _ = limits.range.get(a.name, (a.low, a.high))
        if a.name in plants.magnets and (low < 0 or a.safe != 0):
            yield ("predicted", "magnets", a.name), "expected squared currents: 0 or more, and off (0) when safe"
    if isinstance(fallback, Hold):
        if fallback.magnets != plants.magnets:
            yield ("fallback", "magnets"), "expected the same magnets as in limits.predicted"
        elif problem := hold_problem(fallback, plants, limits, rig):
            yield ("fallback", "brake_below"), problem
    elif not isinstance(fallback, SafeOutput):
        yield ("predicted",), "expected a fallback that switches the coils off: 'safe' or 'hold'"
