"""Rules about a command alone: each takes it, bounds it, and says by how much.

A command is (m,) in SI; ``amount`` is the largest change of a component in normalised units (half ranges), 0 where the
rule had nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

from onrig.hw.rig import Rig
from onrig.runtime.config.limits import Limits

Bounded = tuple[tuple[float, ...], float]

WHOLE_RANGE: Final = 2.0
"""Amount of an intervention that leaves nothing of what was wanted."""


def is_sound(action: Sequence[float] | None, n_actuators: int) -> bool:
    """Whether there is a command at all: of the right shape, each component a finite number (rule *finite*)."""
    try:
        if action is None or len(action) != n_actuators:
            return False
        for value in action:
            if not isfinite(value):
                return False
    except (TypeError, ValueError, OverflowError):
        return False
    return True


class Range:
    """Each component within [low, high]."""

    def __init__(self, limits: Limits, rig: Rig) -> None:
        self.bounds = tuple([limits.range.get(a.name, (a.low, a.high)) for a in rig.actuators])
        # A float32 policy ends a rounding error beyond its limits; what moves no count is no intervention.
        self._each = tuple(
            [
                (low, high, 0.5 * a.resolution, a.half_range)
                for (low, high), a in zip(self.bounds, rig.actuators, strict=True)
            ]
        )

    def bound(self, wish: Sequence[float]) -> Bounded:
        """Clip a command that is sound."""
        out, most = [], 0.0
        for value, (low, high, half_count, half_range) in zip(wish, self._each, strict=True):
            beyond = 0.0
            if value < low:
                value, beyond = low, low - value
            elif value > high:
                value, beyond = high, value - high
            if beyond > half_count:
                most = max(most, beyond / half_range)
            out.append(value)
        return tuple(out), most


class Rate:
    """Each component within one period's step of the command before."""

    def __init__(self, limits: Limits, rig: Rig, period_s: float) -> None:
        self.steps = tuple(
            [
                limits.rate_per_s[a.name] * period_s if a.name in limits.rate_per_s else a.high - a.low
                for a in rig.actuators
            ]
        )
        self._halves = tuple([a.half_range for a in rig.actuators])

    def bound(self, wish: Sequence[float], previous: Sequence[float]) -> Bounded:
        """Hold a command in range to the rate; ``previous`` went out last."""
        out, most = [], 0.0
        for value, last, step, half in zip(wish, previous, self.steps, self._halves, strict=True):
            # Rounding of the previous command to counts must not count as an intervention.
            slack = step * (1 + 1e-6) + 1e-9
            held = value
            if value > last + slack:
                held = last + step
            elif value < last - slack:
                held = last - step
            most = max(most, abs(held - value) / half)
            out.append(held)
        return tuple(out), most


class Jerk:
    """Each component's step within a bound of the step before; where range and rate leave no room for it, they win."""

    def __init__(self, limits: Limits, rig: Rig, period_s: float, range_: Range, rate: Rate) -> None:
        self._each = tuple(
            [
                (limits.jerk_per_s2.get(a.name, float("inf")) * period_s * period_s, low, high, step, a.half_range)
                for a, (low, high), step in zip(rig.actuators, range_.bounds, rate.steps, strict=True)
            ]
        )

    def bound(self, wish: Sequence[float], previous: Sequence[float], before: Sequence[float]) -> Bounded:
        """Hold a command in range and rate to the jerk; ``before`` went out before ``previous``."""
        out, most = [], 0.0
        for value, last, older, (change, low, high, step, half) in zip(wish, previous, before, self._each, strict=True):
            slack = change * (1 + 1e-6) + 1e-9
            centre = 2.0 * last - older
            held = value
            if value > centre + slack:
                held = centre + change
            elif value < centre - slack:
                held = centre - change
            if held is not value:
                held = min(max(held, low, last - step), high, last + step)
            most = max(most, abs(held - value) / half)
            out.append(held)
        return tuple(out), most
