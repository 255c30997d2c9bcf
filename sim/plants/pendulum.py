"""The pendulum swing-up of 000 App. A.1: a mass on an arm, driven by a DC motor, hanging down at angle 0."""

from __future__ import annotations

import math
from typing import ClassVar, Final, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Positive
from onrig.sim.plants.maths import Maths, V

INERTIA: Final = {"paper": 9.41e-4, "hardware": 1.91e-4}
"""kg m^2.  000 prints 9.41e-4; the authors' code and three public files of the same device have 1.91e-4, which fits a
point mass of M l^2 = 9.7e-5 far better (METHODS C1).  Both presets ship; the text's is the default."""


class Pendulum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pendulum", tag_field="kind"):
    """Parameters in SI units, by default those of 000 App. A.1.  State (angle, velocity), action (motor voltage,)."""

    inertia: Literal["paper", "hardware"] | Positive = "paper"
    """J in kg m^2, or the name of a preset."""
    mass: Positive = 5.5e-2
    """M in kg."""
    gravity: NotNegative = 9.81
    """g in m/s^2."""
    length: Positive = 4.2e-2
    """l in m, to the centre of mass."""
    damping: NotNegative = 3e-6
    """b in kg m^2/s."""
    torque_constant: NotNegative = 5.36e-2
    """K in N m/A."""
    resistance: Positive = 9.5
    """R in ohm."""

    state_names: ClassVar[tuple[str, ...]] = ("angle", "velocity")
    n_actions: ClassVar[int] = 1

    @property
    def inertia_kg_m2(self) -> float:
        """J as a number."""
        return INERTIA[self.inertia] if isinstance(self.inertia, str) else self.inertia

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Time derivative of (angle in rad, velocity in rad/s) under a motor voltage in V (000 App. A.1)."""
        angle, velocity = state
        K, R = self.torque_constant, self.resistance
        gravity = self.mass * self.gravity * self.length * xp.sin(angle)
        friction = (self.damping + K * K / R) * velocity
        return (velocity, (K / R * action[0] - gravity - friction) / self.inertia_kg_m2)

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Wrap the angle into [-pi, pi), as at a sample."""
        angle, velocity = state
        wrapped = (angle + math.pi) % (2.0 * math.pi) - math.pi
        # A remainder of a tiny negative number rounds up to the whole turn.
        return (xp.where(wrapped < math.pi, wrapped, -math.pi), velocity)
