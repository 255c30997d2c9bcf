"""How a rig is connected: which sensors and actuators count the other way round, and roughly where an angle is zero."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
_TRIED: Final = 4
_EVALUATIONS: Final = 12
_COARSE: Final = 1e-3
_UNEXPLAINED: Final = 10.0
_CLEAR: Final = 25.0
"""By how much the sum of squares must differ between two ways of connection (five standard deviations)."""


class Connection(NamedTuple):
    """The most likely way, what is known of it, and the coordinates found on the way."""

    signs: Signs
    coordinates: Array
    known: bool
    """Whether the signs are certain one by one."""
    mirrored: bool
    """Whether all of them the other way round would explain the signals as well."""


def liveliest(windows: Windows) -> Windows:
    """The windows with most motion, enough of them to tell signs."""
    motion = np.sum(np.std(windows.readings, axis=1) / (np.std(windows.readings, axis=(0, 1)) + 1e-300), axis=1)
    return windows.chosen(np.sort(np.argsort(-motion, kind="stable")[:_MOST_WINDOWS]))


def find_connection(
    plant: Plant, rig: Rig, unknowns: Sequence[Unknown], windows: Windows, sigma: Array, substeps: int
) -> Connection:
    """Try all signs, with a wrapped sensor's zero in each eighth of a turn, and fit the most likely ones."""
    chosen = liveliest(windows)
    bipolar = [a.low < a.safe < a.high for a in rig.actuators]
    actuators = list(itertools.product(*((1, -1) if both else (1,) for both in bipolar)))
    sensors = list(itertools.product((1, -1), repeat=len(rig.sensors)))
    starts = _zeros(rig, unknowns)
    free = np.array([u.logarithmic or u.name.startswith(ZERO) for u in unknowns])
    tried: list[tuple[float, Signs, Array]] = []
    least = np.full(chosen.size, np.inf)
    for signs in itertools.starmap(Signs, itertools.product(sensors, actuators)):
        model = Model(plant, rig, unknowns, chosen, signs, substeps)
        ways = []
        for coordinates in starts:
            costs = Shooting(model, sigma, coordinates).window_costs(coordinates)
            ways.append((float(np.median(costs)), signs, coordinates))
            least = np.minimum(least, costs)
            if tried and ways[-1][0] > _HOPELESS * tried[0][0]:  # the sensors contradict each other, wherever zero is
                break
        tried = sorted([*tried, min(ways, key=lambda way: way[0])], key=lambda way: way[0])
    told = chosen.chosen(least <= _UNEXPLAINED * max(float(np.median(least)), 1.0))

    def fitted(signs: Signs, coordinates: Array) -> tuple[float, Signs, Array]:
        model = Model(plant, rig, unknowns, told, signs, substeps)
        fit = Shooting(model, sigma, coordinates).solve(coordinates, free, _COARSE, _EVALUATIONS)
        return fit.cost * fit.residuals.size, signs, fit.coordinates

    likely = sorted((fitted(signs, coordinates) for _, signs, coordinates in tried[:_TRIED]), key=lambda way: way[0])
    cost, signs, coordinates = likely[0]
    turned = tuple(-a if both else a for a, both in zip(signs.actuators, bipolar, strict=True))
    opposite = [-c if u.name.startswith(ZERO) else c for c, u in zip(coordinates, unknowns, strict=True)]
    mirror = fitted(Signs(tuple(-s for s in signs.sensors), turned), np.array(opposite))
    clear = _CLEAR * max(1.0, cost / told.readings.size)
    mirrored = abs(mirror[0] - cost) < clear
    if mirror[0] < cost - clear or (mirrored and signs.sensors[0] < 0):
        signs, coordinates = mirror[1:]
    others = [way for way in likely if way[1] not in (signs, mirror[1], likely[0][1])]
    known = all(way[0] - cost > clear for way in others) and (mirrored or mirror[0] - cost > clear)
    return Connection(signs, coordinates, known, mirrored)


def _zeros(rig: Rig, unknowns: Sequence[Unknown]) -> list[Array]:
    """Where to begin: each unknown at its start, a wrapped sensor's zero in each eighth of a turn."""
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
