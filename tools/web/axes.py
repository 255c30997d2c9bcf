"""The range in which each observation is drawn."""

from __future__ import annotations

from typing import Final, NamedTuple

from onrig.runtime.run_config import RunConfig

_ROOM: Final = 1.15
"""Beyond an envelope that the shield keeps there is nothing to be seen."""


class Axis(NamedTuple):
    """One observation, in its unit."""

    name: str
    unit: str
    low: float
    high: float
    centre: float
    half: float
    """``centre`` and ``half`` turn normalised values back: value = centre + half * normalised."""

    @property
    def middle(self) -> float:
        """Middle of the rig's range: normalised 0."""
        return self.centre


def axes_of(config: RunConfig) -> tuple[Axis, ...]:
    """Choose the axes: the rig's range of each observation, narrower where the envelope is."""
    axes = []
    for o in config.rig.signals:
        low, high = o.low, o.high
        envelope = config.limits.envelope.get(o.name)
        if envelope is not None:
            low, high = max(low, envelope.low * _ROOM), min(high, envelope.high * _ROOM)
        axes.append(Axis(o.name, o.unit, low, high, 0.5 * (o.low + o.high), 0.5 * (o.high - o.low)))
    return tuple(axes)
