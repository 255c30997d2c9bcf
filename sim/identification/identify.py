"""Plant identification: connection signs, parameters, noise and joint uncertainty from recorded signals.

A result exists only if the signals agree with each other and with the plant; otherwise ``Implausible`` lists the
reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.sim.identification.agreement import sensor_pairs, significant_errors
from onrig.sim.identification.connections import Connection, find_connection
from onrig.sim.identification.fit import Fit, ShootingResiduals
from onrig.sim.identification.identifiability import hold_fixed, separate_identifiable
from onrig.sim.identification.model import Model, Unknown, unknowns_of
from onrig.sim.identification.outcome import Identification, Implausible
from onrig.sim.identification.plausibility import MAX_MODEL_ERROR, fit_problems
from onrig.sim.identification.recording import Stretch, Windows, windows_of
from onrig.sim.identification.signals import signal_problems, significant_problems
from onrig.sim.identification.uncertainty import joint_of, noise_of
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import SUBSTEPS, Array

SHORT_S: Final = 0.2
"""Window length of the first fit, so short that a poor initial guess cannot diverge far."""
LONG_S: Final = 0.5
"""Window length of the final fit."""
_DELAYS: Final = (0.5, 1.5, 2.5, 3.5)
"""Initial guesses of the delay, in periods."""
_COARSE_TOLERANCE, _FINE_TOLERANCE = 1e-4, 2e-6
_OUTLIER_FACTOR: Final = 4.0
"""Mean square above which a window is an outlier, as a multiple of the median; noise alone causes less than half of
this."""
_MIN_COST: Final = 1.0
MAX_DECLARED: Final = 12
"""Maximum number of declared parameters that are estimated together."""
_MAX_WINDOWS: Final = 400
"""Maximum number of windows; longer recordings are thinned out evenly."""


def identify(
    plant: Plant,
    rig: Rig,
    recording: Sequence[Stretch],
    substeps: int = SUBSTEPS,
    report: Callable[[float], None] = lambda fraction: None,
) -> Identification:
    """Identify a plant from recorded stretches.

    ``report`` is called at a few points with the fraction of the work that is done.

    ``plant`` is the initial guess; its lumped parameters may be wrong by a factor of several.  Raises Implausible if
    the signals allow no result, ValueError if the recording is too short.
    """
    if not recording:
        raise ValueError("nothing was recorded")
    if not plant.identifiable:
        name = type(plant).__name__
        raise Implausible([f"the plant {name} declares no parameters to estimate: give it fields with unit and bounds"])
    if len(plant.identifiable) > MAX_DECLARED:
        declaration = f"the plant {type(plant).__name__} declares {len(plant.identifiable)} parameters"
        raise Implausible([f"{declaration}: name up to {MAX_DECLARED} to estimate in its `separable`"])
    period_s = recording[0].period_s
    pairs = sensor_pairs(plant, rig, recording)
    if problems := signal_problems(rig, recording, pairs):
        raise Implausible(problems)
    identification = _fit(
        plant,
        rig,
        recording,
        unknowns_of(plant, rig, period_s, significant_errors(rig, pairs, period_s)),
        substeps,
        report,
    )
    if problems := fit_problems(identification, plant, rig):
        raise Implausible(problems)
    return identification


def _fit(
    plant: Plant,
    rig: Rig,
    recording: Sequence[Stretch],
    unknowns: tuple[Unknown, ...],
    substeps: int,
    report: Callable[[float], None],
) -> Identification:
    short_windows, long_windows = (_thin_out(_windows(recording, length_s)) for length_s in (SHORT_S, LONG_S))
    resolutions = np.array([s.resolution for s in rig.sensors])
    sigma = _estimate_noise(recording, resolutions)
    connection = find_connection(plant, rig, unknowns, short_windows, sigma, substeps)
    report(0.2)
    is_free = np.ones(len(unknowns), bool)

    def fit_windows(
        windows: Windows, sigma: Array, coordinates: Array, tolerance: float
    ) -> tuple[Fit, Windows, NDArray[np.bool_]]:
        model = Model(plant, rig, unknowns, windows, connection.signs, substeps)
        costs = ShootingResiduals(model, sigma, coordinates).window_costs(coordinates)
        is_explained = costs <= _OUTLIER_FACTOR * max(float(np.median(costs)), _MIN_COST)
        centred_readings = (windows.readings - windows.readings.mean(axis=1, keepdims=True)) / sigma
        contradicts = ~is_explained & (costs > MAX_MODEL_ERROR**2 * float(np.mean(centred_readings**2)))
        is_clear, is_beyond = model.windows_free_of_walls(coordinates), model.windows_beyond_walls(coordinates)
        usable_windows = windows.select(is_explained & is_clear)
        if not usable_windows.size:
            raise Implausible(["no window both fits this plant and is free of wall contact"])
        model = Model(plant, rig, unknowns, usable_windows, connection.signs, substeps)
        return (
            ShootingResiduals(model, sigma, coordinates).solve(coordinates, is_free, tolerance),
            usable_windows,
            (contradicts | is_beyond)[is_clear | is_beyond],
        )

    model = Model(plant, rig, unknowns, short_windows, connection.signs, substeps)
    coordinates = _choose_delay(model, sigma, connection.coordinates, recording[0].period_s)
    report(0.3)
    fit, *_ = fit_windows(short_windows, sigma, coordinates, _COARSE_TOLERANCE)
    is_free, held = separate_identifiable(fit, unknowns, set(plant.identifiable) - set(plant.lumped))
    fit = hold_fixed(fit, unknowns, is_free)
    if not is_free.any():
        raise Implausible(["the signals depend on no parameter of this plant: excite it more strongly"])
    if held:  # refit, because the other parameters have compensated for the held ones
        fit, *_ = fit_windows(short_windows, sigma, fit.coordinates, _COARSE_TOLERANCE)
    for done, tolerance in ((0.4, _COARSE_TOLERANCE), (0.6, _FINE_TOLERANCE)):  # short windows give poor weights
        report(done)
        fit, usable_windows, is_unexplained = fit_windows(
            long_windows, noise_of(fit, resolutions).total, fit.coordinates, tolerance
        )
    model = Model(plant, rig, unknowns, usable_windows, connection.signs, substeps)
    residuals = ShootingResiduals(model, noise_of(fit, resolutions).total, fit.coordinates, fit.starts)
    fit = residuals.fit_at(fit.coordinates)
    noise, joint = noise_of(fit, resolutions), joint_of(fit, is_free)
    n_omitted = long_windows.size - usable_windows.size
    return Identification(
        unknowns, connection, fit, usable_windows, n_omitted, noise, joint, is_free, is_unexplained, held
    )


def significant_defects(plant: Plant, rig: Rig, recording: Sequence[Stretch]) -> list[str]:
    """List the significant sensor defects in a short, gentle recording, one line each."""
    return significant_problems(rig, recording, sensor_pairs(plant, rig, recording)) if recording else []


def connection_of(plant: Plant, rig: Rig, recording: Sequence[Stretch], substeps: int = SUBSTEPS) -> Connection:
    """Find the connection signs from a short recording.  Raises ValueError if it is too short."""
    if not recording:
        raise ValueError("nothing was recorded")
    period_s = recording[0].period_s
    windows = _windows(recording, SHORT_S)
    sigma = _estimate_noise(recording, np.array([s.resolution for s in rig.sensors]))
    return find_connection(plant, rig, unknowns_of(plant, rig, period_s), windows, sigma, substeps)


def _windows(recording: Sequence[Stretch], length_s: float) -> Windows:
    return windows_of(recording, max(4, round(length_s / recording[0].period_s)))


def _thin_out(windows: Windows) -> Windows:
    n_kept = min(windows.size, _MAX_WINDOWS)
    return windows.select(np.arange(n_kept) * windows.size // n_kept)


def _estimate_noise(recording: Sequence[Stretch], resolutions: Array) -> Array:
    """Return standard deviations (s,) from third differences, which suppress smooth motion; at least the rounding
    error."""
    differences = np.concatenate([np.diff(s.readings, 3, axis=0) for s in recording if len(s.readings) > 3])
    return np.asarray(np.maximum(np.sqrt(np.mean(differences**2, axis=0) / 20.0), resolutions / np.sqrt(12.0)))


def _choose_delay(model: Model, sigma: Array, coordinates: Array, period_s: float) -> Array:
    index = next(i for i, u in enumerate(model.unknowns) if u.name == "delay_s")
    attempts = []
    for periods in _DELAYS:
        varied_coordinates = coordinates.copy()
        varied_coordinates[index] = periods * period_s
        attempts.append(
            (
                float(np.median(ShootingResiduals(model, sigma, varied_coordinates).window_costs(varied_coordinates))),
                periods,
                varied_coordinates,
            )
        )
    return min(attempts, key=lambda t: t[:2])[2]
