"""The predicted envelope of a pendulum: a command passes only where it leads into the safe set (``phase_plane``)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, floor, inf, pi
from typing import Final

from onrig.hw.rig import Rig
from onrig.runtime.config.limits import Damp, Limits, PendulumPlants
from onrig.runtime.safety.phase_plane import LEVELS, NODES, Box, Case, Span, mirrored, upper_side
from onrig.runtime.safety.prediction import FARTHEST, error_bound

_PER_RAD: Final = NODES / (2.0 * math.pi)
_TOP: Final = LEVELS - 1


def cases(plants: PendulumPlants, limits: Limits, rig: Rig, period_s: float) -> tuple[Case, Case]:
    """What the upper and the (mirrored) lower side of the safe set depend on.

    The longest delay is the lease and the one tick; the rounding of a command to counts goes to the velocity's error.
    """
    fallback = limits.fallback
    if not isinstance(fallback, Damp):
        raise ValueError("the pendulum's prediction is made for the fallback 'damp'")
    actuator = next(a for a in rig.actuators if a.name == plants.actuator)
    low, high = limits.range.get(actuator.name, (actuator.low, actuator.high))
    gain = _around(plants.gain_per_v_s2, plants.spread)
    case = Case(
        box=Box(_around(plants.gravity_per_s2, plants.spread), _around(plants.damping_per_s, plants.spread), gain),
        command=Span(low, high),
        limit=limits.envelope[plants.velocity].high,
        full_at=fallback.full_at,
        period_s=period_s,
        delay_s=(rig.lease_periods + 1) * period_s,
        late_s=min(plants.late_us * 1e-6, period_s),
        angle_error=error_bound(plants, rig, plants.angle),
        velocity_error=error_bound(plants, rig, plants.velocity) + 0.5 * actuator.resolution * gain.high * period_s,
    )
    return case, mirrored(case, limits.envelope[plants.velocity].low)


class PendulumPrediction:
    """Tables of the highest and lowest measured velocity, by command and angle."""

    def __init__(self, plants: PendulumPlants, limits: Limits, rig: Rig, period_s: float) -> None:
        names = [o.name for o in rig.observations]
        self._angle, self._velocity = names.index(plants.angle), names.index(plants.velocity)
        self._actuator = [a.name for a in rig.actuators].index(plants.actuator)
        observed = rig.observations[self._velocity]
        self._per_unit = 2.0 / (observed.high - observed.low)
        upper, lower = cases(plants, limits, rig, period_s)
        self._lowest = upper.command.low
        self._per_volt = _TOP / (upper.command.high - upper.command.low)
        self._high, self._low = _tables(upper, lower)

    def judge(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        """See :class:`onrig.runtime.safety.prediction.Prediction`."""
        angle, velocity = observation[self._angle], observation[self._velocity]
        if not (-FARTHEST < angle < FARTHEST and -FARTHEST < velocity < FARTHEST):
            return inf, 0.0
        at = int((angle + pi) * _PER_RAD // 1.0) % NODES
        level = (action[self._actuator] - self._lowest) * self._per_volt
        # Between two levels the next worse one counts.
        high = self._high[min(ceil(level), _TOP) * NODES + at]
        low = self._low[max(floor(level), 0) * NODES + at]
        if velocity > high:
            return (velocity - high) * self._per_unit, 0.0
        if velocity < low:
            return (low - velocity) * self._per_unit, 0.0
        if not low < 0.0 < high:
            return 0.0, 0.0
        return 0.0, min(1.0 - velocity / high, 1.0 - velocity / low, 1.0)


@lru_cache(maxsize=8)
def _tables(upper: Case, lower: Case) -> tuple[array[float], array[float]]:
    """Highest and lowest velocity, flat: command by command, angle by angle."""
    lowest = -upper_side(lower).cells[::-1, ::-1]
    return array("d", upper_side(upper).cells.tobytes()), array("d", lowest.tobytes())


def _around(value: float, spread: float) -> Span:
    return Span(value * (1.0 - spread), value * (1.0 + spread))
