"""Fallback controllers, which replace the policy when a rule fails.

Each is stateless, exempt from the rate limit, and maps an observation to an action (SI units, in the rig's order).
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
    """Proportional brake: the safe value at rest, the opposing end of the range at a velocity of ``full_at`` or
    more."""

    actuator: str
    """Name of the actuator that brakes."""
    observation: str
    """Name of the velocity observation."""
    full_at: Positive
    """Velocity from which the actuator brakes with full effort."""


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hold", tag_field="kind"):
    """Switch the coils off at high speed, otherwise hold the body at the nearest magnet.

    Its coil is on below the speed ``slow``, and up to ``brake_below`` only while the body moves away from the magnet.
    """

    position: str
    """Name of the position observation."""
    velocity: str
    """Name of the velocity observation."""
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
    """Build the controller of a configuration; raises KeyError for a name that is not in the rig."""
    match fallback:
        case Damp():
            return _compile_damp(fallback, rig)
        case Hold():
            return _compile_hold(fallback, rig)
    safe_action = tuple([a.safe for a in rig.actuators])
    return lambda observation: safe_action


def compile_full_effort(fallback: Fallback, rig: Rig) -> Callable[[Sequence[float]], bool]:
    """Build the predicate that is true for observations at which the controller acts with full effort."""
    if not isinstance(fallback, Damp):  # coils off, a held coil or the safe output are always full effort
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
"""Minimum diverging time of the state that counts as a fault of the fallback."""
MIN_DIVERGING_DWELLS: Final = 10
"""Minimum diverging time in dwell times of the fallback, which are longer on a slow rig."""
FAR_DISTANCE: Final = 1.25
"""Distance, in half widths of the envelope, beyond which ``MIN_DIVERGING_FAR_S`` applies to a rig with a prediction,
which should keep it below 1."""
MIN_DIVERGING_FAR_S: Final = 0.1
"""Minimum diverging time beyond ``FAR_DISTANCE``, longer than a single wrong reading."""


class FallbackWatch:
    """Detector of a failing fallback: despite full effort, the state moves further out of its envelope.

    Model-free; covers an inverted sign or a slipping brake. ``runtime/SAFETY.md`` gives the thresholds.
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
        """``distance``: function of an observation, 1 at the edge of the envelope."""
        self._distance, self._is_at_full_effort, self._period_s = distance, is_at_full_effort, period_s
        self._min_diverging_s = max(MIN_DIVERGING_S, MIN_DIVERGING_DWELLS * dwell_s)
        self._min_far_divergence_s = max(MIN_DIVERGING_FAR_S, dwell_s) if has_prediction else self._min_diverging_s
        self._divergence_timer = DivergenceTimer(floor=1.0)

    def reset(self) -> None:
        """Restart the measurement; to be called when the fallback is inactive."""
        self._divergence_timer.reset()

    def update(self, observation: Sequence[float]) -> str:
        """Add a state (n,) in SI units under the fallback; returns a description of the failure, empty if none."""
        if not self._is_at_full_effort(observation):
            self._divergence_timer.reset()
            return ""
        distance = self._distance(observation)
        diverging_s = self._divergence_timer.update(distance, self._period_s)
        if diverging_s < (self._min_far_divergence_s if distance > FAR_DISTANCE else self._min_diverging_s):
            return ""
        return f"for {diverging_s:.2g} s at full effort; now at {distance:.3g} times the envelope's half width"
