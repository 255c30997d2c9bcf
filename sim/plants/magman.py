"""The magnetic manipulator of 000 App. A.2: a steel ball on a track above four electromagnets."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.sim.plants.maths import Maths, V


class Magman(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="magman", tag_field="kind"):
    """Parameters in SI units, by default those of 000 App. A.2.

    State (position in m, velocity in m/s), action (squared current in A^2 of each of the four coils,).
    """

    mass: Positive = 3.2e-2
    """m in kg."""
    friction: NotNegative = 1.613e-2
    """b in N s/m."""
    c1: Quantity = 5.52e-10
    """N m^5/A^2."""
    c2: Positive = 1.75e-4
    """m^2."""
    first_magnet: Quantity = 0.025
    """Centre of the first coil in m: 0.025 j with j from 1, as printed; 0 would read "position relative to the centre
    of the first magnet" to the letter (METHODS C2)."""
    magnet_spacing: Positive = 0.025
    """m."""
    wall_low: Quantity = -0.035
    """m."""
    wall_high: Quantity = 0.105
    """m."""
    wall_speed: NotNegative = 0.01
    """Speed in m/s away from a wall after meeting it (METHODS C3)."""

    state_names: ClassVar[tuple[str, ...]] = ("position", "velocity")
    n_actions: ClassVar[int] = 4

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Time derivative of (position, velocity) under four squared currents (000 App. A.2)."""
        position, velocity = state
        centre, spacing, c2 = self.first_magnet, self.magnet_spacing, self.c2
        force = -self.friction * velocity
        for squared_current in action:
            d = position - centre
            reach = d * d + c2
            force = force - self.c1 * d / (reach * reach * reach) * squared_current
            centre += spacing
        return (velocity, force / self.mass)

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Stop a ball beyond a wall at the wall and send it slowly back, as at a sample (METHODS C3)."""
        position, velocity = state
        below, above = position < self.wall_low, position > self.wall_high
        return (
            xp.where(below, self.wall_low, xp.where(above, self.wall_high, position)),
            xp.where(below, self.wall_speed, xp.where(above, -self.wall_speed, velocity)),
        )
