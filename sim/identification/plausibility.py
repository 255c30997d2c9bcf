"""Plausibility of a fit: whether the plant explains the signals, and whether its parameters make sense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from onrig.hw.rig import Rig
from onrig.sim.identification.outcome import Identification
from onrig.sim.plants import Plant
from onrig.sim.twin.options import ZERO_PREFIX, sensor_half_range

MAX_UNEXPLAINED_FRACTION: Final = 0.1
"""Maximum share of windows away from walls that may contradict the fit, for example because a hand touched the rig."""
_MAX_TOUCHED_WINDOWS: Final = 2
"""Number of windows that may contradict the fit in a recording of any length."""
MIN_CORRELATION: Final = 0.3
"""Lag-1 autocorrelation above which residuals count as non-white."""
MAX_MODEL_ERROR: Final = 0.05
"""Maximum non-white part of residuals, as a share of the motion within windows."""
MAX_NOISE_FRACTION: Final = 0.05
"""Maximum noise of a sensor, as a share of its half-range."""
MAX_DRIFT_FRACTION: Final = 0.01
"""Maximum change of a zero during the recording, as a share of the half-range."""
_MAX_FACTOR: Final = 30.0
"""Maximum factor between a parameter and its initial guess."""
_BOUND_TOLERANCE: Final = 0.01
_N_PARTS: Final = 4
_QUANTILE: Final = 3.29
"""Normal quantile of the 99.9 % interval."""
_WHITE_VARIANCE_FACTOR: Final = 20.0
"""Sum of the squared coefficients of a third difference."""


class Residuals(NamedTuple):
    """Statistics of one sensor's residuals within windows."""

    correlation: float
    """Lag-1 autocorrelation."""
    model_error: float
    """Standard deviation of the non-white part, as a share of the motion."""


class Drift(NamedTuple):
    """Change of a sensor's zero during a recording (SI units)."""

    max_deviation: float
    """Upper bound on any quarter's distance from the average zero."""
    min_change: float
    """Lower bound on the largest difference between two quarters."""


def fit_problems(identification: Identification, plant: Plant, rig: Rig) -> list[str]:
    """List contradictions between signals and plant, one line each."""
    return [
        *_connection_problems(identification),
        *_residual_problems(identification, rig),
        *_parameter_problems(identification, plant, rig),
    ]


def residuals_of(identification: Identification) -> list[Residuals]:
    """Return statistics of each sensor's residuals."""
    residuals = []
    for i in range(identification.fit.residuals.shape[2]):
        r = identification.fit.residuals[..., i]
        power = float(np.mean(r**2))
        white_variance = float(np.mean(np.diff(r, 3, axis=1) ** 2)) / _WHITE_VARIANCE_FACTOR
        motion = float(np.mean(np.var(identification.windows.readings[..., i], axis=1)))
        correlation = float(np.mean(r[:, 1:] * r[:, :-1])) / power if power > 0 else 0.0
        residuals.append(Residuals(correlation, float(np.sqrt(max(power - white_variance, 0.0) / (motion + 1e-300)))))
    return residuals


def drift_of(identification: Identification, unknown: int) -> Drift:
    """Estimate the drift of an unknown by one Gauss-Newton step per quarter, with the others held constant."""
    slopes, residuals = identification.fit.jacobian[:, :, unknown], identification.fit.projected_residuals
    shifts, errors = [], []
    for part in np.array_split(np.arange(len(residuals)), _N_PARTS):
        information = np.sum(slopes[part] ** 2, axis=1)
        total = float(np.sum(information)) + 1e-300
        shift = float(np.sum(slopes[part] * residuals[part])) / total
        scores = np.sum(slopes[part] * residuals[part], axis=1) - shift * information
        shifts.append(shift)
        errors.append(float(np.sqrt(np.sum(scores**2))) / total)
    x, e = np.array(shifts), _QUANTILE * np.array(errors)
    differences = np.abs(x[:, None] - x) - np.hypot(e[:, None], e)
    return Drift(float(np.max(np.abs(x) + e)), max(float(np.max(differences)), 0.0))


