"""Action and observation spaces of an environment."""

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
_MAX_COUNT: Final = float(2**31)
"""Largest sensor count: the protocol has 32-bit integers."""


def action_space(config: RunConfig, *, si: bool) -> Box:
    """Return the space of actions (m,) float32: [-1, 1], or the rig's ranges with ``si``."""
    actuators = config.rig.actuators
    low, high = (np.array([getattr(a, end) for a in actuators], np.float32) for end in ("low", "high"))
    return gymnasium.spaces.Box(low if si else -1.0, high if si else 1.0, (len(actuators),), np.float32)


def observation_space(config: RunConfig, *, si: bool) -> Box:
    """Return the space of observations (n,) float32: all values that the protocol can transmit, also beyond the rig's
    ranges.
    """
    bounds = np.array(_bounds(config)).T
    if not si:
        bounds = Normalisation.from_signals(config.signals).normalise(bounds)
    low, high = np.clip(bounds, -_LARGEST, _LARGEST).astype(np.float32)
    return gymnasium.spaces.Box(np.nextafter(low, -np.inf), np.nextafter(high, np.inf), dtype=np.float32)


def _bounds(config: RunConfig) -> list[tuple[float, float]]:
    """Return the bounds of each policy input, in SI units."""
    rig, inputs = config.rig, config.task.inputs
    measured = {o.name: _sensor_bounds(o, config) for o in rig.observations}
    signal_bounds = [measured.get(s.name, (s.low, s.high)) for s in rig.signals]
    if inputs is msgspec.UNSET:
        return signal_bounds
    by_name = dict(zip([s.name for s in rig.signals], signal_bounds, strict=True))
    bounds = []
    for term, signal in zip(inputs, config.signals, strict=True):
        exact = isinstance(term.transform, Cosine | Sine)
        value = type(term.transform).__name__ == "Value"
        bounds.append((signal.low, signal.high) if exact else by_name[term.observation] if value else _UNBOUNDED)
    return bounds


_UNBOUNDED: Final = (-_LARGEST, _LARGEST)


def _sensor_bounds(signal: Observation, config: RunConfig) -> tuple[float, float]:
    source = signal.derivative_of or signal.sensor or signal.name
    sensor = next(s for s in config.rig.sensors if s.name == source)
    count = max(np.pi / sensor.resolution, round(np.pi / sensor.resolution)) if sensor.wrap else _MAX_COUNT
    largest = count * sensor.resolution
    if signal.derivative_of is not None:
        largest *= 2.0 * config.rate_hz
    return -largest, largest
