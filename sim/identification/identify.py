"""Plant identification: connection signs, parameters, noise and joint uncertainty from recorded signals.

A result exists only if the signals agree with each other and with the plant; otherwise ``Implausible`` lists the
reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.sim.identification.agreement import sensor_pairs, significant_errors
from onrig.sim.identification.connections import Connection, find_connection
from onrig.sim.identification.fit import Fit, ShootingResiduals
from onrig.sim.identification.identifiability import hold_fixed, identifiable
from onrig.sim.identification.model import Model, Unknown, unknowns_of
from onrig.sim.identification.outcome import Identification, Implausible
from onrig.sim.identification.plausibility import MAX_MODEL_ERROR, fit_problems
from onrig.sim.identification.recording import Stretch, Windows, windows_of
from onrig.sim.identification.signals import signal_problems, significant_problems
from onrig.sim.identification.uncertainty import joint_of, noise_of
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import SUBSTEPS, Array

SHORT_S: Final = 0.2
"""Window length of the first fit: within it a poor initial guess cannot diverge far."""
LONG_S: Final = 0.5
"""Window length of the final fit."""
_DELAYS: Final = (0.5, 1.5, 2.5, 3.5)
"""Initial guesses of the delay, in periods."""
_COARSE, _FINE = 1e-4, 2e-6
_OUTLIER_FACTOR: Final = 4.0
"""Outlier threshold of a window's mean square, as a multiple of the median; noise alone causes less than half of it."""
_MIN_COST: Final = 1.0
MAX_DECLARED: Final = 12
"""Maximum number of declared parameters that are estimated together."""
_MAX_WINDOWS: Final = 400
"""Maximum number of windows; longer recordings are thinned out evenly."""


def identify(plant: Plant, rig: Rig, recorded: Sequence[Stretch], substeps: int = SUBSTEPS) -> Identification:
    """Identify a plant from recorded stretches.

    ``plant`` is the initial guess; its lumped parameters may be wrong by a factor of several.  Raises Implausible if
    the signals allow no result, ValueError if the recording is too short.
    """
    if not recorded:
        raise ValueError("nothing was recorded")
    if not plant.identifiable:
        name = type(plant).__name__
        raise Implausible([f"the plant {name} declares no parameters to estimate: give it fields with unit and bounds"])
    if len(plant.identifiable) > MAX_DECLARED:
        declared = f"the plant {type(plant).__name__} declares {len(plant.identifiable)} parameters"
        raise Implausible([f"{declared}: name up to {MAX_DECLARED} to estimate in its `separable`"])
    period_s = recorded[0].period_s
    pairs = sensor_pairs(plant, rig, recorded)
    if problems := signal_problems(rig, recorded, pairs):
        raise Implausible(problems)
    identified = _fit(
        plant, rig, recorded, unknowns_of(plant, rig, period_s, significant_errors(rig, pairs, period_s)), substeps
    )
    if problems := fit_problems(identified, plant, rig):
        raise Implausible(problems)
    return identified


