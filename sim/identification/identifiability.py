"""Identifiability of the unknowns: individually, and as combinations of the declared parameters.

A plant's author declares fields, such as mass and length, but motion may reveal only their products and ratios.  The
posterior covariance of the declared parameters, each in units of its prior, has an eigenvector for every combination;
if its standard deviation is at least ``MAX_POSTERIOR_RATIO``, the signals do not determine it, and one of its
parameters is held at its configured value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.identification.fit import Fit
from onrig.sim.identification.model import Unknown
from onrig.sim.plants.integrate import Array

MAX_POSTERIOR_RATIO: Final = 0.7
"""Ratio of posterior to prior standard deviation from which a parameter or a combination counts as not identifiable.
The prior standard deviation of a parameter is a factor of e, or a quarter of the range between its bounds."""
_MIN_COMPONENT: Final = 0.2
"""Minimum component of a combination's unit vector for a parameter to be reported as part of it."""
_EQUIVALENCE_TOLERANCE: Final = 1e-3
"""Difference between two parameters' shares in undetermined combinations below which they count as equivalent."""


class Identifiability(NamedTuple):
    """Unknowns that can be fitted, and those held at their initial values."""

    is_free: NDArray[np.bool_]
    """(p,)."""
    held: dict[str, tuple[str, ...]]
    """Declared parameters that the signals cannot distinguish from others, each mapped to those others."""


def separate_identifiable(fit: Fit, unknowns: Sequence[Unknown], declared: Collection[str]) -> Identifiability:
    """Separate the unknowns that the fit determines from the others; ``declared``: names of the plant's parameters."""
    jacobian = fit.jacobian.reshape(-1, len(unknowns))
    information = jacobian.T @ jacobian
    prior = np.array([1.0 if u.is_logarithmic else 0.25 * (u.high - u.low) for u in unknowns])
    is_free, held = np.ones(len(unknowns), bool), {}
    is_plant_field = np.array([u.name in declared for u in unknowns])
    while is_free.any():
        free_information = information[np.ix_(is_free.nonzero()[0], is_free.nonzero()[0])]
        covariance = np.linalg.inv(free_information + np.diag(prior[is_free] ** -2.0))
        posterior_ratio = np.sqrt(np.diag(covariance)) / prior[is_free]
        indices = np.flatnonzero(is_plant_field[is_free])
        if posterior_ratio.max() >= MAX_POSTERIOR_RATIO and not (
            len(indices) > 1 and posterior_ratio.argmax() in indices
        ):
            is_free[is_free.nonzero()[0][posterior_ratio.argmax()]] = False
            continue
        combination = _find_undetermined(
            covariance[np.ix_(indices, indices)] / np.outer(prior[is_free][indices], prior[is_free][indices])
        )
        if combination is None:
            break
        names = [unknowns[i].name for i in is_free.nonzero()[0][indices]]
        worst_index, partners = combination
        if partners:
            held[names[worst_index]] = tuple(names[k] for k in partners)
        is_free[is_free.nonzero()[0][indices[worst_index]]] = False
    return Identifiability(is_free, held)


def _find_undetermined(covariance: Array) -> tuple[int, list[int]] | None:
    """Return the parameter with the largest share in undetermined combinations, and those indistinguishable from it."""
    if not len(covariance):
        return None
    variances, directions = np.linalg.eigh(covariance)
    undetermined_directions = directions[:, variances >= MAX_POSTERIOR_RATIO**2]
    if not undetermined_directions.shape[1]:
        return None
    participations = np.sum(undetermined_directions**2, axis=1)
    worst_index = int(
        np.flatnonzero(participations > participations.max() - _EQUIVALENCE_TOLERANCE)[-1]
    )  # ties go to the one declared last
    projections = undetermined_directions @ undetermined_directions[worst_index]
    projections /= np.linalg.norm(projections)
    return worst_index, [
        k for k in range(len(projections)) if k != worst_index and abs(projections[k]) > _MIN_COMPONENT
    ]


def hold_fixed(fit: Fit, unknowns: Sequence[Unknown], is_free: NDArray[np.bool_]) -> Fit:
    """Return the fit after setting the unknowns that are not free to their initial values (imperfections to 0)."""
    initial_coordinates = [u.coordinate(u.start) if u.is_logarithmic else max(u.low, 0.0) for u in unknowns]
    return fit._replace(coordinates=np.where(is_free, fit.coordinates, initial_coordinates))
