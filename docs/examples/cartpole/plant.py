"""A cart that carries a pole (Barto, Sutton and Anderson 1983), with friction on the track."""

from __future__ import annotations

from typing import Annotated, ClassVar

from onrig.hw.bounds import NotNegative, Positive
from onrig.hw.rig import Rig
from onrig.runtime.safety.plant_box import Sketch
from onrig.sim.plants.integrate import Maths, V
from onrig.sim.plants.plant import Plant, unit, wrapped


class CartPole(Plant, frozen=True, tag="cartpole"):
    """State (position in m, angle in rad from upright, speed in m/s, rate in rad/s), action (force in N,)."""

    cart: Annotated[Positive, unit("kg")] = 1.0
    """Mass of the cart."""
    pole: Annotated[Positive, unit("kg")] = 0.1
    """Mass of the pole."""
    half_length: Annotated[Positive, unit("m")] = 0.5
    """Distance from the pivot to the middle of the pole."""
    gravity: Annotated[Positive, unit("m/s^2")] = 9.81
    damping: Annotated[NotNegative, unit("N s/m")] = 0.5
    """Friction of the cart on its track."""

    state_names: ClassVar[tuple[str, ...]] = ("position", "angle", "speed", "rate")

    @property
    def n_actions(self) -> int:
        """One force."""
        return 1

    @property
    def velocities_at(self) -> tuple[int, ...]:
        """Speed and rate."""
        return (2, 3)

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Time derivative of the state under a force; ``xp`` provides functions for floats or arrays."""
        _, angle, speed, rate = state
        sin, cos, total = xp.sin(angle), xp.cos(angle), self.cart + self.pole
        moment = self.pole * self.half_length
        push = (action[0] - self.damping * speed + moment * rate * rate * sin) / total
        turn = (self.gravity * sin - cos * push) / (self.half_length * (4.0 / 3.0 - self.pole * cos * cos / total))
        return (speed, rate, push - moment * turn * cos / total, turn)

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Wrap the angle into one turn, like the rig's encoder."""
        position, angle, speed, rate = state
        return (position, wrapped(xp, angle), speed, rate)

    def sketch(self, rig: Rig) -> Sketch:
        """Drawing for page and terminal."""
        return {"kind": "cartpole", "position": "position", "angle": "angle"}
