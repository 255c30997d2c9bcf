"""How sure a fit is: the noise of the sensors, and the joint covariance of the parameters.

Each window has a start of its own, so that windows err independently of each other whatever the errors inside one are
like (quantisation is not white, and a disturbance of the motion lasts until the window ends).  The covariance is the
sandwich over windows with each one's leverage taken out (CR3, the jackknife of Bell and McCaffrey 2002).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from onrig.sim.identification.fit import Fit
from onrig.sim.plants.integrate import Array

_QUANTISED: Final = 1.0 / 12.0
"""Variance of a rounding error, in counts squared."""
_TOLD_APART: Final = 0.25
"""Noise below this share of a count's own rounding error cannot be told from it."""


class Noise(NamedTuple):
    """Standard deviations of the sensors (s,), rounding included, and of their noise alone."""

    total: Array
    alone: Array
    """0 where the rounding to counts hides it."""
    spread: Array
    """Standard error of the logarithm of ``total``."""


class Joint(NamedTuple):
    """Joint distribution of the coordinates: Student's t around the fit."""

    covariance: Array
    """(p, p)."""
    freedom: Array
    """(p,): degrees of freedom of each one."""
    model: Array
    """(p, p): what the covariance would be if the errors were white noise."""


def noise_of(fit: Fit, resolutions: Array) -> Noise:
    """Noise from the residuals, corrected for what the starts took of them."""
    left = np.sum(1.0 - fit.leverage, axis=(0, 1))
    per_window = np.sum(fit.residuals**2, axis=1)
    taken = fit.jacobian.shape[2] / max(fit.leverage[..., 0].size * fit.leverage.shape[2], 1)
    left = left * (1.0 - taken)
    variance = np.sum(per_window, axis=0) / left
    share = np.sum(1.0 - fit.leverage, axis=1) / np.sum(1.0 - fit.leverage, axis=(0, 1))
    scatter = np.sqrt(np.sum((per_window / left - share * variance) ** 2, axis=0)) / variance
    rounding = _QUANTISED * resolutions**2
    alone = variance - rounding
    hidden = alone < _TOLD_APART * rounding
    return Noise(np.sqrt(variance), np.where(hidden, 0.0, np.sqrt(np.maximum(alone, 0.0))), 0.5 * scatter)


def joint_of(fit: Fit, free: NDArray[np.bool_]) -> Joint:
    """Covariance of the free coordinates; 0 for the others.  Raises LinAlgError where the data tell nothing of one."""
    jacobian, residuals = fit.jacobian[:, :, free], fit.projected
    information = np.swapaxes(jacobian, 1, 2) @ jacobian
    model = np.linalg.inv(np.sum(information, axis=0))
    scores = np.einsum("wrp,wr->wp", jacobian, residuals)
    eye = np.eye(len(model))
    adjusted = np.linalg.solve(eye - information @ model, scores[..., None])[..., 0]
    influence = adjusted @ model  # (W, p): what each window moved the estimate by
    covariance = influence.T @ influence
    weight = np.einsum("pi,wij,pj->wp", model, information, model) / np.diag(model)
    freedom = 1.0 / np.sum(weight**2, axis=0)
    p = len(free)
    whole, white = np.zeros((p, p)), np.zeros((p, p))
    at = np.flatnonzero(free)
    whole[np.ix_(at, at)], white[np.ix_(at, at)] = covariance, model
    degrees = np.full(p, np.inf)
    degrees[free] = np.maximum(freedom, 2.0)
    return Joint(whole, degrees, white)


def half_widths(joint: Joint, level: float = 0.95) -> Array:
    """Half-width of each coordinate's interval (p,)."""
    return np.asarray(stats.t.ppf(0.5 + 0.5 * level, joint.freedom) * np.sqrt(np.diag(joint.covariance)))
