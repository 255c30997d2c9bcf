"""Fourth-order Runge-Kutta with a held action (000 App. A), for one system or many at once."""

from __future__ import annotations

from typing import Final

from onrig.sim.plants import Plant
from onrig.sim.plants.maths import Maths, V, maths_for

SUBSTEPS: Final = 2
"""Steps per control period: the authors' code takes two of Ts/2, and near a magnet one is not enough (METHODS §1.1)."""


def rk4(xp: Maths[V], plant: Plant, state: tuple[V, ...], action: tuple[V, ...], h: float) -> tuple[V, ...]:
    """One classical Runge-Kutta step of ``h`` seconds."""
    half = 0.5 * h
    k1 = plant.derivative(xp, state, action)
    k2 = plant.derivative(xp, tuple([x + half * k for x, k in zip(state, k1, strict=True)]), action)
    k3 = plant.derivative(xp, tuple([x + half * k for x, k in zip(state, k2, strict=True)]), action)
    k4 = plant.derivative(xp, tuple([x + h * k for x, k in zip(state, k3, strict=True)]), action)
    w = h / 6.0
    return tuple(
        [x + w * (a + 2.0 * (b + c) + d) for x, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True)],
    )


def advance(
    plant: Plant, state: tuple[V, ...], action: tuple[V, ...], dt: float, substeps: int = SUBSTEPS
) -> tuple[V, ...]:
    """State after ``dt`` seconds under a held ``action``; no walls and no wrapping inside (see :func:`step`).

    Components are floats, or numpy arrays of one common shape for a batch of systems.
    """
    xp = maths_for(state[0])
    h = dt / substeps
    for _ in range(substeps):
        state = rk4(xp, plant, state, action, h)
    return state


def step(
    plant: Plant, state: tuple[V, ...], action: tuple[V, ...], dt: float, substeps: int = SUBSTEPS
) -> tuple[V, ...]:
    """State at the next sample: a whole period advanced, then walls met and angles wrapped."""
    state = advance(plant, state, action, dt, substeps)
    return plant.constrain(maths_for(state[0]), state)
