"""Agreement of a rig's sensors with each other, without the plant's parameters: velocities against their places.

A velocity v that reads ``gain`` times the rate of a place x, ``lag_s`` late and off by ``zero``, fulfils over a window
x(t2) - x(t1) = (integral of v + lag (v(t2) - v(t1)) - zero (t2 - t1)) / gain, which is linear in three unknowns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.sim.identification.model import LAG, SCALE, ZERO
from onrig.sim.identification.recording import Stretch
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array

_WINDOW_S: Final = 0.2
_LEAST_PERIODS: Final = 6
_LONGEST_LAG: Final = 4
"""Search range of the lag, in periods."""
_PARTS: Final = 4
"""Parts of the recording that are compared as well, which shows what changes in its course."""
_QUANTILE: Final = 3.29
"""Normal quantile of the 99.9 % interval."""
_TRIM: Final = 5.0
"""Residual of an outlier, in standard deviations (from the median)."""
_ROUNDS: Final = 4


class Interval(NamedTuple):
    """An estimate with its 99.9 % interval."""

    value: float
    low: float
    high: float

    def within(self, low: float, high: float) -> bool:
        """Whether the interval lies within these bounds."""
        return low <= self.low and self.high <= high

    def beyond(self, low: float, high: float) -> bool:
        """Whether the interval lies outside these bounds."""
        return self.high < low or self.low > high

    def scaled(self, factor: float) -> Interval:
        """The interval in another unit."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(self.value * factor, low, high)


class Agreement(NamedTuple):
    """How a velocity follows the rate of its place."""

    rate: Interval
    """Rate of the place per unit of velocity read, 1 / gain; 0 if the signals are unrelated."""
    lag_s: Interval
    """Delay of the velocity with respect to the place."""
    zero: Interval
    """Velocity read at rest."""
    scatter: float
    """Standard deviation of the windows' residuals (unit of the place)."""
    outliers: float
    """Share of windows that contradict the others."""


class Windows(NamedTuple):
    """Windows of one pair of sensors."""

    period_s: float
    moved: Array
    """(W,): displacement of the place."""
    velocity: Array
    """(W, n + 1 + 2 _LONGEST_LAG): readings from before to after the window."""

    def part(self, which: NDArray[np.intp]) -> Windows:
        """Some of the windows."""
        return Windows(self.period_s, self.moved[which], self.velocity[which])


class Pair(NamedTuple):
    """A velocity sensor, its place's sensor, and their agreement."""

    place: int
    """Index of the sensor."""
    velocity: int
    """Index of the sensor."""
    whole: Agreement | None
    """None where the signals do not determine it, such as that of a stuck sensor."""
    parts: tuple[Agreement | None, ...]
    swapped: Agreement | None
    """With each sensor taken for the other."""


def pairs_of(plant: Plant, rig: Rig, recorded: Sequence[Stretch]) -> list[Pair]:
    """Agreement of each measured velocity with its measured place, overall and in parts of the recording."""
    names = [s.name for s in rig.sensors]
    found = []
    for place, velocity in _kinematic_pairs(plant):
        if place in names and velocity in names:
            p, v = names.index(place), names.index(velocity)
            windows = _windows(plant, rig, recorded, p, v)
            parts = np.array_split(np.arange(len(windows.moved)), _PARTS)
            found.append(
                Pair(
                    p,
                    v,
                    agreement_of(windows),
                    tuple(agreement_of(windows.part(part)) for part in parts),
                    agreement_of(_windows(plant, rig, recorded, v, p)),
                )
            )
    return found


def _kinematic_pairs(plant: Plant) -> Iterator[tuple[str, str]]:
    """States (place, velocity) of which the second is the first one's rate, whatever the action."""
    rng = np.random.default_rng(0)
    states = tuple(rng.uniform(0.1, 1.0, (len(plant.state_names), 8)))
    rates = plant.derivative(BATCHED, states, tuple(rng.uniform(0.1, 1.0, (plant.n_actions, 8))))
    for place, rate in zip(plant.state_names, rates, strict=True):
        for velocity, state in zip(plant.state_names, states, strict=True):
            if np.array_equal(np.broadcast_to(rate, 8), state):
                yield place, velocity


