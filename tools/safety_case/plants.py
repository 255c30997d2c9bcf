"""PlantBox of a shield's box, many at once: drawn at its vertices and inside, constant or changing in every period."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.safety.magman import MagmanBox
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.runtime.safety.plant_box import PlantBox

Values = NDArray[np.float64]

SUBSTEPS = 8
"""Runge-Kutta steps per period; near a magnet the twin's two are not enough to tell a breach from an error."""
_WALL_SPEED = 0.01
"""000 App. A.2."""


class Physics(Protocol):
    """Lumped dynamics of a batch: parameters (p, n), state (2, n) of place and velocity, command (m, n) in SI."""

    nominal: Values
    varying: NDArray[np.bool_]
    """Which parameters the promise lets change while the plant moves; the others are any of the box, but constant."""

    def accelerate(self, parameters: Values, state: Values, command: Values) -> Values:
        """Return the acceleration (n,)."""

    def constrain(self, state: Values) -> Values:
        """Wrap or clamp a sampled state."""


class PendulumPhysics:
    """Parameters A, D, G."""

    def __init__(self, plants: PendulumBox) -> None:
        self.nominal = np.array([plants.gravity_per_s2, plants.damping_per_s, plants.gain_per_v_s2])
        self.varying = np.array([True, True, True])

    def accelerate(self, parameters: Values, state: Values, command: Values) -> Values:
        """-A sin(angle) - D velocity + G u."""
        a, d, g = parameters
        return np.asarray(-a * np.sin(state[0]) - d * state[1] + g * command[0])

    def constrain(self, state: Values) -> Values:
        """Wrap the angle into [-pi, pi)."""
        return np.stack([(state[0] + np.pi) % (2 * np.pi) - np.pi, state[1]])


class MagmanPhysics:
    """Parameters c1/m and b/m."""

    def __init__(self, plants: MagmanBox, rig: Rig) -> None:
        self.nominal = np.array([plants.pull_m6_per_a2_s2, plants.friction_per_s])
        # A held command has a potential only where its pull is constant: one that was strong downhill and weak uphill
        # would give energy for nothing.
        self.varying = np.array([False, True])
        names = [a.name for a in rig.actuators]
        self._coils = [(names.index(name), x) for name, x in plants.magnets.items()]
        self._c2 = plants.c2_m2
        track = next(o for o in rig.observations if o.name == plants.position)
        self._low, self._high = track.low, track.high

    def accelerate(self, parameters: Values, state: Values, command: Values) -> Values:
        """-(b/m) v - (c1/m) sum_j u_j d_j / (d_j^2 + c2)^3."""
        pull, friction = parameters
        force = -friction * state[1]
        for j, x in self._coils:
            d = state[0] - x
            force = force - pull * command[j] * d / (d * d + self._c2) ** 3
        return np.asarray(force)

    def constrain(self, state: Values) -> Values:
        """Stop at the walls and send the body slowly back."""
        x, v = state
        v = np.where(x < self._low, _WALL_SPEED, np.where(x > self._high, -_WALL_SPEED, v))
        return np.stack([np.clip(x, self._low, self._high), v])


def physics_of(plants: PlantBox, rig: Rig) -> Physics:
    """The dynamics that a prediction is made for."""
    if isinstance(plants, PendulumBox):
        return PendulumPhysics(plants)
    if isinstance(plants, MagmanBox):
        return MagmanPhysics(plants, rig)
    raise ValueError(f"there is no campaign for plants like {plants}")


def draw(nominal: Values, spread: float, n: int, rng: np.random.Generator) -> Values:
    """Parameters (p, n): half of them vertices of the box, half anywhere in it."""
    inside = rng.uniform(-1.0, 1.0, (len(nominal), n))
    corners = rng.choice([-1.0, 1.0], (len(nominal), n))
    return np.asarray(nominal[:, None] * (1.0 + spread * np.where(rng.random(n) < 0.5, corners, inside)))


def advance(
    physics: Physics, parameters: Values, state: Values, command: Values, duration_s: Values, substeps: int
) -> tuple[Values, Values]:
    """State after each one's duration (n,) under a held command, and the largest |velocity| (n,) on the way."""
    h = duration_s / substeps
    peak = np.abs(state[1])

    def rate(s: Values) -> Values:
        return np.stack([s[1], physics.accelerate(parameters, s, command)])

    for _ in range(substeps):
        k1 = rate(state)
        k2 = rate(state + 0.5 * h * k1)
        k3 = rate(state + 0.5 * h * k2)
        k4 = rate(state + h * k3)
        state = state + h / 6.0 * (k1 + 2.0 * (k2 + k3) + k4)
        peak = np.maximum(peak, np.abs(state[1]))
    return state, peak
