"""Signs of a rig's sensors and actuators, and a rough zero of each wrapped sensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.sim.identification.fit import Fit, ShootingResiduals
from onrig.sim.identification.model import Model, Signs, Unknown
from onrig.sim.identification.recording import Windows
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.options import ZERO_PREFIX

_MAX_WINDOWS: Final = 80
_ZEROS_RAD: Final = tuple(float(k * np.pi / 4) for k in (0, 1, -1, 2, -2, 3, -3, 4))
_REJECTION_FACTOR: Final = 100.0
_MAX_COMBINED_SIGNS: Final = 6
_N_REFINED: Final = 4
_MAX_EVALUATIONS: Final = 12
_TOLERANCE: Final = 1e-3
_MAX_COST_RATIO: Final = 10.0
_CLEAR_COST_DIFFERENCE: Final = 25.0
"""Difference in the sum of squares that separates two hypotheses (five standard deviations)."""


class Connection(NamedTuple):
    """Best hypothesis about the signs, whether it is certain, and its fitted coordinates."""

    signs: Signs
    coordinates: Array
    is_certain: bool
    """Whether each sign is certain."""
    is_mirrored: bool
    """Whether the signals are explained equally well with all signs reversed."""


def most_excited_windows(windows: Windows) -> Windows:
    """Select the windows with the most motion, as many as needed to find the signs."""
    motion = np.sum(np.std(windows.readings, axis=1) / (np.std(windows.readings, axis=(0, 1)) + 1e-300), axis=1)
    return windows.select(np.sort(np.argsort(-motion, kind="stable")[:_MAX_WINDOWS]))


def find_connection(
    plant: Plant, rig: Rig, unknowns: Sequence[Unknown], windows: Windows, sigma: Array, substeps: int
) -> Connection:
    """Return the connection with the best fit over all signs, and over zeros in steps of an eighth of a turn."""
    excited_windows = most_excited_windows(windows)
    is_bipolar = [a.low < a.safe < a.high for a in rig.actuators]
    is_free = np.array([u.is_logarithmic or u.name.startswith(ZERO_PREFIX) for u in unknowns])
    attempts, lowest_costs = _rank_hypotheses(plant, rig, unknowns, excited_windows, sigma, substeps)
    usable_windows = excited_windows.select(lowest_costs <= _MAX_COST_RATIO * max(float(np.median(lowest_costs)), 1.0))

    def fit(signs: Signs, coordinates: Array, is_free: NDArray[np.bool_]) -> Fit:
        model = Model(plant, rig, unknowns, usable_windows, signs, substeps)
        return ShootingResiduals(model, sigma, coordinates).solve(coordinates, is_free, _TOLERANCE, _MAX_EVALUATIONS)

    def fit_connection(signs: Signs, coordinates: Array) -> tuple[float, Signs, Array]:
        """Fit all unknowns, because a gently excited rig looks reversed if its dead band is not fitted."""
        complete_fit = fit(signs, coordinates, np.ones(len(unknowns), np.bool_))
        return complete_fit.cost * complete_fit.residuals.size, signs, complete_fit.coordinates

    likely_hypotheses = sorted(
        (fit_connection(signs, coordinates) for _, signs, coordinates in attempts[:_N_REFINED]),
        key=lambda hypothesis: hypothesis[0],
    )
    cost, signs, coordinates = likely_hypotheses[0]
    reversed_actuators = tuple(
        -a if can_reverse else a for a, can_reverse in zip(signs.actuators, is_bipolar, strict=True)
    )
    opposite_signs = Signs(tuple(-s for s in signs.sensors), reversed_actuators)
    is_zero = np.array([u.name.startswith(ZERO_PREFIX) for u in unknowns])

    def flip(coordinates: Array) -> Array:
        return np.where(is_zero, -coordinates, coordinates)

    min_cost_difference = _CLEAR_COST_DIFFERENCE * max(1.0, cost / usable_windows.readings.size)
    # A fit may stop early, so each of the two hypotheses is also fitted from the other's solution.
    mirror_hypothesis = min(
        (fit_connection(opposite_signs, flip(coordinates)), *(w for w in likely_hypotheses if w[1] == opposite_signs)),
        key=lambda w: w[0],
    )
    if mirror_hypothesis[0] < cost - min_cost_difference:
        cost, _, coordinates = min(
            likely_hypotheses[0], fit_connection(signs, flip(mirror_hypothesis[2])), key=lambda w: w[0]
        )
    is_mirrored = abs(mirror_hypothesis[0] - cost) < min_cost_difference
    if mirror_hypothesis[0] < cost - min_cost_difference or (is_mirrored and signs.sensors[0] < 0):
        signs = mirror_hypothesis[1]
    alternatives = [
        hypothesis
        for hypothesis in likely_hypotheses
        if hypothesis[1] not in (signs, mirror_hypothesis[1], likely_hypotheses[0][1])
    ]
    is_certain = all(hypothesis[0] - cost > min_cost_difference for hypothesis in alternatives) and (
        is_mirrored or mirror_hypothesis[0] - cost > min_cost_difference
    )
    # Friction, dead band and delay keep their initial guesses: short windows determine them poorly.
    initial_coordinates = next(coordinates for _, attempted_signs, coordinates in attempts if attempted_signs == signs)
    return Connection(signs, fit(signs, initial_coordinates, is_free).coordinates, is_certain, is_mirrored)


def _rank_hypotheses(
    plant: Plant, rig: Rig, unknowns: Sequence[Unknown], windows: Windows, sigma: Array, substeps: int
) -> tuple[list[tuple[float, Signs, Array]], Array]:
    """Rank the hypotheses about the signs, each with its best zero.

    Return the cost, signs and coordinates of each, best first, and the lowest cost of each window.
    """
    is_bipolar = [a.low < a.safe < a.high for a in rig.actuators]
    starts = _zeros(rig, unknowns)
    attempts: list[tuple[float, Signs, Array]] = []
    lowest_costs = np.full(windows.size, np.inf)
    for signs in _hypotheses(len(rig.sensors), is_bipolar):
        model = Model(plant, rig, unknowns, windows, signs, substeps)
        hypotheses = []
        for coordinates in starts:
            costs = ShootingResiduals(model, sigma, coordinates).window_costs(coordinates)
            hypotheses.append((float(np.median(costs)), signs, coordinates))
            lowest_costs = np.minimum(lowest_costs, costs)
            if (
                attempts and hypotheses[-1][0] > _REJECTION_FACTOR * attempts[0][0]
            ):  # the sensors contradict each other at every zero
                break
        attempts = sorted(
            [*attempts, min(hypotheses, key=lambda hypothesis: hypothesis[0])], key=lambda hypothesis: hypothesis[0]
        )
    return attempts, lowest_costs


def _hypotheses(n_sensors: int, is_bipolar: Sequence[bool]) -> Iterator[Signs]:
    """Yield all combinations of signs or, on rigs with many channels, only those with at most one reversal."""
    is_reversible = [True] * n_sensors + list(is_bipolar)
    if sum(is_reversible) <= _MAX_COMBINED_SIGNS:
        combinations = list(itertools.product(*((1, -1) if can_reverse else (1,) for can_reverse in is_reversible)))
    else:
        single_reversals = (
            tuple(-1 if i == k else 1 for i in range(len(is_reversible)))
            for k, can_reverse in enumerate(is_reversible)
            if can_reverse
        )
        combinations = [(1,) * len(is_reversible), *single_reversals]
    for combination in combinations:
        yield Signs(combination[:n_sensors], combination[n_sensors:])


def _zeros(rig: Rig, unknowns: Sequence[Unknown]) -> list[Array]:
    """Return initial coordinates, with each wrapped sensor's zero in steps of an eighth of a turn."""
    candidates = [np.array([u.coordinate(u.start) for u in unknowns])]
    for i, unknown in enumerate(unknowns):
        if any(s.wrap and unknown.name == ZERO_PREFIX + s.name for s in rig.sensors):
            variants = []
            for coordinates in candidates:
                for zero_rad in _ZEROS_RAD:
                    variant = coordinates.copy()
                    variant[i] = zero_rad
                    variants.append(variant)
            candidates = variants
    return candidates
