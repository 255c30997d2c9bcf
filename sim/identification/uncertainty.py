"""Uncertainty of a fit: sensor noise and the joint covariance of the parameters.

Each window has its own initial state, so errors of different windows are independent even if errors within a window are
correlated (quantisation is not white, and a disturbance persists until the window ends).  The covariance is the
cluster-robust sandwich over windows with jackknife correction (CR3) and the degrees of freedom of Bell and McCaffrey
2002, because often a few windows carry most of the information about a parameter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from onrig.sim.identification.fit import Fit
from onrig.sim.plants.integrate import Array

_ROUNDING_VARIANCE: Final = 1.0 / 12.0
"""Variance of a rounding error, in counts squared."""
_MIN_SEPARATION: Final = 0.25
"""Variance of the noise, as a share of the rounding variance, below which the two cannot be distinguished."""

_MIN_DEGREES_OF_FREEDOM: Final = 4.0
_UPPER_QUANTILE: Final = 0.975


class Noise(NamedTuple):
    """Standard deviations of the sensors (s,), with and without rounding to counts."""

    total: Array
    alone: Array
    """Standard deviation without rounding; 0 if rounding hides it."""
    spread: Array
    """Standard error of the logarithm of ``total``."""


class JointDistribution(NamedTuple):
    """Joint normal distribution of the coordinates around the fit."""

    covariance: Array
    """(p, p), scaled so that normal quantiles give the intervals; 0 for fixed coordinates."""
    inflation: Array
    """(p,): ratio to the variance under white noise."""


def noise_of(fit: Fit, resolutions: Array) -> Noise:
    """Estimate the noise from the residuals, corrected for the degrees of freedom of initial states and parameters."""
    degrees_of_freedom = np.sum(1.0 - fit.leverage, axis=(0, 1))
    window_sums = np.sum(fit.residuals**2, axis=1)
    parameter_fraction = fit.jacobian.shape[2] / max(fit.leverage[..., 0].size * fit.leverage.shape[2], 1)
    degrees_of_freedom = degrees_of_freedom * (1.0 - parameter_fraction)
    variance = np.sum(window_sums, axis=0) / degrees_of_freedom
    window_weight = np.sum(1.0 - fit.leverage, axis=1) / np.sum(1.0 - fit.leverage, axis=(0, 1))
    scatter = np.sqrt(np.sum((window_sums / degrees_of_freedom - window_weight * variance) ** 2, axis=0)) / variance
    rounding_variance = _ROUNDING_VARIANCE * resolutions**2
    noise_variance = variance - rounding_variance
    is_hidden = noise_variance < _MIN_SEPARATION * rounding_variance
    return Noise(np.sqrt(variance), np.where(is_hidden, 0.0, np.sqrt(np.maximum(noise_variance, 0.0))), 0.5 * scatter)


def joint_of(fit: Fit, is_free: NDArray[np.bool_]) -> JointDistribution:
    """Return the joint distribution of the free coordinates.  Raises LinAlgError if the problem is singular."""
    jacobian = fit.jacobian[:, :, is_free]
    information = np.swapaxes(jacobian, 1, 2) @ jacobian
    white_covariance = np.linalg.inv(np.sum(information, axis=0))
    scores = np.einsum("wrp,wr->wp", jacobian, fit.projected_residuals)
    corrected_scores = np.linalg.solve(
        np.eye(len(white_covariance)) - information @ white_covariance, scores[..., None]
    )[..., 0]
    changes = corrected_scores @ white_covariance  # (W, p): change of the estimate if a window is omitted
    window_shares = np.einsum("pi,wij,pj->wp", white_covariance, information, white_covariance) / np.diag(
        white_covariance
    )
    degrees_of_freedom = np.maximum(1.0 / np.sum(window_shares**2, axis=0), _MIN_DEGREES_OF_FREEDOM)
    widening = stdtrit(degrees_of_freedom, _UPPER_QUANTILE) / ndtri(_UPPER_QUANTILE)
    covariance = changes.T @ changes * np.outer(widening, widening)
    full_covariance, inflation = np.zeros((len(is_free), len(is_free))), np.ones(len(is_free))
    indices = np.flatnonzero(is_free)
    full_covariance[np.ix_(indices, indices)] = covariance
    inflation[indices] = np.diag(covariance) / np.diag(white_covariance)
    return JointDistribution(full_covariance, inflation)


def half_widths(joint: JointDistribution, level: float = 0.95) -> Array:
    """Return the half-width of each coordinate's interval (p,)."""
    return np.asarray(ndtri(0.5 + 0.5 * level) * np.sqrt(np.diag(joint.covariance)))
