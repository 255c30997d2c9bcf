"""Fourth-order Runge-Kutta with a held action (de Bruin et al. 2018, App. A), for one plant or many at once.

The code is written once for floats and numpy arrays, using only arithmetic and the functions of :class:`Maths`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from onrig.runtime.maths import BATCHED, SCALAR, Array, Maths, V, maths_for

__all__ = [
    "BATCHED",
    "SCALAR",
    "SUBSTEPS",
    "Array",
    "Maths",
    "V",
    "advance",
    "apply_backlash",
    "effective_action",
    "maths_for",
    "rk4",
    "step",
]

_OFF: Final = msgspec.UNSET
SUBSTEPS: Final = 2
"""Steps per control period: two, as in the paper's code, because one is not accurate enough near a magnet."""


class Dynamics(Protocol):
    """Interface of integrable dynamics; see ``onrig.sim.plants.plant``."""

    @property
    def dry_friction(self) -> Any:
        """Deceleration by dry friction, or unset."""

    @property
    def dead_band(self) -> Any:
        """Largest action without effect, or unset."""

    @property
    def saturation(self) -> Any:
        """Largest effective action, or unset."""

    @property
    def velocities_at(self) -> tuple[int, ...]:
        """Indices of the states that dry friction brakes."""

    def integrate(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...], h: V | float) -> tuple[V, ...]:
        """Return the state after ``h`` seconds, in one step, without imperfections."""

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Return the time derivative of the state."""

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Wrap angles and apply walls, at a sample."""


def rk4(xp: Maths[V], plant: Dynamics, state: tuple[V, ...], action: tuple[V, ...], h: V | float) -> tuple[V, ...]:
    """Return the state after one classical Runge-Kutta step of ``h`` seconds, without imperfections."""
    half_step = 0.5 * h
    k1 = plant.derivative(xp, state, action)
    k2 = plant.derivative(xp, tuple([x + half_step * k for x, k in zip(state, k1, strict=True)]), action)
    k3 = plant.derivative(xp, tuple([x + half_step * k for x, k in zip(state, k2, strict=True)]), action)
    k4 = plant.derivative(xp, tuple([x + h * k for x, k in zip(state, k3, strict=True)]), action)
    w = h / 6.0
    return tuple(
        [x + w * (a + 2.0 * (b + c) + d) for x, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True)],
    )


def advance(
    plant: Dynamics, state: tuple[V, ...], action: tuple[V, ...], dt: V | float, substeps: int = SUBSTEPS
) -> tuple[V, ...]:
    """Return the state after ``dt`` seconds under a held ``action``, without walls or wrapping (see :func:`step`).

    Components are floats, or numpy arrays of one common shape for a batch of plants.
    """
    xp = maths_for(state[0])
    h = dt / substeps
    action = effective_action(xp, plant, action)
    friction = plant.dry_friction
    for _ in range(substeps):
        next_state = plant.integrate(xp, state, action, h)
        state = next_state if friction is _OFF else _apply_dry_friction(xp, plant, state, next_state, friction * h)
    return state


def effective_action(xp: Maths[V], plant: Dynamics, action: tuple[V, ...]) -> tuple[V, ...]:
    """Return the action after the plant's dead band and saturation."""
    if plant.dead_band is not _OFF:
        action = tuple([_excess(xp, u, plant.dead_band) for u in action])
    if plant.saturation is not _OFF:
        action = tuple([_clip(xp, u, plant.saturation) for u in action])
    return action


def apply_backlash(
    xp: Maths[V], backlash: V | float, previous_output: tuple[V, ...], action: tuple[V, ...]
) -> tuple[V, ...]:
    """Return the action after a gear's play of width ``backlash``, given the play's last output (the play operator).

    The output follows the action at a distance of half the width, and holds its value while the action crosses the gap.
    """
    half_width = 0.5 * backlash
    return tuple(
        [
            xp.where(output < u - half_width, u - half_width, xp.where(output > u + half_width, u + half_width, output))
            for output, u in zip(previous_output, action, strict=True)
        ]
    )


def step(
    plant: Dynamics, state: tuple[V, ...], action: tuple[V, ...], dt: float, substeps: int = SUBSTEPS
) -> tuple[V, ...]:
    """Return the state at the next sample: one period ahead, with walls applied and angles wrapped."""
    state = advance(plant, state, action, dt, substeps)
    return plant.constrain(maths_for(state[0]), state)


def _apply_dry_friction(
    xp: Maths[V], plant: Dynamics, old_state: tuple[V, ...], new_state: tuple[V, ...], reduction: V | float
) -> tuple[V, ...]:
    """Return the state after dry friction has reduced each velocity by ``reduction``.

    A plant that remains at rest keeps its complete state, so that it does not creep.
    """
    velocities: list[Any] = list(new_state)
    is_stuck: Any = True
    for index in plant.velocities_at:
        velocities[index] = velocity = _excess(xp, new_state[index], reduction)
        is_at_rest = (old_state[index] == 0.0) & (velocity == 0.0)
        is_stuck = is_at_rest if is_stuck is True else is_stuck & is_at_rest
    return tuple(
        [xp.where(is_stuck, old_value, new_value) for old_value, new_value in zip(old_state, velocities, strict=True)]
    )


def _clip(xp: Maths[V], value: V, limit: V | float) -> V:
    """Clip a value to ``limit`` in either direction."""
    return xp.where(value > limit, limit, xp.where(value < -limit, -limit, value))


def _excess(xp: Maths[V], value: V, threshold: V | float) -> V:
    """Return the excess of a value beyond a threshold in either direction; 0 within it."""
    return xp.where(value > threshold, value - threshold, xp.where(value < -threshold, value + threshold, 0.0))
