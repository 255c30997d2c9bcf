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

DEPARTURE_P_VALUE: Final = 1e-3
"""Probability below which a difference between two estimates is not attributed to their uncertainty."""


class Change(NamedTuple):
    """Change of one parameter between two identifications."""

    name: str
    unit: str
    earlier_value: float
    new_value: float
    """Value from the newer signals alone."""
    p_value: float
    """Probability of a difference at least as large if the parameter has not changed."""


class Sharpened(NamedTuple):
    """Combination of two estimates of a plant's parameters."""

    identification: Identification
    p_value: float
    """Probability that two estimates of the same plant differ at least as much (chi-squared test)."""
    changes: tuple[Change, ...]
    """Changes of the compared parameters."""

    @property
    def has_departed(self) -> bool:
        """Whether the plant has departed from the earlier identification."""
        return self.p_value < DEPARTURE_P_VALUE


class _Prior(NamedTuple):
    """Earlier estimate of the c common parameters."""

    indices: NDArray[np.intp]
    """Indices of these parameters in the newer identification."""
    coordinates: Array
    covariance: Array


def sharpen(earlier_result: Result, identification: Identification, plant: Plant) -> Sharpened:
    """Combine two independent estimates of a plant's parameters by their covariances (normal distributions).

    ``plant`` is the initial guess of ``identification``.  Zeros, scales and lags of sensors are taken from
    ``identification`` alone, because they drift.  The estimates are compared in the plant's own parameters, without dry
    friction, dead band and delay, which cannot be negative.
    """
    prior = _common_parameters(earlier_result, identification, {*plant.identifiable, *IMPERFECTIONS})
    compared_positions = [
        k
        for k, i in enumerate(prior.indices)
        if identification.is_free[i] and identification.unknowns[i].name in plant.identifiable
    ]
    compared_indices = prior.indices[compared_positions]
    difference = identification.fit.coordinates[compared_indices] - prior.coordinates[compared_positions]
    covariance = (
        identification.joint.covariance[np.ix_(compared_indices, compared_indices)]
        + prior.covariance[np.ix_(compared_positions, compared_positions)]
    )
    p_value = (
        float(chdtrc(len(compared_indices), difference @ np.linalg.solve(covariance, difference)))
        if len(compared_indices)
        else 1.0
    )
    changes = tuple(
        Change(
            identification.unknowns[i].name,
            identification.unknowns[i].unit,
            float(identification.unknowns[i].value(prior.coordinates[k])),
            float(identification.unknowns[i].value(identification.fit.coordinates[i])),
            float(2.0 * ndtr(-abs(d) / np.sqrt(v))),
        )
        for k, i, d, v in zip(compared_positions, compared_indices, difference, np.diag(covariance), strict=True)
    )
    return Sharpened(_combine(prior, identification), p_value, changes)


def _common_parameters(earlier_result: Result, identification: Identification, names: set[str]) -> _Prior:
    indices, positions, coordinates = [], [], []
    earlier_parameters = {p.name: (position, p) for position, p in enumerate(earlier_result.parameters)}
    covariance = np.array(earlier_result.covariance)
    for i, unknown in enumerate(identification.unknowns):
        position, parameter = earlier_parameters.get(unknown.name, (-1, None))
        if parameter is None or unknown.name not in names or parameter.logarithmic != unknown.is_logarithmic:
            continue
        if covariance[position, position] > 0.0 and parameter.value * unknown.start >= 0.0:
            indices.append(i)
            positions.append(position)
            coordinates.append(unknown.coordinate(parameter.value))
    return _Prior(np.array(indices, np.intp), np.array(coordinates), covariance[np.ix_(positions, positions)])


def _combine(prior: _Prior, identification: Identification) -> Identification:
    """Return ``identification`` with the product of both normal distributions as its joint distribution."""
    is_free = identification.is_free.copy()
    is_free[prior.indices] = True
    used_indices = np.flatnonzero(is_free)
    row_by_index = {i: k for k, i in enumerate(used_indices.tolist())}
    precision, weighted_sum = np.zeros((len(used_indices), len(used_indices))), np.zeros(len(used_indices))
    newer_indices = np.flatnonzero(identification.is_free)
    for indices, coordinates, covariance in (
        (
            newer_indices,
            identification.fit.coordinates[newer_indices],
            identification.joint.covariance[np.ix_(newer_indices, newer_indices)],
        ),
        prior,
    ):
        rows = [row_by_index[i] for i in indices.tolist()]
        information = np.linalg.inv(covariance)
        precision[np.ix_(rows, rows)] += information
        weighted_sum[rows] += information @ coordinates
    combined_covariance = np.linalg.inv(precision)
    coordinates = identification.fit.coordinates.copy()
    coordinates[used_indices] = combined_covariance @ weighted_sum
    for i in used_indices.tolist():
        if not identification.unknowns[i].is_logarithmic:
            coordinates[i] = min(max(coordinates[i], identification.unknowns[i].low), identification.unknowns[i].high)
    full_covariance = np.zeros_like(identification.joint.covariance)
    full_covariance[np.ix_(used_indices, used_indices)] = 0.5 * (combined_covariance + combined_covariance.T)
    held = {name: others for name, others in identification.held.items() if not is_free[_index(identification, name)]}
    return identification._replace(
        fit=identification.fit._replace(coordinates=coordinates),
        joint=JointDistribution(full_covariance, identification.joint.inflation),
        is_free=is_free,
        held=held,
    )


def _index(identification: Identification, name: str) -> int:
    return [u.name for u in identification.unknowns].index(name)
