"""Plausibility of a fit: whether the plant explains the signals, and whether its parameters make sense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from onrig.hw.rig import Rig
from onrig.sim.identification.outcome import Identification
from onrig.sim.plants import Plant
from onrig.sim.twin.options import ZERO, sensor_half_range

MAX_UNEXPLAINED_SHARE: Final = 0.1
"""Maximum share of windows away from walls that may contradict the fit, for example because a hand touched the rig."""
_MAX_TOUCHED_WINDOWS: Final = 2
"""Number of windows that may contradict the fit in a recording of any length."""
MIN_CORRELATION: Final = 0.3
"""Lag-1 autocorrelation above which residuals count as non-white."""
MAX_MODEL_ERROR: Final = 0.05
"""Maximum non-white part of residuals, as a share of the motion within windows."""
MAX_NOISE_SHARE: Final = 0.05
"""Maximum noise of a sensor, as a share of its half-range."""
MAX_DRIFT_SHARE: Final = 0.01
"""Maximum change of a zero during the recording, as a share of the half-range."""
_FACTOR: Final = 30.0
"""Maximum factor between a parameter and its initial guess."""
_AT_BOUND: Final = 0.01
_PARTS: Final = 4
_QUANTILE: Final = 3.29
"""Normal quantile of the 99.9 % interval."""
_WHITE: Final = 20.0
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
    """Upper bound of the distance from the average zero in any quarter."""
    min_change: float
    """Lower bound of the largest difference between two quarters."""


def fit_problems(identified: Identification, plant: Plant, rig: Rig) -> list[str]:
    """List contradictions between signals and plant, one line each."""
    return [
        *_connection_problems(identified),
        *_residual_problems(identified, rig),
        *_parameter_problems(identified, plant, rig),
    ]


def residuals_of(identified: Identification) -> list[Residuals]:
    """Statistics of each sensor's residuals."""
    residuals = []
    for i in range(identified.fit.residuals.shape[2]):
        r = identified.fit.residuals[..., i]
        power = float(np.mean(r**2))
        white = float(np.mean(np.diff(r, 3, axis=1) ** 2)) / _WHITE
        motion = float(np.mean(np.var(identified.windows.readings[..., i], axis=1)))
        correlation = float(np.mean(r[:, 1:] * r[:, :-1])) / power if power > 0 else 0.0
        residuals.append(Residuals(correlation, float(np.sqrt(max(power - white, 0.0) / (motion + 1e-300)))))
    return residuals


def drift_of(identified: Identification, unknown: int) -> Drift:
    """Estimate the drift of an unknown, the others held constant, by one Gauss-Newton step per quarter."""
    slopes, residuals = identified.fit.jacobian[:, :, unknown], identified.fit.projected
    moves, errors = [], []
    for part in np.array_split(np.arange(len(residuals)), _PARTS):
        information = np.sum(slopes[part] ** 2, axis=1)
        total = float(np.sum(information)) + 1e-300
        move = float(np.sum(slopes[part] * residuals[part])) / total
        scores = np.sum(slopes[part] * residuals[part], axis=1) - move * information
        moves.append(move)
        errors.append(float(np.sqrt(np.sum(scores**2))) / total)
    x, e = np.array(moves), _QUANTILE * np.array(errors)
    differences = np.abs(x[:, None] - x) - np.hypot(e[:, None], e)
    return Drift(float(np.max(np.abs(x) + e)), max(float(np.max(differences)), 0.0))


def _connection_problems(identified: Identification) -> Iterator[str]:
    if not identified.connection.certain and not identified.connection.mirrored:
        yield "signs: other signs explain the signals nearly as well: excite the plant longer or more strongly"
    unexplained, windows = np.flatnonzero(identified.unexplained), identified.unexplained.size
    if len(unexplained) > max(MAX_UNEXPLAINED_SHARE * windows, _MAX_TOUCHED_WINDOWS):
        share, (first, last) = len(unexplained) / windows, np.quantile(unexplained / windows, [0.1, 0.9])
        yield (
            f"the plant does not explain {share:.0%} of the windows (at most {MAX_UNEXPLAINED_SHARE:.0%}), "
            f"most of them from {first:.0%} to {last:.0%} of the recording: "
            "look for a changing sensor or actuator, a touch or a slip"
        )


def _residual_problems(identified: Identification, rig: Rig) -> Iterator[str]:
    for i, (sensor, character) in enumerate(zip(rig.sensors, residuals_of(identified), strict=True)):
        if character.correlation > MIN_CORRELATION and character.model_error > MAX_MODEL_ERROR:
            yield (
                f"{sensor.name}: residuals are non-white (autocorrelation {character.correlation:.2f}, at most "
                f"{MIN_CORRELATION:g}), the plant does not explain {character.model_error:.1%} of the motion (at most "
                f"{MAX_MODEL_ERROR:.0%}): check the sensor's scale and unit, and that this is the plant"
            )
        noise, half = float(identified.noise.total[i]), sensor_half_range(rig, sensor.name)
        if half and noise > MAX_NOISE_SHARE * half:
            yield (
                f"{sensor.name}: noise of {noise:.3g} {sensor.unit} is {noise / sensor.resolution:.3g} times its "
                f"resolution (at most {MAX_NOISE_SHARE * half:.3g} {sensor.unit}): check shielding and supply"
            )


def _parameter_problems(identified: Identification, plant: Plant, rig: Rig) -> Iterator[str]:
    half_range = {s.name: sensor_half_range(rig, s.name) for s in rig.sensors}
    for i, (u, coordinate, free) in enumerate(
        zip(identified.unknowns, identified.fit.coordinates.tolist(), identified.free.tolist(), strict=True)
    ):
        if not free:
            continue
        value = float(u.value(coordinate))
        if u.name.startswith(ZERO):
            drift, half = drift_of(identified, i), half_range[u.name.removeprefix(ZERO)]
            if half and drift.min_change > MAX_DRIFT_SHARE * half:
                yield (
                    f"{u.name.removeprefix(ZERO)}: its zero drifts by {drift.min_change:.3g} {u.unit} or more during "
                    f"the recording (at most {MAX_DRIFT_SHARE * half:.3g}): check its mounting and supply"
                )
        elif u.name in plant.identifiable:
            if not 1.0 / _FACTOR <= value / u.start <= _FACTOR:
                yield (
                    f"{u.name} {value:.4g} {u.unit} is {value / u.start:.3g} times the configured {u.start:.4g}: "
                    "check the sensors and the configured plant"
                )
        elif value > u.high - _AT_BOUND * (u.high - u.low):
            yield f"{u.name} {value:.4g} {u.unit} is at the end of its range: check the sensors and the plant"
    if not any(
        free
        for u, free in zip(identified.unknowns, identified.free.tolist(), strict=True)
        if u.name in plant.identifiable
    ):
        yield "none of the plant's parameters can be estimated from these signals: excite the plant more strongly"
