"""Fallback controllers, which replace the policy when a rule fails.

Each maps an observation (SI, in the rig's order) to an action (SI), is stateless and exempt from the rate limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, isnan
from typing import Final

import msgspec

from onrig.hw.bounds import Positive, Quantity
from onrig.hw.rig import Rig
from onrig.runtime.braking import Brake, Divergence

Controller = Callable[[Sequence[float]], tuple[float, ...]]


class Damp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="damp", tag_field="kind"):
    """Proportional brake: from the safe value at rest to the opposing end of the range, saturated from ``full_at``
    on."""

    actuator: str
    """Name of the one that brakes."""
    observation: str
    """Name of the velocity observation."""
    full_at: Positive
    """Velocity from which it brakes with full effort."""


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hold", tag_field="kind"):
    """Coils off at high speed, else hold at the nearest magnet: its coil is on below the speed ``slow``, and between
    ``slow`` and ``brake_below`` only while the body moves away from it, which brakes.
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
    """Build the controller of a configuration; raises KeyError for a name that the rig does not have."""
    match fallback:
        case Damp():
            return _damp(fallback, rig)
        case Hold():
            return _hold(fallback, rig)
    safe = tuple([a.safe for a in rig.actuators])
    return lambda observation: safe


def full_effort(fallback: Fallback, rig: Rig) -> Callable[[Sequence[float]], bool]:
    """Build the predicate of observations at which the controller acts with full effort."""
    if not isinstance(fallback, Damp):  # coils off, a held coil or the safe output are always full effort
        return lambda observation: True
    sees, full_at = _index([o.name for o in rig.observations], fallback.observation), fallback.full_at
    return lambda observation: abs(observation[sees]) >= full_at


def _damp(fallback: Damp, rig: Rig) -> Controller:
    safe = tuple([a.safe for a in rig.actuators])
    acts = _index([a.name for a in rig.actuators], fallback.actuator)
    sees = _index([o.name for o in rig.observations], fallback.observation)
    brake, full_at = Brake(rig.actuators[acts]), fallback.full_at

    def damp(observation: Sequence[float]) -> tuple[float, ...]:
        """Oppose the velocity: u = -u_max sat(v / full_at), for a range of +-u_max about a safe value of 0."""
        share = -observation[sees] / full_at
        if isnan(share):  # NaN would pass min and max
            return safe
        return (*safe[:acts], brake.command(share), *safe[acts + 1 :])

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


DIVERGES_S: Final = 1.0
"""Minimum diverging time that counts as a fault of the fallback."""
DWELLS: Final = 10
"""The same as a multiple of the fallback's dwell time, which is longer on a slow rig."""
FAR: Final = 1.25
"""Distance, in half widths of the envelope, beyond which the shorter time applies if a prediction excludes any beyond
1."""
FAR_S: Final = 0.1
"""Diverging time that applies then: longer than a single wrong reading."""


class FallbackWatch:
    """Detector of a fallback that fails at full effort: the state moves ever further out of its envelope.

    Model-free; covers an inverted sign or a slipping brake. ``runtime/SAFETY.md`` gives the thresholds.
    """

    def __init__(
        self,
        distance: Callable[[Sequence[float]], float],
        at_full_effort: Callable[[Sequence[float]], bool],
        period_s: float,
        dwell_s: float,
        *,
        predicted: bool,
    ) -> None:
        """``distance`` of an observation: 1 at the edge of the envelope."""
        self._distance, self._at_full_effort, self._period_s = distance, at_full_effort, period_s
        self._diverges_s = max(DIVERGES_S, DWELLS * dwell_s)
        self._far_s = max(FAR_S, dwell_s) if predicted else self._diverges_s
        self._divergence = Divergence(floor=1.0)

    def reset(self) -> None:
        """Restart: the fallback is inactive."""
        self._divergence.reset()

    def update(self, observation: Sequence[float]) -> str:
        """Add a state (n,) SI under the fallback; returns a description of the failure, empty if none."""
        if not self._at_full_effort(observation):
            self._divergence.reset()
            return ""
        distance = self._distance(observation)
        left_s = self._divergence.update(distance, self._period_s)
        if left_s < (self._far_s if distance > FAR else self._diverges_s):
            return ""
        return f"for {left_s:.2g} s at full effort; now {distance:.3g} times the envelope's half width"
