"""Fallback controllers, which replace the policy when a rule fails.

Each controller is stateless and exempt from the rate limit, and maps an observation to an action (SI units, in the
rig's order).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, isnan
from typing import Final

import msgspec

from onrig.hw.bounds import Positive, Quantity
from onrig.hw.rig import Rig
from onrig.runtime.braking import Brake, DivergenceTimer

Controller = Callable[[Sequence[float]], tuple[float, ...]]


class Damp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="damp", tag_field="kind"):
    """Proportional brake: the actuator is at its safe value at rest, and reaches the opposite end of its range
    at a velocity of ``full_at``."""

    actuator: str
    """Name of the actuator that brakes."""
    observation: str
    """Name of the velocity observation."""
    full_at: Positive
    """Velocity from which the actuator brakes with full effort."""


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hold", tag_field="kind"):
    """Controller that switches the coils off at high speed, and otherwise holds the body at the nearest magnet.

    That magnet's coil is on up to the speed ``slow``, and from there up to ``brake_below`` only while the body moves
    away from the magnet.
    """

    position: str
    """Name of the position observation."""
    velocity: str
    """Name of the velocity observation."""
    magnets: dict[str, Quantity]
    """Magnet position (m) by actuator."""
    slow: Quantity = 0.05
    """Speed (m/s) up to which the nearest magnet's coil is on."""
    brake_below: Quantity = 0.2
    """Speed (m/s) above which all coils are off."""


class SafeOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="safe", tag_field="kind"):
    """Every actuator at its safe value (coils off)."""


Fallback = Damp | Hold | SafeOutput


def compile_fallback(fallback: Fallback, rig: Rig) -> Controller:
    """Build the controller that a configuration describes; raises KeyError for a name that is not in the rig."""
    match fallback:
        case Damp():
            return _compile_damp(fallback, rig)
        case Hold():
            return _compile_hold(fallback, rig)
    safe_action = tuple([a.safe for a in rig.actuators])
    return lambda observation: safe_action


def compile_full_effort(fallback: Fallback, rig: Rig) -> Callable[[Sequence[float]], bool]:
    """Return a predicate that is true for the observations at which the controller acts with full effort."""
    if not isinstance(fallback, Damp):  # coils off, a held coil and the safe output always count as full effort
        return lambda observation: True
    index, full_at = _index([o.name for o in rig.observations], fallback.observation), fallback.full_at
    return lambda observation: abs(observation[index]) >= full_at


def _compile_damp(fallback: Damp, rig: Rig) -> Controller:
    safe_action = tuple([a.safe for a in rig.actuators])
    actuator = _index([a.name for a in rig.actuators], fallback.actuator)
    velocity = _index([o.name for o in rig.observations], fallback.observation)
    brake, full_at = Brake(rig.actuators[actuator]), fallback.full_at

    def damp(observation: Sequence[float]) -> tuple[float, ...]:
        """Oppose the velocity: u = -u_max sat(v / full_at), for a range of +-u_max about a safe value of 0."""
        fraction = -observation[velocity] / full_at
        if isnan(fraction):  # NaN would pass min and max
            return safe_action
        return (*safe_action[:actuator], brake.command(fraction), *safe_action[actuator + 1 :])

    return damp


def _compile_hold(fallback: Hold, rig: Rig) -> Controller:
    safe_action = tuple([a.safe for a in rig.actuators])
    names, observations = [a.name for a in rig.actuators], [o.name for o in rig.observations]
    position_index, velocity_index = _index(observations, fallback.position), _index(observations, fallback.velocity)
    magnets = []
    for name, x in fallback.magnets.items():
        i = _index(names, name)
        magnets.append((x, (*safe_action[:i], rig.actuators[i].high, *safe_action[i + 1 :])))
    slow, brake_below = fallback.slow, fallback.brake_below

    def hold(observation: Sequence[float]) -> tuple[float, ...]:
        """Brake at the nearest magnet, without accelerating beyond ``slow``."""
        position, velocity = observation[position_index], observation[velocity_index]
        if not (isfinite(position) and abs(velocity) <= brake_below):
            return safe_action
        _, magnet_on, offset = min([(abs(position - x), magnet_on, position - x) for x, magnet_on in magnets])
        return magnet_on if abs(velocity) <= slow or velocity * offset > 0 else safe_action

    return hold


def _index(names: Sequence[str], name: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise KeyError(name) from None


MIN_DIVERGING_S: Final = 1.0
"""Minimum time for which the state must diverge to count as a fault of the fallback."""
MIN_DIVERGING_DWELLS: Final = 10
"""The same minimum in dwell times of the fallback, which are longer on a slow rig; the longer time applies."""
FAR_DISTANCE: Final = 1.25
"""Distance, in half widths of the envelope, beyond which ``MIN_DIVERGING_FAR_S`` applies to a rig with a prediction,
which should keep the distance below 1."""
MIN_DIVERGING_FAR_S: Final = 0.1
"""Minimum time for which the state must diverge beyond ``FAR_DISTANCE``; it is longer than a single wrong reading."""


class FallbackWatch:
    """Detector of a failing fallback: despite full effort, the state moves further out of its envelope.

    The detector needs no model, and finds failures such as an inverted sign or a slipping brake.  ``runtime/SAFETY.md``
    lists the thresholds.
    """

    def __init__(
        self,
        distance: Callable[[Sequence[float]], float],
        is_at_full_effort: Callable[[Sequence[float]], bool],
        period_s: float,
        dwell_s: float,
        *,
        has_prediction: bool,
    ) -> None:
        """``distance``: function that returns an observation's distance, which is 1 at the edge of the envelope."""
        self._distance, self._is_at_full_effort, self._period_s = distance, is_at_full_effort, period_s
        self._min_diverging_s = max(MIN_DIVERGING_S, MIN_DIVERGING_DWELLS * dwell_s)
        self._min_far_divergence_s = max(MIN_DIVERGING_FAR_S, dwell_s) if has_prediction else self._min_diverging_s
        self._divergence_timer = DivergenceTimer(floor=1.0)

    def reset(self) -> None:
        """Restart the measurement; to be called whenever the fallback is inactive."""
        self._divergence_timer.reset()

    def update(self, observation: Sequence[float]) -> str:
        """Add a state (n,), in SI units, in which the fallback acts; return a description of its failure, or an empty
        string."""
        if not self._is_at_full_effort(observation):
            self._divergence_timer.reset()
            return ""
        distance = self._distance(observation)
        diverging_s = self._divergence_timer.update(distance, self._period_s)
        if diverging_s < (self._min_far_divergence_s if distance > FAR_DISTANCE else self._min_diverging_s):
            return ""
        return f"for {diverging_s:.2g} s at full effort; now at {distance:.3g} times the envelope's half width"