def _fit(
    plant: Plant, rig: Rig, recorded: Sequence[Stretch], unknowns: tuple[Unknown, ...], substeps: int
) -> Identification:
    period_s = recorded[0].period_s
    short_windows = _thin_out(windows_of(recorded, max(4, round(SHORT_S / period_s))))
    long_windows = _thin_out(windows_of(recorded, max(4, round(LONG_S / period_s))))
    resolutions = np.array([s.resolution for s in rig.sensors])
    sigma = _estimate_noise(recorded, resolutions)
    connection = find_connection(plant, rig, unknowns, short_windows, sigma, substeps)
    free = np.ones(len(unknowns), bool)

    def fit_windows(
        windows: Windows, sigma: Array, coordinates: Array, tolerance: float
    ) -> tuple[Fit, Windows, NDArray[np.bool_]]:
        model = Model(plant, rig, unknowns, windows, connection.signs, substeps)
        costs = ShootingResiduals(model, sigma, coordinates).window_costs(coordinates)
        is_explained = costs <= _OUTLIER_FACTOR * max(float(np.median(costs)), _MIN_COST)
        centred_readings = (windows.readings - windows.readings.mean(axis=1, keepdims=True)) / sigma
        contradicts = ~is_explained & (costs > MAX_MODEL_ERROR**2 * float(np.mean(centred_readings**2)))
        clear, beyond = model.windows_free_of_walls(coordinates), model.windows_beyond_walls(coordinates)
        usable = windows.select(is_explained & clear)
        if not usable.size:
            raise Implausible(["no window both fits this plant and is free of wall contact"])
        model = Model(plant, rig, unknowns, usable, connection.signs, substeps)
        return (
            ShootingResiduals(model, sigma, coordinates).solve(coordinates, free, tolerance),
            usable,
            (contradicts | beyond)[clear | beyond],
        )

    model = Model(plant, rig, unknowns, short_windows, connection.signs, substeps)
    coordinates = _choose_delay(model, sigma, connection.coordinates, period_s)
    fit, *_ = fit_windows(short_windows, sigma, coordinates, _COARSE)
    free, held = identifiable(fit, unknowns, set(plant.identifiable) - set(plant.lumped))
    fit = hold_fixed(fit, unknowns, free)
    if not free.any():
        raise Implausible(["the signals depend on no parameter of this plant: excite it more strongly"])
    if held:  # the others compensate for the held ones
        fit, *_ = fit_windows(short_windows, sigma, fit.coordinates, _COARSE)
    for tolerance in (_COARSE, _FINE):  # short windows give poor weights
        fit, usable, unexplained = fit_windows(
            long_windows, noise_of(fit, resolutions).total, fit.coordinates, tolerance
        )
    model = Model(plant, rig, unknowns, usable, connection.signs, substeps)
    fit = ShootingResiduals(model, noise_of(fit, resolutions).total, fit.coordinates, fit.starts).fit_at(
        fit.coordinates
    )
    noise = noise_of(fit, resolutions)
    joint = joint_of(fit, free)
    return Identification(
        unknowns, connection, fit, usable, long_windows.size - usable.size, noise, joint, free, unexplained, held
    )


def significant_defects(plant: Plant, rig: Rig, recorded: Sequence[Stretch]) -> list[str]:
    """List the significant sensor defects in a short, gentle recording, one line each."""
    return significant_problems(rig, recorded, sensor_pairs(plant, rig, recorded)) if recorded else []


def connection_of(plant: Plant, rig: Rig, recorded: Sequence[Stretch], substeps: int = SUBSTEPS) -> Connection:
    """Connection signs from a short recording; raises ValueError if it is too short."""
    if not recorded:
        raise ValueError("nothing was recorded")
    period_s = recorded[0].period_s
    windows = windows_of(recorded, max(4, round(SHORT_S / period_s)))
    sigma = _estimate_noise(recorded, np.array([s.resolution for s in rig.sensors]))
    return find_connection(plant, rig, unknowns_of(plant, rig, period_s), windows, sigma, substeps)


def _thin_out(windows: Windows) -> Windows:
    keep = min(windows.size, _MAX_WINDOWS)
    return windows.select(np.arange(keep) * windows.size // keep)


def _estimate_noise(recorded: Sequence[Stretch], resolutions: Array) -> Array:
    """Standard deviations (s,) from third differences, which suppress smooth motion; at least the rounding error."""
    differences = np.concatenate([np.diff(s.readings, 3, axis=0) for s in recorded if len(s.readings) > 3])
    return np.asarray(np.maximum(np.sqrt(np.mean(differences**2, axis=0) / 20.0), resolutions / np.sqrt(12.0)))


def _choose_delay(model: Model, sigma: Array, coordinates: Array, period_s: float) -> Array:
    index = next(i for i, u in enumerate(model.unknowns) if u.name == "delay_s")
    attempts = []
    for periods in _DELAYS:
        variant = coordinates.copy()
        variant[index] = periods * period_s
        attempts.append(
            (float(np.median(ShootingResiduals(model, sigma, variant).window_costs(variant))), periods, variant)
        )
    return min(attempts, key=lambda t: t[:2])[2]
