"""Exploration noise, drawn per episode from a stream of its own, scaled by the schedule.

Noise lives in normalised action units and is added to the normalised policy action; the sum is clipped to [-1, 1].
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.config.schema import Exploration, OrnsteinUhlenbeck


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise-linear interpolation through (x, y) points in ascending x, constant outside."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def ornstein_uhlenbeck(
    rng: np.random.Generator, steps: int, dimensions: int, gain: float, friction: float
) -> npt.NDArray[np.float64]:
    """Draw ``u`` of shape (steps, dimensions): u(k+1) = u(k) + gain N(0,1) - friction u(k), u(0) = 0.

    Source: 000 App. B.2, with the symbols read literally (METHODS C4); each dimension on its own.
    """
    noise = gain * rng.standard_normal((steps, dimensions))
    u = np.zeros((steps, dimensions))
    for k in range(1, steps):
        u[k] = (1.0 - friction) * u[k - 1] + noise[k - 1]
    return u


def episode_noise(
    exploration: Exploration, rng: np.random.Generator, episode: int, steps: int, dimensions: int
) -> list[tuple[float, ...]]:
    """Exploration signal of one training episode, one (m,) tuple in normalised units for each step.

    The amplitude multiplies the *clipped* noise: scaled before the clip it would never become small (METHODS S4).
    """
    if not isinstance(exploration, OrnsteinUhlenbeck):
        return [(0.0,) * dimensions] * steps
    u = ornstein_uhlenbeck(rng, steps, dimensions, exploration.gain, exploration.friction)
    scaled = interpolate(exploration.amplitude, episode) * np.clip(u, -1.0, 1.0)
    return [tuple(row) for row in scaled.tolist()]
