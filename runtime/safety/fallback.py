"""Fallback controllers: what acts when a policy may not (ARCHITECTURE §5).

Each maps an observation (SI, the rig's order) to an action (SI) without memory, and is exempt from the rate limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

from hw.rig import Rig
from runtime.config.schema import Damp, Fallback

Controller = Callable[[Sequence[float]], tuple[float, ...]]


def compile_fallback(fallback: Fallback, rig: Rig) -> Controller:
    """Turn a fallback's configuration into a controller; raises KeyError for a name the rig does not have."""
    safe = tuple(a.safe for a in rig.actuators)
    if not isinstance(fallback, Damp):
        return lambda observation: safe
    actuators = {a.name: i for i, a in enumerate(rig.actuators)}
    observations = {o.name: i for i, o in enumerate(rig.observations)}
    acts, sees = actuators[fallback.actuator], observations[fallback.observation]
    low, high, full_at = rig.actuators[acts].low, rig.actuators[acts].high, fallback.full_at

    def damp(observation: Sequence[float]) -> tuple[float, ...]:
        """Oppose the velocity: u = -u_max sat(v / full_at)."""
        share = -observation[sees] / full_at
        if isnan(share):  # it would pass min and max
            return safe
        effort = high * min(share, 1.0) if share > 0 else -low * max(share, -1.0)
        return (*safe[:acts], effort, *safe[acts + 1 :])

    return damp
