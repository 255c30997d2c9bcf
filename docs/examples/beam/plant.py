"""A ball that rolls on a beam, which a servo tilts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from onrig.hw.bounds import NotNegative, Positive
from onrig.hw.rig import Rig
from onrig.runtime.safety.plant_box import Sketch
from onrig.sim.plants.integrate import Array, Maths, V
from onrig.sim.plants.plant import Plant, unit


class Beam(Plant, frozen=True, tag="beam"):
    """State (position in m, tilt in rad, velocity in m/s), action (servo's angle in rad,); stops at both ends."""

    half_length: Annotated[Positive, unit("m")] = 0.2
    """Distance from the middle of the beam to a stop."""
    gravity: Annotated[Positive, unit("m/s^2")] = 9.81
    rolling: Annotated[NotNegative, unit("1/s")] = 0.1
    """Deceleration of the rolling ball per unit of velocity."""
    servo_s: Annotated[Positive, unit("s")] = 0.05
    """Time constant of the servo."""

    state_names: ClassVar[tuple[str, ...]] = ("position", "tilt", "velocity")

    @property
    def n_actions(self) -> int:
        """One servo."""
        return 1

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Time derivative of the state; the ball's rotation takes 2/7 of the accelerating force."""
        _, tilt, velocity = state
        acceleration = -(5.0 / 7.0) * self.gravity * xp.sin(tilt) - self.rolling * velocity
        return (velocity, (action[0] - tilt) / self.servo_s, acceleration)

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Stop the ball at the ends."""
        position, tilt, velocity = state
        beyond = xp.abs(position) > self.half_length
        outward = beyond & (position * velocity > 0.0)
        return (
            xp.clip(position, -self.half_length, self.half_length),
            tilt,
            xp.where(outward, 0.0, velocity),
        )

    def moves_freely(self, state: tuple[Array, ...]) -> Array | bool:
        """Whether the ball is clear of the stops."""
        clear: Array | bool = abs(state[0]) < 0.98 * self.half_length
        return clear

    def sketch(self, rig: Rig) -> Sketch:
        """Drawing for page and terminal."""
        return {"kind": "beam", "position": "position", "angle": "tilt"}
