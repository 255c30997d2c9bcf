"""Exploration noise, drawn per episode from a stream of its own.

Noise lives in normalised action units and is added to the normalised policy action; the sum is clipped to [-1, 1].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onrig.runtime.explore.schedule import amplitudes, is_quiet
from onrig.runtime.explore.settings import Exploration, Gaussian, NoExploration, OrnsteinUhlenbeck, ParameterNoise

Signal = npt.NDArray[np.float64]


def ornstein_uhlenbeck(
    rng: np.random.Generator, steps: int, dimensions: int, gain: float, friction: float
) -> npt.NDArray[np.float64]:
    """Draw ``u`` of shape (steps, dimensions): u(k+1) = u(k) + gain N(0,1) - friction u(k), u(0) = 0.

    Source: de Bruin et al. 2018, App. B.2, with the symbols read literally (docs/methods.md, "Ornstein-Uhlenbeck");
    each dimension on its own.
    """
    noise = gain * rng.standard_normal((steps, dimensions))
    u = np.zeros((steps, dimensions))
    for k in range(1, steps):
        u[k] = (1.0 - friction) * u[k - 1] + noise[k - 1]
    return u


def raw_signal(exploration: Exploration, rng: np.random.Generator, steps: int, dimensions: int) -> Signal | None:
    """Draw an episode's signal (steps, dimensions), neither clipped nor scaled; None where none is added to actions."""
    match exploration:
        case OrnsteinUhlenbeck():
            return ornstein_uhlenbeck(rng, steps, dimensions, exploration.gain, exploration.friction)
        case Gaussian():
            return exploration.std * rng.standard_normal((steps, dimensions))
    return None


def unit_signal(
    exploration: Exploration, rng: np.random.Generator, steps: int, dimensions: int
) -> list[tuple[float, ...]]:
    """Draw an episode's signal clipped to [-1, 1], one (m,) tuple per step; empty where none is added to actions.

    The amplitude multiplies the *clipped* noise: scaled before the clip it would never become small (docs/methods.md,
    "Clipped noise").
    """
    raw = raw_signal(exploration, rng, steps, dimensions)
    return [] if raw is None else [tuple(row) for row in np.clip(raw, -1.0, 1.0).tolist()]


def episode_noise(
    exploration: Exploration, rng: np.random.Generator, episode: int, steps: int, actuators: Sequence[str]
) -> list[tuple[float, ...]]:
    """Exploration signal of one training episode as scheduled over episodes, before any gate, (m,) for each step.

    Raises ValueError for parameter noise, which is no signal but depends on the policy.
    """
    if isinstance(exploration, ParameterNoise):
        raise ValueError("parameter noise depends on the policy")
    raw = raw_signal(exploration, rng, steps, len(actuators))
    if raw is None or isinstance(exploration, NoExploration) or is_quiet(exploration.quiet, episode):
        return [(0.0,) * len(actuators)] * steps
    scaled = np.array(amplitudes(exploration, actuators, episode)) * np.clip(raw, -1.0, 1.0)
    return [tuple(row) for row in scaled.tolist()]
