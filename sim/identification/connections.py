"""Connection of a rig: reversed sensors and actuators, and a rough zero of each wrapped sensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from onrig.hw.rig import Rig
from onrig.sim.identification.fit import Shooting
from onrig.sim.identification.model import ZERO, Model, Signs, Unknown
from onrig.sim.identification.recording import Windows
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array

_MOST_WINDOWS: Final = 80
_AROUND: Final = tuple(float(k * np.pi / 4) for k in (0, 1, -1, 2, -2, 3, -3, 4))
_HOPELESS: Final = 100.0
_MOST_COMBINED: Final = 6
_TRIED: Final = 4
_EVALUATIONS: Final = 12
_COARSE: Final = 1e-3
_UNEXPLAINED: Final = 10.0
_CLEAR: Final = 25.0
"""Difference in the sum of squares that separates two hypotheses (five standard deviations)."""


class Connection(NamedTuple):
    """Best hypothesis, its certainty, and the coordinates fitted for it."""

    signs: Signs
    coordinates: Array
    known: bool
    """Whether each sign is certain."""
    mirrored: bool
    """Whether reversing all of them explains the signals equally well."""


def most_excited(windows: Windows) -> Windows:
    """Windows with the most motion, as many as needed to find the signs."""
    motion = np.sum(np.std(windows.readings, axis=1) / (np.std(windows.readings, axis=(0, 1)) + 1e-300), axis=1)
    return windows.chosen(np.sort(np.argsort(-motion, kind="stable")[:_MOST_WINDOWS]))


def find_connection(
    plant: Plant, rig: Rig, unknowns: Sequence[Unknown], windows: Windows, sigma: Array, substeps: int
) -> Connection:
    """Connection with the best fit, over all signs and zeros in steps of an eighth of a turn."""
    chosen = most_excited(windows)
    bipolar = [a.low < a.safe < a.high for a in rig.actuators]
    starts = _zeros(rig, unknowns)
    free = np.array([u.logarithmic or u.name.startswith(ZERO) for u in unknowns])
    tried: list[tuple[float, Signs, Array]] = []
    least = np.full(chosen.size, np.inf)
    for signs in _hypotheses(len(rig.sensors), bipolar):
        model = Model(plant, rig, unknowns, chosen, signs, substeps)
        ways = []
        for coordinates in starts:
            costs = Shooting(model, sigma, coordinates).window_costs(coordinates)
            ways.append((float(np.median(costs)), signs, coordinates))
            least = np.minimum(least, costs)
            if tried and ways[-1][0] > _HOPELESS * tried[0][0]:  # the sensors contradict each other at every zero
                break
        tried = sorted([*tried, min(ways, key=lambda way: way[0])], key=lambda way: way[0])
    usable = chosen.chosen(least <= _UNEXPLAINED * max(float(np.median(least)), 1.0))

    def fitted(signs: Signs, coordinates: Array) -> tuple[float, Signs, Array]:
        model = Model(plant, rig, unknowns, usable, signs, substeps)
        fit = Shooting(model, sigma, coordinates).solve(coordinates, free, _COARSE, _EVALUATIONS)
        return fit.cost * fit.residuals.size, signs, fit.coordinates

    likely = sorted((fitted(signs, coordinates) for _, signs, coordinates in tried[:_TRIED]), key=lambda way: way[0])
    cost, signs, coordinates = likely[0]
    turned = tuple(-a if both else a for a, both in zip(signs.actuators, bipolar, strict=True))
    opposite = Signs(tuple(-s for s in signs.sensors), turned)
    is_zero = np.array([u.name.startswith(ZERO) for u in unknowns])

    def flipped(coordinates: Array) -> Array:
        return np.where(is_zero, -coordinates, coordinates)

    clear = _CLEAR * max(1.0, cost / usable.readings.size)
    # A fit may stop early: either hypothesis is also started from the other's solution.
    mirror = min((fitted(opposite, flipped(coordinates)), *(w for w in likely if w[1] == opposite)), key=lambda w: w[0])
    if mirror[0] < cost - clear:
        cost, _, coordinates = min(likely[0], fitted(signs, flipped(mirror[2])), key=lambda w: w[0])
    mirrored = abs(mirror[0] - cost) < clear
    if mirror[0] < cost - clear or (mirrored and signs.sensors[0] < 0):
        signs, coordinates = mirror[1:]
    others = [way for way in likely if way[1] not in (signs, mirror[1], likely[0][1])]
    known = all(way[0] - cost > clear for way in others) and (mirrored or mirror[0] - cost > clear)
    return Connection(signs, coordinates, known, mirrored)


def _hypotheses(n_sensors: int, bipolar: Sequence[bool]) -> Iterator[Signs]:
    """All combinations of signs; single reversals only on rigs with many channels."""
    reversible = [True] * n_sensors + list(bipolar)
    if sum(reversible) <= _MOST_COMBINED:
        ways = list(itertools.product(*((1, -1) if may else (1,) for may in reversible)))
    else:
        singles = (
            tuple(-1 if i == k else 1 for i in range(len(reversible))) for k, may in enumerate(reversible) if may
        )
        ways = [(1,) * len(reversible), *singles]
    for way in ways:
        yield Signs(way[:n_sensors], way[n_sensors:])


def _zeros(rig: Rig, unknowns: Sequence[Unknown]) -> list[Array]:
    """Initial coordinates, with each wrapped sensor's zero in steps of an eighth of a turn."""
    found = [np.array([u.coordinate(u.start) for u in unknowns])]
    for i, unknown in enumerate(unknowns):
        if any(s.wrap and unknown.name == ZERO + s.name for s in rig.sensors):
            turned = []
            for coordinates in found:
                for zero in _AROUND:
                    other = coordinates.copy()
                    other[i] = zero
                    turned.append(other)
            found = turned
    return found
