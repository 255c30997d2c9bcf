"""Agreement of a rig's sensors with each other, without a model of the plant: velocities against their places.

A velocity v that reads ``gain`` times the rate of a place x, ``lag_s`` late and off by ``zero`` fulfils, over any window,
x(t2) - x(t1) = (integral of v + lag (v(t2) - v(t1)) - zero (t2 - t1)) / gain, which is linear in three unknowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.identification.recording import Stretch
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array

_WINDOW_S: Final = 0.2
_LEAST_PERIODS: Final = 6
_LONGEST_LAG: Final = 4
"""Search range of the lag, in periods."""
_QUANTILE: Final = 3.29
"""Normal quantile of the 99.9 % interval."""
_TRIM: Final = 5.0
"""Windows with a residual beyond this many standard deviations (from the median) are outliers, such as walls."""
_ROUNDS: Final = 4


class Interval(NamedTuple):
    """An estimate with its 99.9 % interval."""

    value: float
    low: float
    high: float


class Agreement(NamedTuple):
    """How a velocity follows the rate of its place."""

    rate: Interval
    """Rate of the place per unit of velocity read, 1 / gain: 0 if neither tells of the other."""
    lag_s: Interval
    """Time by which the velocity is later than the place."""
    zero: Interval
    """Velocity read at rest."""
    scatter: float
    """Standard deviation of the windows' residuals (unit of the place)."""
    motion: float
    """Standard deviation of the windows' displacements (unit of the place)."""
    outliers: NDArray[np.bool_]
    """(W,): windows that disagree with the others."""


class Displacements(NamedTuple):
    """Windows of one pair of sensors."""

    period_s: float
    moved: Array
    """(W,): displacement of the place."""
    velocity: Array
    """(W, n + 1 + 2 _LONGEST_LAG): velocities from before to after the window."""


def kinematic_pairs(plant: Plant) -> list[tuple[str, str]]:
    """States (place, velocity) of a plant of which the second is the first one's rate, whatever the action."""
    rng = np.random.default_rng(0)
    states = tuple(rng.uniform(0.1, 1.0, (len(plant.state_names), 8)))
    rates = plant.derivative(BATCHED, states, tuple(rng.uniform(0.1, 1.0, (plant.n_actions, 8))))
    return [
        (place, velocity)
        for place, rate in zip(plant.state_names, rates, strict=True)
        for velocity, state in zip(plant.state_names, states, strict=True)
        if np.array_equal(np.broadcast_to(rate, 8), state)
    ]


def displacements(recorded: Sequence[Stretch], place: int, velocity: int) -> Displacements:
    """Disjoint windows of the stretches; ``place`` and ``velocity`` are indices of sensors."""
    period_s = recorded[0].period_s
    n = max(_LEAST_PERIODS, round(_WINDOW_S / period_s))
    moved, velocities = [np.empty(0)], [np.empty((0, n + 1 + 2 * _LONGEST_LAG))]
    for s in recorded:
        firsts = np.arange(_LONGEST_LAG, len(s.readings) - n - _LONGEST_LAG, n)
        at = firsts[:, None] + np.arange(-_LONGEST_LAG, n + 1 + _LONGEST_LAG)
        moved.append(s.readings[firsts + n, place] - s.readings[firsts, place])
        velocities.append(s.readings[at, velocity])
    return Displacements(period_s, np.concatenate(moved), np.concatenate(velocities))


def agreement_of(seen: Displacements) -> Agreement | None:
    """Robust fit of gain, lag and zero; None where the signals do not determine them."""
    fits = [fit for shift in range(-_LONGEST_LAG, _LONGEST_LAG + 1) if (fit := _at_shift(seen, shift)) is not None]
    return min(fits, key=lambda fit: fit.scatter, default=None)


def _at_shift(seen: Displacements, shift: int) -> Agreement | None:
    """The fit around a lag of so many periods."""
    first, last = _LONGEST_LAG + shift, seen.velocity.shape[1] - _LONGEST_LAG + shift
    v = seen.velocity[:, first:last]
    span_s = (v.shape[1] - 1) * seen.period_s
    integral = seen.period_s * (v @ _weights(v.shape[1]))
    design = np.stack([integral, v[:, -1] - v[:, 0], np.full(len(v), span_s)], axis=1)
    kept = np.ones(len(v), bool)
    for _ in range(_ROUNDS):
        some = design[kept]
        if len(some) < 2 * design.shape[1] or np.linalg.matrix_rank(some / (np.abs(some).max(axis=0) + 1e-300)) < 3:
            return None
        found = np.linalg.lstsq(some, seen.moved[kept], rcond=None)[0]
        residuals = seen.moved - design @ found
        scale = 1.4826 * float(np.median(np.abs(residuals[kept])))
        kept = np.abs(residuals) <= _TRIM * max(scale, 1e-12 * float(np.abs(seen.moved).max()))
    some, left = design[kept], residuals[kept]
    inverse = np.linalg.inv(some.T @ some)
    leverage = np.einsum("wi,ij,wj->w", some, inverse, some)
    scores = some * (left / np.maximum(1.0 - leverage, 1e-3))[:, None]
    covariance = inverse @ (scores.T @ scores) @ inverse
    rate, late, off = found
    if rate == 0.0:
        return None
    width = _QUANTILE * np.sqrt(np.diag(covariance))
    # Delta method for the ratios late / rate and -off / rate.
    ratios = [
        (sign * part / rate, _QUANTILE * float(np.sqrt(_ratio_variance(part, rate, covariance, i))))
        for i, part, sign in ((1, late, 1.0), (2, off, -1.0))
    ]
    lag, zero = (Interval(float(value), float(value - w), float(value + w)) for value, w in ratios)
    at = shift * seen.period_s
    return Agreement(
        Interval(float(rate), float(rate - width[0]), float(rate + width[0])),
        Interval(lag.value + at, lag.low + at, lag.high + at),
        zero,
        float(np.sqrt(np.mean(left**2))) if len(left) else np.inf,
        float(np.std(seen.moved)),
        ~kept,
    )


def _weights(samples: int) -> Array:
    """Weights of Gregory's quadrature to third order; the trapezoid's error would look like a gain of 1/2 %."""
    ends = np.array([3.0 / 8.0, 7.0 / 6.0, 23.0 / 24.0])
    return np.concatenate([ends, np.ones(samples - 6), ends[::-1]])


def _ratio_variance(part: float, rate: float, covariance: Array, i: int) -> float:
    slope = np.array([-part / rate**2, 1.0 / rate])
    return float(slope @ covariance[np.ix_([0, i], [0, i])] @ slope)
