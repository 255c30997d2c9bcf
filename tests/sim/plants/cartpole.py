"""A cart-pole as a lab would write it for its own package (Barto, Sutton and Anderson 1983, with friction).

Some of its variants contain the mistakes of a first attempt.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from onrig.hw.bounds import NotNegative, Positive
from onrig.sim.plants.integrate import Maths, V
from onrig.sim.plants.plant import Plant, unit


class CartPole(Plant, frozen=True, tag="cartpole"):
    """State (position in m, angle in rad from upright, speed in m/s, velocity in rad/s), action (force in N,)."""

    cart: Annotated[Positive, unit("kg")] = 1.0
    pole: Annotated[Positive, unit("kg")] = 0.1
    half_length: Annotated[Positive, unit("m")] = 0.5
    gravity: Annotated[Positive, unit("m/s^2")] = 9.81
    friction: Annotated[NotNegative, unit("N")] = 0.05

    state_names: ClassVar[tuple[str, ...]] = ("position", "angle", "speed", "velocity")

    @property
    def n_actions(self) -> int:
        return 1

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        _, angle, speed, velocity = state
        sin, cos = xp.sin(angle), xp.cos(angle)
        total = self.cart + self.pole
        force = xp.clip(action[0], -20.0, 20.0) - self.friction * xp.tanh(100.0 * speed)
        push = (force + self.pole * self.half_length * velocity * velocity * sin) / total
        turn = (self.gravity * sin - cos * push) / (self.half_length * (4.0 / 3.0 - self.pole * cos * cos / total))
        return (speed, velocity, push - self.pole * self.half_length * turn * cos / total, turn)


class Misspelt(CartPole, frozen=True, tag="misspelt"):
    """Calls a missing function."""

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        _, angle, speed, velocity = state
        return (speed, velocity, xp.cosine(angle), action[0])  # type: ignore[attr-defined]


class ForFloats(CartPole, frozen=True, tag="for_floats"):
    """Uses ``math``, which does not accept arrays."""

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        _, angle, speed, velocity = state
        return (speed, velocity, math.cos(angle), action[0])  # type: ignore[return-value]


class Short(CartPole, frozen=True, tag="short"):
    """Forgets a state."""

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        return super().derivative(xp, state, action)[1:]


class AtACorner(CartPole, frozen=True, tag="at_a_corner"):
    """Fails at the largest angle and force."""

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        position, angle, speed, velocity = state
        gap = xp.abs(angle - 0.5) + xp.abs(action[0] - 10.0)
        return (speed, velocity, 0.0 * position, 1.0 / gap)


class Later(CartPole, frozen=True, tag="later"):
    """Fails within its ranges, away from start and corners."""

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        if isinstance(state[1], float) and 0.2 < abs(state[1]) < 0.4:
            raise LookupError("no entry in the friction table")
        return super().derivative(xp, state, action)
