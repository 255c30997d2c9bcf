"""The shield's model-free rules: bounds on a command and its changes, and the envelope of the state.

Each rule on commands bounds a command (m,) in SI units and returns it with ``amount``, the largest change of any
component in normalised units (half ranges), which is 0 if the command is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Final, NamedTuple

import msgspec

from onrig.hw.bounds import Quantity
from onrig.hw.rig import Rig

Ranges = Mapping[str, tuple[float, float]]
"""[low, high] of each actuator in SI units."""
BoundedCommand = tuple[tuple[float, ...], float]

FULL_RANGE: Final = 2.0
"""Amount of an intervention that discards the command."""


def is_valid_command(action: Sequence[float] | None, n_actuators: int) -> bool:
    """Return whether a command has the right length and only finite components (rule *finite*)."""
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
    """Limit on each component's value: [low, high]."""

    def __init__(self, ranges: Ranges, rig: Rig) -> None:
        self.bounds = tuple([ranges.get(a.name, (a.low, a.high)) for a in rig.actuators])
        # Rounding may take a float32 policy's action past its limits; less than half a count is not an intervention.
        self._parameters = tuple(
            [
                (low, high, 0.5 * a.resolution, a.half_range)
                for (low, high), a in zip(self.bounds, rig.actuators, strict=True)
            ]
        )

    def bound(self, command: Sequence[float]) -> BoundedCommand:
        """Clip a valid command."""
        bounded_command, amount = [], 0.0
        for value, (low, high, half_count, half_range) in zip(command, self._parameters, strict=True):
            excess = 0.0
            if value < low:
                value, excess = low, low - value
            elif value > high:
                value, excess = high, value - high
            if excess > half_count:
                amount = max(amount, excess / half_range)
            bounded_command.append(value)
        return tuple(bounded_command), amount


class Rate:
    """Limit on the change of each component in one period, relative to the output that it replaces."""

    def __init__(self, rate_per_s: Mapping[str, float], rig: Rig, period_s: float) -> None:
        self.steps = tuple(
            [rate_per_s[a.name] * period_s if a.name in rate_per_s else a.high - a.low for a in rig.actuators]
        )
        self._half_ranges = tuple([a.half_range for a in rig.actuators])

    def bound(self, command: Sequence[float], output: Sequence[float]) -> BoundedCommand:
        """Bound the rate of a command that is within the range; ``output``: the output that the device's frame
        reports."""
        bounded_command, amount = [], 0.0
        for value, last_value, step, half_range in zip(command, output, self.steps, self._half_ranges, strict=True):
            # Rounding of the output to counts must not count as an intervention.
            slack = step * (1 + 1e-6) + 1e-9
            bounded_value = value
            if value > last_value + slack:
                bounded_value = last_value + step
            elif value < last_value - slack:
                bounded_value = last_value - step
            amount = max(amount, abs(bounded_value - value) / half_range)
            bounded_command.append(bounded_value)
        return tuple(bounded_command), amount


class Jerk:
    """Limit on the change of each component's step between periods; range and rate take precedence."""

    def __init__(self, jerk_per_s2: Mapping[str, float], rig: Rig, period_s: float, range_: Range, rate: Rate) -> None:
        self._parameters = tuple(
            [
                (jerk_per_s2.get(a.name, inf) * period_s * period_s, low, high, step, a.half_range)
                for a, (low, high), step in zip(rig.actuators, range_.bounds, rate.steps, strict=True)
            ]
        )

    def bound(
        self, command: Sequence[float], output: Sequence[float], previous_output: Sequence[float]
    ) -> BoundedCommand:
        """Bound the jerk of a command that is within the range and the rate limit; ``previous_output``: the output one
        period before ``output``."""
        bounded_command, amount = [], 0.0
        for value, last_value, previous_value, (max_change, low, high, step, half_range) in zip(
            command, output, previous_output, self._parameters, strict=True
        ):
            slack = max_change * (1 + 1e-6) + 1e-9
            centre = 2.0 * last_value - previous_value
            bounded_value = value
            if value > centre + slack:
                bounded_value = centre + max_change
            elif value < centre - slack:
                bounded_value = centre - max_change
            if bounded_value is not value:
                bounded_value = min(max(bounded_value, low, last_value - step), high, last_value + step)
            amount = max(amount, abs(bounded_value - value) / half_range)
            bounded_command.append(bounded_value)
        return tuple(bounded_command), amount


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range of an observation: the fallback acts outside [low, high] until the state is back within ``release``."""

    low: Quantity
    """Lower bound."""
    high: Quantity
    """Upper bound."""
    release: Quantity = 0.8
    """Fraction of the range, around its middle, within which the fallback may end."""


class _ObservationBounds(NamedTuple):
    """Bounds on an observation: the fallback starts outside [low, high] and may end inside [inner_low, inner_high]."""

    observation: int
    low: float
    high: float
    inner_low: float
    inner_high: float
    per_unit: float
    """Number of normalised units per SI unit."""


class Envelopes:
    """Allowed region of the state, with hysteresis."""

    def __init__(self, envelopes: Mapping[str, Envelope], rig: Rig) -> None:
        index = {o.name: i for i, o in enumerate(rig.observations)}
        bounds = []
        for name, e in envelopes.items():
            centre, inner_half_range = 0.5 * (e.low + e.high), 0.5 * e.release * (e.high - e.low)
            o = rig.observations[index[name]]
            bounds.append(
                _ObservationBounds(
                    index[name],
                    e.low,
                    e.high,
                    centre - inner_half_range,
                    centre + inner_half_range,
                    2.0 / (o.high - o.low),
                )
            )
        self._bounds = tuple(bounds)

    def evaluate(self, observation: Sequence[float]) -> tuple[float, float]:
        """Return (excess, margin) for a state (n,) in SI units.

        excess: distance outside an envelope, in the observation's normalised units; inf for NaN, 0 inside all of them.
        margin: 1 in the middle of every envelope, 0 at the edge of any.
        """
        margin = 1.0
        for index, low, high, _, _, per_unit in self._bounds:
            value = observation[index]
            if not low <= value <= high:
                excess = max(low - value, value - high) * per_unit
                return (excess if excess > 0.0 else inf), 0.0
            margin = min(margin, 2.0 * min(value - low, high - value) / (high - low))
        return 0.0, margin

    def distance(self, observation: Sequence[float]) -> float:
        """Return the largest distance of any component of a state (n,), in SI units, from the middle of its envelope; a
        component at the edge has the distance 1."""
        return max(
            [abs(2.0 * observation[b.observation] - b.low - b.high) / (b.high - b.low) for b in self._bounds],
            default=0.0,
        )

    def is_well_inside(self, observation: Sequence[float]) -> bool:
        """Return whether the state is inside all envelopes' release ranges, where the fallback may end."""
        return all(b.inner_low <= observation[b.observation] <= b.inner_high for b in self._bounds)
