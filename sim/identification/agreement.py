"""Agreement of a rig's sensors with each other, independent of the plant: velocities against their positions.

A velocity v that reads ``gain`` times the rate of a position x, delayed by ``lag_s`` and offset by ``zero``, satisfies
over each window

x(t2) - x(t1) = (integral of v + lag (v(t2) - v(t1)) - zero (t2 - t1)) / gain,

which is linear in three unknowns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from onrig.hw.rig import Rig
from onrig.sim.identification.model import LAG_PREFIX, SCALE_PREFIX, kinematic_pairs
from onrig.sim.identification.recording import Stretch
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.options import ZERO_PREFIX, sensor_half_range

_WINDOW_S: Final = 0.2
_MIN_PERIODS: Final = 6
_MAX_LAG: Final = 4
"""Largest lag, in either direction, that is searched for, in periods."""
_N_PARTS: Final = 4
"""Number of parts of the recording that are also compared individually, to reveal changes."""
_QUANTILE: Final = 0.9995
"""Quantile of the 99.9 % interval's upper end."""
_TRIM: Final = 5.0
"""Residual above which a window is an outlier, in standard deviations estimated from the median."""
_MAX_NOISE_FRACTION: Final = (0.1, 0.5)
"""Largest shares of the variances of the displacement and of the change of velocity that may be noise."""
_MIN_DISPLACEMENT: Final = 0.2
"""Minimum displacement as a share of the path, because motion with a period of about one window cancels out."""
_MAX_LAG_DISTANCE: Final = 0.75
"""Maximum distance between a fitted lag and the shift of its fit, in periods."""
_MIN_OUTLIER_FRACTION: Final = 0.05
"""Lower bound on the residual of an outlier, as a share of the displacements' standard deviation."""
_N_ROUNDS: Final = 4
_NEGLIGIBLE_SCALE_ERROR: Final = 1e-3
"""Error of a scale, or zero as a share of the half-range, that is below the quadrature's error and therefore too small
to become a parameter."""


