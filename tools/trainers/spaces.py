"""Spaces of an environment: what the rig can send and be sent."""

from __future__ import annotations

from typing import Final

import gymnasium
import msgspec
import numpy as np

from onrig.hw.rig import Observation
from onrig.runtime.input_transforms import Cosine, Sine
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.run_config import RunConfig

Box = gymnasium.spaces.Box
_LARGEST: Final = float(np.finfo(np.float32).max)
_COUNTS: Final = float(2**31)
"""Sensors are sent as 32-bit integers."""


def action_space(config: RunConfig, *, si: bool) -> Box:
    """Space of actions (m,) float32: [-1, 1], or the rig's ranges with ``si``."""
    actuators = config.rig.actuators
    low, high = (np.array([getattr(a, end) for a in actuators], np.float32) for end in ("low", "high"))
    return gymnasium.spaces.Box(low if si else -1.0, high if si else 1.0, (len(actuators),), np.float32)


def observation_space(config: RunConfig, *, si: bool) -> Box:
    """Space of observations (n,) float32: all that the wire can carry, not only the rig's ranges."""
    bounds = np.array(_bounds(config)).T
    if not si:
        bounds = Normalisation.from_signals(config.signals).normalise(bounds)
    low, high = np.clip(bounds, -_LARGEST, _LARGEST).astype(np.float32)
    return gymnasium.spaces.Box(np.nextafter(low, -np.inf), np.nextafter(high, np.inf), dtype=np.float32)


def _bounds(config: RunConfig) -> list[tuple[float, float]]:
    """Largest values of each policy input, SI."""
    rig, inputs = config.rig, config.task.inputs
    of = {o.name: _of_signal(o, config) for o in rig.observations}
    whole = [of.get(s.name, (s.low, s.high)) for s in rig.signals]
    if inputs is msgspec.UNSET:
        return whole
    by_name = dict(zip([s.name for s in rig.signals], whole, strict=True))
    bounds = []
    for term, signal in zip(inputs, config.signals, strict=True):
        exact = isinstance(term.transform, Cosine | Sine)
        value = type(term.transform).__name__ == "Value"
        bounds.append((signal.low, signal.high) if exact else by_name[term.observation] if value else _UNKNOWN)
    return bounds


_UNKNOWN: Final = (-_LARGEST, _LARGEST)


def _of_signal(signal: Observation, config: RunConfig) -> tuple[float, float]:
    source = signal.derivative_of or signal.sensor or signal.name
    sensor = next(s for s in config.rig.sensors if s.name == source)
    reach = np.pi if sensor.wrap else _COUNTS * sensor.resolution
    if signal.derivative_of is not None:
        reach *= 2.0 * config.rate_hz
    return -reach, reach
