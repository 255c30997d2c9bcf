"""Where the state may be: bounds on observations, entered and left with hysteresis."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from onrig.hw.rig import Rig
from onrig.runtime.config.limits import Limits


class _Bound(NamedTuple):
    """Enter the fallback outside [low, high], leave it inside [inner_low, inner_high]."""

    observation: int
    low: float
    high: float
    inner_low: float
    inner_high: float
    per_unit: float
    """Normalised units per SI unit."""


class Bounds:
    """The envelopes of a configuration (``limits.envelope``)."""

    def __init__(self, limits: Limits, rig: Rig) -> None:
        at = {o.name: i for i, o in enumerate(rig.observations)}
        bounds = []
        for name, e in limits.envelope.items():
            centre, inner = 0.5 * (e.low + e.high), 0.5 * e.release * (e.high - e.low)
            o = rig.observations[at[name]]
            bounds.append(_Bound(at[name], e.low, e.high, centre - inner, centre + inner, 2.0 / (o.high - o.low)))
        self._bounds = tuple(bounds)

    def judge(self, observation: Sequence[float]) -> tuple[float, float]:
        """Return (excess, margin) of a state (n,) SI.

        excess: how far outside, in the observation's normalised units, inf for NaN, 0 inside.  margin: 1 in the middle
        of every envelope, 0 at the edge of one.
        """
        margin = 1.0
        for at, low, high, _, _, per_unit in self._bounds:
            value = observation[at]
            if not low <= value <= high:
                beyond = max(low - value, value - high) * per_unit
                return (beyond if beyond > 0.0 else inf), 0.0
            margin = min(margin, 2.0 * min(value - low, high - value) / (high - low))
        return 0.0, margin

    def well_inside(self, observation: Sequence[float]) -> bool:
        """Whether the fallback may let go."""
        return all(b.inner_low <= observation[b.observation] <= b.inner_high for b in self._bounds)
