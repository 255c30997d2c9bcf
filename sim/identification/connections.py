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
from onrig.sim.twin.options import ZERO

_MAX_WINDOWS: Final = 80
_ZEROS_RAD: Final = tuple(float(k * np.pi / 4) for k in (0, 1, -1, 2, -2, 3, -3, 4))
_REJECTION_FACTOR: Final = 100.0
_MAX_COMBINED: Final = 6
_N_REFINED: Final = 4
_EVALUATIONS: Final = 12
_COARSE: Final = 1e-3
_UNEXPLAINED: Final = 10.0
_CLEAR: Final = 25.0
"""Difference in the sum of squares that separates two hypotheses (five standard deviations)."""


class Connection(NamedTuple):
    """Best hypothesis on the signs, its certainty, and its fitted coordinates."""

    signs: Signs
    coordinates: Array
    certain: bool
    """Whether each sign is certain."""
    mirrored: bool
    """Whether the signals are explained equally well with all signs reversed."""


def most_excited_windows(windows: Windows) -> Windows:
    """Select the windows with the most motion, as many as needed to find the signs."""
    motion = np.sum(np.std(windows.readings, axis=1) / (np.std(windows.readings, axis=(0, 1)) + 1e-300), axis=1)
    return windows.select(np.sort(np.argsort(-motion, kind="stable")[:_MAX_WINDOWS]))


def find_connection(
    plant: Plant, rig: Rig, unknowns: Sequence[Unknown], windows: Windows, sigma: Array, substeps: int
) -> Connection:
    """Connection with the best fit, over all signs and zeros in steps of an eighth of a turn."""
    windows_used = most_excited_windows(windows)
    bipolar = [a.low < a.safe < a.high for a in rig.actuators]
    free = np.array([u.logarithmic or u.name.startswith(ZERO) for u in unknowns])
    attempts, lowest_costs = _rank_hypotheses(plant, rig, unknowns, windows_used, sigma, substeps)
    usable = windows_used.select(lowest_costs <= _UNEXPLAINED * max(float(np.median(lowest_costs)), 1.0))

    def fit(signs: Signs, coordinates: Array, free: NDArray[np.bool_]) -> Fit:
        model = Model(plant, rig, unknowns, usable, signs, substeps)
        return ShootingResiduals(model, sigma, coordinates).solve(coordinates, free, _COARSE, _EVALUATIONS)

    def fit_connection(signs: Signs, coordinates: Array) -> tuple[float, Signs, Array]:
        """Fit all unknowns: without its dead band, a gently excited rig looks reversed."""
        complete = fit(signs, coordinates, np.ones(len(unknowns), np.bool_))
        return complete.cost * complete.residuals.size, signs, complete.coordinates

    likely = sorted(
        (fit_connection(signs, coordinates) for _, signs, coordinates in attempts[:_N_REFINED]),
        key=lambda hypothesis: hypothesis[0],
    )
    cost, signs, coordinates = likely[0]
    reversed_actuators = tuple(-a if both else a for a, both in zip(signs.actuators, bipolar, strict=True))
    opposite = Signs(tuple(-s for s in signs.sensors), reversed_actuators)
    is_zero = np.array([u.name.startswith(ZERO) for u in unknowns])

    def flip(coordinates: Array) -> Array:
        return np.where(is_zero, -coordinates, coordinates)

    clear = _CLEAR * max(1.0, cost / usable.readings.size)
    # A fit may stop early, so either hypothesis is also fitted from the other's solution.
    mirror = min(
        (fit_connection(opposite, flip(coordinates)), *(w for w in likely if w[1] == opposite)), key=lambda w: w[0]
    )
    if mirror[0] < cost - clear:
        cost, _, coordinates = min(likely[0], fit_connection(signs, flip(mirror[2])), key=lambda w: w[0])
    mirrored = abs(mirror[0] - cost) < clear
    if mirror[0] < cost - clear or (mirrored and signs.sensors[0] < 0):
        signs = mirror[1]
    alternatives = [hypothesis for hypothesis in likely if hypothesis[1] not in (signs, mirror[1], likely[0][1])]
    known = all(hypothesis[0] - cost > clear for hypothesis in alternatives) and (mirrored or mirror[0] - cost > clear)
    # Friction, dead band and delay keep their initial guesses: short windows determine them poorly.
    begun = next(coordinates for _, tried, coordinates in attempts if tried == signs)
    return Connection(signs, fit(signs, begun, free).coordinates, known, mirrored)


def _rank_hypotheses(
    plant: Plant, rig: Rig, unknowns: Sequence[Unknown], windows: Windows, sigma: Array, substeps: int
) -> tuple[list[tuple[float, Signs, Array]], Array]:
    """Cost, signs and coordinates of each hypothesis on the signs, with its best zero, best first, and the lowest cost
    of each window."""
    bipolar = [a.low < a.safe < a.high for a in rig.actuators]
    starts = _zeros(rig, unknowns)
    attempts: list[tuple[float, Signs, Array]] = []
    lowest_costs = np.full(windows.size, np.inf)
    for signs in _hypotheses(len(rig.sensors), bipolar):
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


def _hypotheses(n_sensors: int, bipolar: Sequence[bool]) -> Iterator[Signs]:
    """List all combinations of signs, or only single reversals on rigs with many channels."""
    reversible = [True] * n_sensors + list(bipolar)
    if sum(reversible) <= _MAX_COMBINED:
        combinations = list(itertools.product(*((1, -1) if can_reverse else (1,) for can_reverse in reversible)))
    else:
        singles = (
            tuple(-1 if i == k else 1 for i in range(len(reversible)))
            for k, can_reverse in enumerate(reversible)
            if can_reverse
        )
        combinations = [(1,) * len(reversible), *singles]
    for combination in combinations:
        yield Signs(combination[:n_sensors], combination[n_sensors:])


def _zeros(rig: Rig, unknowns: Sequence[Unknown]) -> list[Array]:
    """Initial coordinates, with each wrapped sensor's zero in steps of an eighth of a turn."""
    candidates = [np.array([u.coordinate(u.start) for u in unknowns])]
    for i, unknown in enumerate(unknowns):
        if any(s.wrap and unknown.name == ZERO + s.name for s in rig.sensors):
            variants = []
            for coordinates in candidates:
                for zero in _ZEROS_RAD:
                    variant = coordinates.copy()
                    variant[i] = zero
                    variants.append(variant)
            candidates = variants
    return candidates