def _windows(plant: Plant, rig: Rig, recorded: Sequence[Stretch], place: int, velocity: int) -> Windows:
    """Disjoint windows of the stretches, without those near a wall by what was measured."""
    period_s = recorded[0].period_s
    n = max(_LEAST_PERIODS, round(_WINDOW_S / period_s))
    moved, velocities = [np.empty(0)], [np.empty((0, n + 1 + 2 * _LONGEST_LAG))]
    for s in recorded:
        firsts = np.arange(_LONGEST_LAG, len(s.readings) - n - _LONGEST_LAG, n)
        at = firsts[:, None] + np.arange(-_LONGEST_LAG, n + 1 + _LONGEST_LAG)
        seen = np.zeros((len(plant.state_names), *at.shape))
        for i, sensor in enumerate(rig.sensors):
            seen[plant.state_names.index(sensor.name)] = s.readings[at, i]
        free = np.all(np.broadcast_to(plant.moves_freely(tuple(seen)), at.shape), axis=1)
        moved.append((s.readings[firsts + n, place] - s.readings[firsts, place])[free])
        velocities.append(s.readings[at, velocity][free])
    return Windows(period_s, np.concatenate(moved), np.concatenate(velocities))


def agreement_of(windows: Windows) -> Agreement | None:
    """Robust fit of gain, lag and zero; None where the signals do not determine them."""
    shifts = range(-_LONGEST_LAG, _LONGEST_LAG + 1)
    fits = [fit for shift in shifts if (fit := _at_shift(windows, shift)) is not None]
    return min(fits, key=lambda fit: fit.scatter, default=None)


def _at_shift(windows: Windows, shift: int) -> Agreement | None:
    """The fit around a lag of so many periods."""
    period_s, moved = windows.period_s, windows.moved
    v = windows.velocity[:, _LONGEST_LAG + shift : windows.velocity.shape[1] - _LONGEST_LAG + shift]
    span_s = (v.shape[1] - 1) * period_s
    integral = period_s * (v @ _weights(v.shape[1]))
    design = np.stack([integral, v[:, -1] - v[:, 0], np.full(len(v), span_s)], axis=1)
    kept = np.ones(len(v), bool)
    for _ in range(_ROUNDS):
        some = design[kept]
        if len(some) < 3 * design.shape[1] or np.linalg.matrix_rank(some / (np.abs(some).max(axis=0) + 1e-300)) < 3:
            return None
        rate, late, off = found = np.linalg.lstsq(some, moved[kept], rcond=None)[0]
        residuals = moved - design @ found
        scale = 1.4826 * float(np.median(np.abs(residuals[kept])))
        kept = np.abs(residuals) <= _TRIM * max(scale, 1e-12 * float(np.abs(moved).max()))
    covariance = _covariance(design[kept], residuals[kept])
    if rate == 0.0 or covariance is None:
        return None
    at = shift * period_s
    slopes = np.array([[1.0, 0.0, 0.0], [-late / rate**2, 1.0 / rate, 0.0], [off / rate**2, 0.0, -1.0 / rate]])
    widths = _QUANTILE * np.sqrt(np.einsum("ki,ij,kj->k", slopes, covariance, slopes))
    values = (rate, late / rate + at, -off / rate)
    intervals = [Interval(float(x), float(x - w), float(x + w)) for x, w in zip(values, widths, strict=True)]
    scatter = float(np.sqrt(np.mean(residuals[kept] ** 2)))
    return Agreement(*intervals, scatter, float(np.mean(~kept)))


def _weights(samples: int) -> Array:
    """Weights of Gregory's quadrature to third order; the trapezoid's error would look like a gain of 1/2 %."""
    ends = np.array([3.0 / 8.0, 7.0 / 6.0, 23.0 / 24.0])
    return np.concatenate([ends, np.ones(samples - 6), ends[::-1]])


def _covariance(design: Array, residuals: Array) -> Array | None:
    """Heteroscedasticity-robust covariance (HC3) of a linear fit; None for a singular one."""
    if len(design) < 3 * design.shape[1]:
        return None
    try:
        inverse = np.linalg.inv(design.T @ design)
    except np.linalg.LinAlgError:
        return None
    leverage = np.einsum("wi,ij,wj->w", design, inverse, design)
    scores = design * (residuals / np.maximum(1.0 - leverage, 1e-3))[:, None]
    return np.asarray(inverse @ (scores.T @ scores) @ inverse)


def found_errors(rig: Rig, pairs: Sequence[Pair]) -> dict[str, float]:
    """Scales, lags and zeros of velocity sensors that certainly differ from those of an exact one, by name."""
    errors = {}
    for pair in pairs:
        name, whole = rig.sensors[pair.velocity].name, pair.whole
        if whole is None:
            continue
        rate = whole.rate.scaled(1.0 if whole.rate.value > 0 else -1.0)
        if rate.beyond(1.0, 1.0):
            errors[SCALE + name] = 1.0 / rate.value
        if whole.lag_s.beyond(0.0, 0.0):
            errors[LAG + name] = whole.lag_s.value
        if whole.zero.beyond(0.0, 0.0):
            errors[ZERO + name] = whole.zero.value
    return errors