def _connection_problems(identification: Identification) -> Iterator[str]:
    if not identification.connection.is_certain and not identification.connection.is_mirrored:
        yield "signs: other signs explain the signals nearly as well: excite the plant longer or more strongly"
    unexplained_indices, windows = np.flatnonzero(identification.is_unexplained), identification.is_unexplained.size
    if len(unexplained_indices) > max(MAX_UNEXPLAINED_FRACTION * windows, _MAX_TOUCHED_WINDOWS):
        unexplained_fraction, (first, last) = (
            len(unexplained_indices) / windows,
            np.quantile(unexplained_indices / windows, [0.1, 0.9]),
        )
        yield (
            f"the model does not fit {unexplained_fraction:.0%} of the windows "
            f"(at most {MAX_UNEXPLAINED_FRACTION:.0%} may not), most of them from {first:.0%} to {last:.0%} of the "
            "recording: look for a changing sensor or actuator, a touch or a slip"
        )


def _residual_problems(identification: Identification, rig: Rig) -> Iterator[str]:
    for i, (sensor, sensor_residuals) in enumerate(zip(rig.sensors, residuals_of(identification), strict=True)):
        if sensor_residuals.correlation > MIN_CORRELATION and sensor_residuals.model_error > MAX_MODEL_ERROR:
            yield (
                f"{sensor.name}: residuals are non-white (autocorrelation {sensor_residuals.correlation:.2f}, at most "
                f"{MIN_CORRELATION:g}); the plant does not explain {sensor_residuals.model_error:.1%} of the motion "
                f"(at most {MAX_MODEL_ERROR:.0%}): check the sensor's scale and unit, and that this is the plant"
            )
        noise, half_range = float(identification.noise.total[i]), sensor_half_range(rig, sensor.name)
        if half_range and noise > MAX_NOISE_FRACTION * half_range:
            yield (
                f"{sensor.name}: noise of {noise:.3g} {sensor.unit} is {noise / sensor.resolution:.3g} times its "
                f"resolution (at most {MAX_NOISE_FRACTION * half_range:.3g} {sensor.unit}): check shielding and supply"
            )


def _parameter_problems(identification: Identification, plant: Plant, rig: Rig) -> Iterator[str]:
    half_ranges = {s.name: sensor_half_range(rig, s.name) for s in rig.sensors}
    for i, (u, coordinate, is_free) in enumerate(
        zip(
            identification.unknowns,
            identification.fit.coordinates.tolist(),
            identification.is_free.tolist(),
            strict=True,
        )
    ):
        if not is_free:
            continue
        value = float(u.value(coordinate))
        if u.name.startswith(ZERO_PREFIX):
            sensor_name = u.name.removeprefix(ZERO_PREFIX)
            drift, half_range = drift_of(identification, i), half_ranges[sensor_name]
            if half_range and drift.min_change > MAX_DRIFT_FRACTION * half_range:
                yield (
                    f"{sensor_name}: its zero drifts by {drift.min_change:.3g} {u.unit} or more during "
                    f"the recording (at most {MAX_DRIFT_FRACTION * half_range:.3g}): check its mounting and supply"
                )
        elif u.name in plant.identifiable:
            if not 1.0 / _MAX_FACTOR <= value / u.start <= _MAX_FACTOR:
                yield (
                    f"{u.name} {value:.4g} {u.unit} is {value / u.start:.3g} times the configured {u.start:.4g}: "
                    "check the sensors and the configured plant"
                )
        elif value > u.high - _BOUND_TOLERANCE * (u.high - u.low):
            yield f"{u.name} {value:.4g} {u.unit} is at the end of its range: check the sensors and the plant"
    if not any(
        is_free
        for u, is_free in zip(identification.unknowns, identification.is_free.tolist(), strict=True)
        if u.name in plant.identifiable
    ):
        yield "none of the plant's parameters can be estimated from these signals: excite the plant more strongly"
