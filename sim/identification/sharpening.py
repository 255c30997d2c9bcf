"""An earlier identification of the same plant, sharpened by newer signals."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtr

from onrig.sim.identification.outcome import Identification
from onrig.sim.identification.result import IMPERFECTIONS, Result
from onrig.sim.identification.uncertainty import JointDistribution
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array

DEPARTED: Final = 1e-3
"""Probability below which a difference between two estimates is not attributed to their uncertainty."""


class Change(NamedTuple):
    """One parameter before and now."""

    name: str
    unit: str
    before: float
    now: float
    """Value from the newer signals alone."""
    p_value: float
    """Probability of a difference at least as large if the parameter has not changed."""


class Sharpened(NamedTuple):
    """Both estimates combined."""

    identified: Identification
    p_value: float
    """Probability that two estimates of the same plant differ at least as much (chi-squared test)."""
    changes: tuple[Change, ...]
    """The compared parameters."""

    @property
    def departed(self) -> bool:
        """Whether the plant has left the earlier identification."""
        return self.p_value < DEPARTED


class _Prior(NamedTuple):
    """Earlier estimate of the c common parameters."""

    indices: NDArray[np.intp]
    """Their indices in the newer identification."""
    coordinates: Array
    covariance: Array


def sharpen(earlier: Result, found: Identification, plant: Plant) -> Sharpened:
    """Combine two independent estimates of a plant's parameters by their covariances (normal distributions).

    ``plant`` is the initial guess of ``found``.  Zeros, scales and lags of sensors are those of ``found`` alone: they
    drift.  The estimates are compared in the plant's own parameters, without dry friction, dead band and delay, which
    are bounded by 0.
    """
    prior = _common_parameters(earlier, found, {*plant.identifiable, *IMPERFECTIONS})
    compared = [
        k for k, i in enumerate(prior.indices) if found.free[i] and found.unknowns[i].name in plant.identifiable
    ]
    at = prior.indices[compared]
    difference = found.fit.coordinates[at] - prior.coordinates[compared]
    covariance = found.joint.covariance[np.ix_(at, at)] + prior.covariance[np.ix_(compared, compared)]
    p_value = float(chdtrc(len(at), difference @ np.linalg.solve(covariance, difference))) if len(at) else 1.0
    changes = tuple(
        Change(
            found.unknowns[i].name,
            found.unknowns[i].unit,
            float(found.unknowns[i].value(prior.coordinates[k])),
            float(found.unknowns[i].value(found.fit.coordinates[i])),
            float(2.0 * ndtr(-abs(d) / np.sqrt(v))),
        )
        for k, i, d, v in zip(compared, at, difference, np.diag(covariance), strict=True)
    )
    return Sharpened(_combined(prior, found), p_value, changes)


def _common_parameters(earlier: Result, found: Identification, names: set[str]) -> _Prior:
    indices, positions, coordinates = [], [], []
    before = {p.name: (position, p) for position, p in enumerate(earlier.parameters)}
    covariance = np.array(earlier.covariance)
    for i, unknown in enumerate(found.unknowns):
        position, parameter = before.get(unknown.name, (-1, None))
        if parameter is None or unknown.name not in names or parameter.logarithmic != unknown.logarithmic:
            continue
        if covariance[position, position] > 0.0 and parameter.value * unknown.start >= 0.0:
            indices.append(i)
            positions.append(position)
            coordinates.append(unknown.coordinate(parameter.value))
    return _Prior(np.array(indices, np.intp), np.array(coordinates), covariance[np.ix_(positions, positions)])


def _combined(prior: _Prior, found: Identification) -> Identification:
    """``found`` with the product of both normal distributions as its joint one."""
    free = found.free.copy()
    free[prior.indices] = True
    used = np.flatnonzero(free)
    place = {i: k for k, i in enumerate(used.tolist())}
    precision, weighted = np.zeros((len(used), len(used))), np.zeros(len(used))
    newer = np.flatnonzero(found.free)
    for indices, coordinates, covariance in (
        (newer, found.fit.coordinates[newer], found.joint.covariance[np.ix_(newer, newer)]),
        prior,
    ):
        rows = [place[i] for i in indices.tolist()]
        information = np.linalg.inv(covariance)
        precision[np.ix_(rows, rows)] += information
        weighted[rows] += information @ coordinates
    combined = np.linalg.inv(precision)
    coordinates = found.fit.coordinates.copy()
    coordinates[used] = combined @ weighted
    for i in used.tolist():
        if not found.unknowns[i].logarithmic:
            coordinates[i] = min(max(coordinates[i], found.unknowns[i].low), found.unknowns[i].high)
    full = np.zeros_like(found.joint.covariance)
    full[np.ix_(used, used)] = 0.5 * (combined + combined.T)
    held = {name: others for name, others in found.held.items() if not free[_index(found, name)]}
    return found._replace(
        fit=found.fit._replace(coordinates=coordinates),
        joint=JointDistribution(full, found.joint.inflation),
        free=free,
        held=held,
    )


def _index(found: Identification, name: str) -> int:
    return [u.name for u in found.unknowns].index(name)
