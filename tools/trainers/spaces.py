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
"""Largest sensor count, given by the protocol's 32-bit integers."""


def action_space(config: RunConfig, *, si: bool) -> Box:
    """Return the space of actions (m,) float32, which is [-1, 1] or, if ``si``, the rig's ranges."""
    actuators = config.rig.actuators
    low, high = (np.array([getattr(a, end) for a in actuators], np.float32) for end in ("low", "high"))
    return gymnasium.spaces.Box(low if si else -1.0, high if si else 1.0, (len(actuators),), np.float32)


def image_shape(config: RunConfig) -> tuple[int, int, int] | None:
    """Return the shape of observations, (images, rows, columns), or None if there are no images.

    Raises ValueError for images of different sizes, and for images combined with other inputs.
    """
    if not config.cameras:
        return None
    camera, *other_cameras = config.cameras
    n_images = 0 if config.task.inputs is msgspec.UNSET else len(config.task.inputs)
    has_one_size = all((c.rows, c.columns) == (camera.rows, camera.columns) for c in other_cameras)
    if not has_one_size or n_images * camera.values != len(config.signals):
        raise ValueError("environment inputs must be images of one size, or contain no images")
    return n_images, camera.rows, camera.columns


def observation_space(config: RunConfig, *, si: bool) -> Box:
    """Return the space of observations, (n,) float32, or of images, (images, rows, columns) uint8.

    It contains all values that the protocol can transmit, including those beyond the rig's ranges.
    """
    if (shape := image_shape(config)) is not None:
        return gymnasium.spaces.Box(0, 255, shape, np.uint8)
    bounds = np.array(_bounds(config)).T
    if not si:
        bounds = Normalisation.from_signals(config.signals).normalise(bounds)
    low, high = np.clip(bounds, -_LARGEST, _LARGEST).astype(np.float32)
    return gymnasium.spaces.Box(np.nextafter(low, -np.inf), np.nextafter(high, np.inf), dtype=np.float32)


def _bounds(config: RunConfig) -> list[tuple[float, float]]:
    """Return the bounds of each policy input, in SI units."""
    rig, inputs = config.rig, config.task.inputs
    measured_bounds = {o.name: _sensor_bounds(o, config) for o in rig.observations}
    signal_bounds = [measured_bounds.get(s.name, (s.low, s.high)) for s in rig.signals]
    if inputs is msgspec.UNSET:
        return signal_bounds
    bounds_by_name = dict(zip([s.name for s in rig.signals], signal_bounds, strict=True))
    bounds = []
    for term, signal in zip(inputs, config.signals, strict=True):
        has_exact_bounds = isinstance(term.transform, Cosine | Sine)
        is_value = type(term.transform).__name__ == "Value"
        bounds.append(
            (signal.low, signal.high)
            if has_exact_bounds
            else bounds_by_name[term.observation]
            if is_value
            else _UNBOUNDED
        )
    return bounds


_UNBOUNDED: Final = (-_LARGEST, _LARGEST)


def _sensor_bounds(signal: Observation, config: RunConfig) -> tuple[float, float]:
    source = signal.derivative_of or signal.sensor or signal.name
    sensor = next(s for s in config.rig.sensors if s.name == source)
    count = max(np.pi / sensor.resolution, round(np.pi / sensor.resolution)) if sensor.wrap else _MAX_COUNT
    max_value = count * sensor.resolution
    if signal.derivative_of is not None:
        max_value *= 2.0 * config.rate_hz
    return -max_value, max_value
