"""Identifiability of the unknowns: individually, and as combinations of the declared parameters.

A plant's author declares fields, such as mass and length, but motion may reveal only their products and ratios.  The
posterior covariance of the declared parameters, each in units of its prior, has an eigenvector for every combination;
if its standard deviation stays above ``THRESHOLD``, the signals do not determine it, and one of its parameters is held
at its configured value.
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
The prior of a parameter is a factor e, or a quarter of its bounds."""
_MIN_COMPONENT: Final = 0.2
"""Minimum component of a combination's unit vector for a parameter to be reported as part of it."""
_EQUIVALENCE_TOLERANCE: Final = 1e-3
"""Difference of the shares in undetermined combinations below which two parameters are equivalent."""


class Identifiability(NamedTuple):
    """Unknowns that can be fitted, and those held at their initial values."""

    free: NDArray[np.bool_]
    """(p,)."""
    held: dict[str, tuple[str, ...]]
    """Declared parameters that the signals cannot distinguish from others, each with those others."""


def identifiable(fit: Fit, unknowns: Sequence[Unknown], declared: Collection[str]) -> Identifiability:
    """Separate the unknowns that the fit determines from the others; ``declared``: names of the plant's parameters."""
    jacobian = fit.jacobian.reshape(-1, len(unknowns))
    information = jacobian.T @ jacobian
    prior = np.array([1.0 if u.logarithmic else 0.25 * (u.high - u.low) for u in unknowns])
    free, held = np.ones(len(unknowns), bool), {}
    is_plant_field = np.array([u.name in declared for u in unknowns])
    while free.any():
        some = information[np.ix_(free.nonzero()[0], free.nonzero()[0])]
        covariance = np.linalg.inv(some + np.diag(prior[free] ** -2.0))
        posterior_ratio = np.sqrt(np.diag(covariance)) / prior[free]
        indices = np.flatnonzero(is_plant_field[free])
        if posterior_ratio.max() >= MAX_POSTERIOR_RATIO and not (
            len(indices) > 1 and posterior_ratio.argmax() in indices
        ):
            free[free.nonzero()[0][posterior_ratio.argmax()]] = False
            continue
        combination = _undetermined(
            covariance[np.ix_(indices, indices)] / np.outer(prior[free][indices], prior[free][indices])
        )
        if combination is None:
            break
        names = [unknowns[i].name for i in free.nonzero()[0][indices]]
        worst, partners = combination
        if partners:
            held[names[worst]] = tuple(names[k] for k in partners)
        free[free.nonzero()[0][indices[worst]]] = False
    return Identifiability(free, held)


def _undetermined(covariance: Array) -> tuple[int, list[int]] | None:
    """Parameter with the largest share in undetermined combinations, and those that it cannot be distinguished from."""
    if not len(covariance):
        return None
    variances, directions = np.linalg.eigh(covariance)
    undetermined = directions[:, variances >= MAX_POSTERIOR_RATIO**2]
    if not undetermined.shape[1]:
        return None
    shares = np.sum(undetermined**2, axis=1)
    worst = int(np.flatnonzero(shares > shares.max() - _EQUIVALENCE_TOLERANCE)[-1])  # ties go to the one declared last
    along = undetermined @ undetermined[worst]
    along /= np.linalg.norm(along)
    return worst, [k for k in range(len(along)) if k != worst and abs(along[k]) > _MIN_COMPONENT]


def hold_fixed(fit: Fit, unknowns: Sequence[Unknown], free: NDArray[np.bool_]) -> Fit:
    """Return the fit after setting the unknowns that are not free to their initial values (imperfections to 0)."""
    initial = [u.coordinate(u.start) if u.logarithmic else max(u.low, 0.0) for u in unknowns]
    return fit._replace(coordinates=np.where(free, fit.coordinates, initial))
