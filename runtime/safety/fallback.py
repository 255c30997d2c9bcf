"""Fallback controllers, which act instead of the policy when a rule fails.

Each maps an observation (SI, in the rig's order) to an action (SI), is stateless and exempt from the rate limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, isnan

import msgspec

from onrig.hw.bounds import Positive, Quantity
from onrig.hw.rig import Rig

Controller = Callable[[Sequence[float]], tuple[float, ...]]


class Damp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="damp", tag_field="kind"):
    """Brake: actuator = -sign(gain) |limit| sat(observation / full_at), full effort from ``full_at`` on."""

    actuator: str
    """Name of the one that brakes."""
    observation: str
    """Name of the velocity that it opposes."""
    full_at: Positive
    """Velocity from which it brakes with full effort."""


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hold", tag_field="kind"):
    """Coils off at high speed, else hold at the nearest magnet: its coil is on below the speed ``slow``, and between
    ``slow`` and ``brake_below`` only while the body moves away from it, which brakes.
    """

    position: str
    """Name of the observation of the position."""
    velocity: str
    """Name of that of the velocity."""
    magnets: dict[str, Quantity]
    """Magnet position (m) by actuator."""
    slow: Quantity = 0.05
    """m/s."""
    brake_below: Quantity = 0.2
    """m/s."""


class SafeOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="safe", tag_field="kind"):
    """Every actuator at its safe value (coils off)."""


Fallback = Damp | Hold | SafeOutput


def compile_fallback(fallback: Fallback, rig: Rig) -> Controller:
    """Build the controller of a configuration; raises KeyError for a name that the rig does not have."""
    match fallback:
        case Damp():
            return _damp(fallback, rig)
        case Hold():
            return _hold(fallback, rig)
    safe = tuple([a.safe for a in rig.actuators])
    return lambda observation: safe


def _damp(fallback: Damp, rig: Rig) -> Controller:
    safe = tuple([a.safe for a in rig.actuators])
    acts = _index([a.name for a in rig.actuators], fallback.actuator)
    sees = _index([o.name for o in rig.observations], fallback.observation)
    low, high, full_at = rig.actuators[acts].low, rig.actuators[acts].high, fallback.full_at

    def damp(observation: Sequence[float]) -> tuple[float, ...]:
        """Oppose the velocity: u = -u_max sat(v / full_at)."""
        share = -observation[sees] / full_at
        if isnan(share):  # it would pass min and max
            return safe
        effort = high * min(share, 1.0) if share > 0 else -low * max(share, -1.0)
        return (*safe[:acts], effort, *safe[acts + 1 :])

    return damp


def _hold(fallback: Hold, rig: Rig) -> Controller:
    safe = tuple([a.safe for a in rig.actuators])
    names, sees = [a.name for a in rig.actuators], [o.name for o in rig.observations]
    position_at, velocity_at = _index(sees, fallback.position), _index(sees, fallback.velocity)
    magnets = []
    for name, x in fallback.magnets.items():
        i = _index(names, name)
        magnets.append((x, (*safe[:i], rig.actuators[i].high, *safe[i + 1 :])))
    slow, brake_below = fallback.slow, fallback.brake_below

    def hold(observation: Sequence[float]) -> tuple[float, ...]:
        """Brake at the nearest magnet, without accelerating beyond ``slow``."""
        position, velocity = observation[position_at], observation[velocity_at]
        if not (isfinite(position) and abs(velocity) <= brake_below):
            return safe
        _, on, away = min([(abs(position - x), on, position - x) for x, on in magnets])
        return on if abs(velocity) <= slow or velocity * away > 0 else safe

    return hold


def _index(names: Sequence[str], name: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise KeyError(name) from None