class Interval(NamedTuple):
    """An estimate with its 99.9 % interval."""

    value: float
    low: float
    high: float

    def lies_within(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high

    def lies_outside(self, low: float, high: float) -> bool:
        return self.high < low or self.low > high

    def rescaled(self, factor: float) -> Interval:
        """Return the interval in another unit."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(self.value * factor, low, high)


_UNKNOWN: Final = Interval(0.0, -np.inf, np.inf)


class Agreement(NamedTuple):
    """Relation of a velocity to the rate of its position."""

    rate: Interval
    """Rate of the position per unit of velocity reading, 1 / gain; 0 if the signals are unrelated."""
    lag_s: Interval
    """Delay of the velocity with respect to the position."""
    zero: Interval
    """Velocity reading at rest."""
    scatter: float
    """Standard deviation of the windows' residuals (unit of the position)."""
    outliers: float
    """Share of windows that contradict the majority."""
    windows: int
    """Number of windows."""


class Windows(NamedTuple):
    """Windows of one pair of sensors."""

    period_s: float
    displacements: Array
    """(W,): displacement of the position."""
    velocity: Array
    """(W, n + 1 + 2 _MAX_LAG): readings of the window and of ``_MAX_LAG`` periods on either side."""

    def part(self, index: NDArray[np.intp]) -> Windows:
        return Windows(self.period_s, self.displacements[index], self.velocity[index])


class Pair(NamedTuple):
    """A velocity sensor, its position sensor, and their agreement."""

    position: int
    """Index of the position sensor."""
    velocity: int
    """Index of the velocity sensor."""
    overall: Agreement | None
    """Agreement over the recording; None if the signals do not determine it, as for a stuck sensor."""
    parts: tuple[Agreement | None, ...]
    stuck: tuple[int, int] | None
    """Index of the sensor whose reading is constant while the other's changes, and the part of the recording, numbered
    from 1 (0: all of it)."""
    swapped: Agreement | None
    """Agreement if the two sensors are exchanged."""


def sensor_pairs(plant: Plant, rig: Rig, recording: Sequence[Stretch]) -> list[Pair]:
    """Compare each measured velocity with its measured position, overall and in parts of the recording."""
    names = [s.name for s in rig.sensors]
    pairs = []
    for position, velocity in kinematic_pairs(plant):
        if position in names and velocity in names:
            p, v = names.index(position), names.index(velocity)
            windows = _windows(plant, rig, recording, p, v)
            parts = [
                windows.part(indices) for indices in np.array_split(np.arange(len(windows.displacements)), _N_PARTS)
            ]
            swapped = agreement_of(_windows(plant, rig, recording, v, p))
            noise = max(_noise(np.concatenate([s.readings[:, p] for s in recording])), rig.sensors[p].resolution)
            stuck = next(
                (
                    (p if indices else v, k)
                    for k, part in enumerate([windows, *parts])
                    for indices in _find_stuck_sensor(part, noise)
                ),
                None,
            )
            pairs.append(Pair(p, v, agreement_of(windows), tuple(map(agreement_of, parts)), stuck, swapped))
    return pairs


def _find_stuck_sensor(part: Windows, noise: float) -> Iterator[bool]:
    """Yield True if the position, or False if the velocity, is stuck while the other moves; nothing if neither is."""
    if not len(part.displacements):
        return
    if np.ptp(part.velocity) == 0.0 and np.std(part.displacements) > _TRIM * noise:
        yield False
    elif np.ptp(part.displacements) == 0.0 and np.std(part.velocity) > _TRIM * _noise(part.velocity):
        yield True


def _noise(readings: Array) -> float:
    """Return the standard deviation of the noise, from third differences along the last axis; robust to kinks in the
    motion."""
    third_differences = np.abs(np.diff(readings, 3, axis=-1))
    return 1.4826 * float(np.median(third_differences)) / float(np.sqrt(20.0)) if third_differences.size else 0.0


def _windows(plant: Plant, rig: Rig, recording: Sequence[Stretch], position: int, velocity: int) -> Windows:
    """Return disjoint windows of the stretches, except those that the measurements place near a wall."""
    period_s = recording[0].period_s
    n = max(_MIN_PERIODS, round(_WINDOW_S / period_s))
    displacements, velocities = [np.empty(0)], [np.empty((0, n + 1 + 2 * _MAX_LAG))]
    for s in recording:
        first_indices = np.arange(_MAX_LAG, len(s.readings) - n - _MAX_LAG, n)
        indices = first_indices[:, None] + np.arange(-_MAX_LAG, n + 1 + _MAX_LAG)
        measured_states = np.zeros((len(plant.state_names), *indices.shape))
        for i, sensor in enumerate(rig.sensors):
            measured_states[plant.state_names.index(sensor.name)] = s.readings[indices, i]
        is_free = np.all(np.broadcast_to(plant.moves_freely(tuple(measured_states)), indices.shape), axis=1)
        displacements.append((s.readings[first_indices + n, position] - s.readings[first_indices, position])[is_free])
        velocities.append(s.readings[indices, velocity][is_free])
    return Windows(period_s, np.concatenate(displacements), np.concatenate(velocities))


def agreement_of(windows: Windows) -> Agreement | None:
    """Fit gain, lag and zero robustly; return None if the signals do not determine them."""
    shifts = range(-_MAX_LAG, _MAX_LAG + 1)
    fits = {shift: fit for shift in shifts if (fit := _fit_at_shift(windows, shift)) is not None}
    if len(fits) <= _MAX_LAG:  # too little motion at most shifts
        return None
    # A sine can be explained at any shift, but with a wrong rate at shifts far from its lag.
    consistent_fits = [
        fit for shift, fit in fits.items() if abs(fit.lag_s.value / windows.period_s - shift) <= _MAX_LAG_DISTANCE
    ]
    return min(consistent_fits, key=lambda fit: fit.scatter, default=None)


def _fit_at_shift(windows: Windows, shift: int) -> Agreement | None:
    """Fit gain, lag and zero for lags near a shift in whole periods; return None if they are not determined."""
    period_s, displacements = windows.period_s, windows.displacements
    v = windows.velocity[:, _MAX_LAG + shift : windows.velocity.shape[1] - _MAX_LAG + shift]
    span_s = (v.shape[1] - 1) * period_s
    integral = period_s * (v @ _weights(v.shape[1]))
    if np.std(integral) < _MIN_DISPLACEMENT * span_s * np.std(v):  # only the quadrature error remains
        return None
    design = np.stack([integral, v[:, -1] - v[:, 0], np.full(len(v), span_s)], axis=1)
    is_inlier, min_residual = np.ones(len(v), bool), _MIN_OUTLIER_FRACTION * float(np.std(displacements))
    for _ in range(_N_ROUNDS):
        inlier_design = design[is_inlier]
        if (
            len(inlier_design) < 3 * design.shape[1]
            or np.linalg.matrix_rank(inlier_design / (np.abs(inlier_design).max(axis=0) + 1e-300)) < 3
        ):
            return None
        rate, lag_coefficient, offset = coefficients = np.linalg.lstsq(
            inlier_design, displacements[is_inlier], rcond=None
        )[0]
        residuals = displacements - design @ coefficients
        scale = 1.4826 * float(np.median(np.abs(residuals[is_inlier])))
        is_inlier = np.abs(residuals) <= max(_TRIM * scale, min_residual)
    covariance = _covariance(design[is_inlier], residuals[is_inlier])
    if covariance is None:
        return None
    scatter, outliers = float(np.sqrt(np.mean(residuals[is_inlier] ** 2))), float(np.mean(~is_inlier))
    if rate == 0.0:  # the position never changes
        return Agreement(Interval(0.0, 0.0, 0.0), _UNKNOWN, _UNKNOWN, scatter, outliers, len(displacements))
    shift_s, dilution = shift * period_s, _dilution(windows, design[is_inlier])
    if dilution is None:
        return None
    slopes = np.array(
        [[1.0, 0.0, 0.0], [-lag_coefficient / rate**2, 1.0 / rate, 0.0], [offset / rate**2, 0.0, -1.0 / rate]]
    )
    widths = stdtrit(int(is_inlier.sum()) - 3, _QUANTILE) * np.sqrt(
        np.einsum("ki,ij,kj->k", slopes, covariance, slopes)
    )
    values = (rate, lag_coefficient / rate + shift_s, -offset / rate)
    max_reduction = (float(abs(rate)) * dilution[0], float(abs(lag_coefficient / rate)) * dilution[1], 0.0)
    rate_interval, lag, zero = (_widened_interval(*parts) for parts in zip(values, widths, max_reduction, strict=True))
    return Agreement(rate_interval, lag, zero, scatter, outliers, len(displacements))


def _widened_interval(value: float, width: float, max_reduction: float) -> Interval:
    """Return the interval of an estimate whose magnitude noise may have reduced by up to ``max_reduction``."""
    value, width = float(value), float(width)
    low, high = value - width, value + width
    return Interval(value, low - max_reduction * (value < 0), high + max_reduction * (value > 0))


def _dilution(windows: Windows, design: Array) -> tuple[float, float] | None:
    """Return the largest relative reductions of rate and lag by noise in the velocity; None if it may hide them."""
    noise = _noise(windows.velocity)
    inverse = np.diag(np.linalg.inv(design.T @ design))
    weights = windows.period_s * _weights(windows.velocity.shape[1] - 2 * _MAX_LAG)
    reductions = len(design) * noise**2 * np.array([weights @ weights, 2.0]) * inverse[:2]
    return None if np.any(reductions > _MAX_NOISE_FRACTION) else (float(reductions[0]), float(reductions[1]))


def _weights(samples: int) -> Array:
    """Return the weights of Gregory's quadrature to third order.

    The error of the trapezoidal rule would look like a gain error of 0.5 %.
    """
    end_weights = np.array([3.0 / 8.0, 7.0 / 6.0, 23.0 / 24.0])
    return np.concatenate([end_weights, np.ones(samples - 6), end_weights[::-1]])


def _covariance(design: Array, residuals: Array) -> Array | None:
    """Return the heteroscedasticity-robust covariance (HC3) of a linear fit; None if it is singular."""
    if len(design) < 3 * design.shape[1]:
        return None
    try:
        inverse = np.linalg.inv(design.T @ design)
    except np.linalg.LinAlgError:
        return None
    leverage = np.einsum("wi,ij,wj->w", design, inverse, design)
    scores = design * (residuals / np.maximum(1.0 - leverage, 1e-3))[:, None]
    return np.asarray(inverse @ (scores.T @ scores) @ inverse)


def significant_errors(rig: Rig, pairs: Sequence[Pair], period_s: float) -> dict[str, float]:
    """Return scales, lags and zeros of velocity sensors that differ significantly from an exact sensor's, by name."""
    errors = {}
    for pair in pairs:
        name, overall = rig.sensors[pair.velocity].name, pair.overall
        if overall is None:
            continue
        rate = overall.rate.rescaled(1.0 if overall.rate.value > 0 else -1.0)
        if rate.lies_outside(1.0 - _NEGLIGIBLE_SCALE_ERROR, 1.0 + _NEGLIGIBLE_SCALE_ERROR):
            errors[SCALE_PREFIX + name] = 1.0 / rate.value
        if overall.lag_s.lies_outside(
            -10 * _NEGLIGIBLE_SCALE_ERROR * period_s, 10 * _NEGLIGIBLE_SCALE_ERROR * period_s
        ):
            errors[LAG_PREFIX + name] = overall.lag_s.value
        half_range = sensor_half_range(rig, name) or 0.0
        if overall.zero.lies_outside(-_NEGLIGIBLE_SCALE_ERROR * half_range, _NEGLIGIBLE_SCALE_ERROR * half_range):
            errors[ZERO_PREFIX + name] = overall.zero.value
    return errors
