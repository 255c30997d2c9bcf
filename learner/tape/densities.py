"""Densities of diagonal Gaussian policies on a tape: ln pi(a|s), importance ratios, KL divergence.

Actions are samples before any clipping: (B, m).  Means and standard deviations are (B, m), or (1, m) if they are the
same in all states; results are (B, 1).
"""

from __future__ import annotations

import math
from typing import Final

from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import clip, exp, log, square

_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)
_LOG_RATIO: Final = 7.0
"""Bound on |ln rho|, which prevents overflow."""
_LOG_LIKELIHOOD_RATIO: Final = 20.0
"""Bound on the logarithm of ratios with an ordinary gradient: e^x overflows in float32 at x = 88, and 0 times infinity
is NaN."""


def log_density(action: Array, mean: Array, std: Array) -> Array:
    """Return ln pi(a|s) under N(mean, std^2)."""
    return (square((action - mean) / std) * -0.5 - (log(std) + _HALF_LOG_2PI)).row_sums()


def score(action: Array, mean: Array, std: Array) -> tuple[Array, Array]:
    """Return the gradients of ln pi(a|s) with respect to mean and standard deviation, (B, m) each."""
    deviation = (action - mean) / std
    return deviation / std, (square(deviation) - 1.0) / std


def importance_ratio(log_pi: Array, log_mu: Array, max_ratio: float = math.inf) -> Array:
    """Return rho = pi(a|s) / mu(a|s), bounded to the range from e^-7 to e^7 and to at most ``max_ratio``.

    Its gradient is rho grad ln pi with the bounded rho: the bound limits the step, but does not mask the experience.
    """
    constant_log_pi = log_pi.detach()
    rho = clip(exp(clip(constant_log_pi - log_mu, -_LOG_RATIO, _LOG_RATIO)), 0.0, max_ratio)
    return rho * (log_pi - constant_log_pi + 1.0)


def likelihood_ratio(log_pi: Array, log_mu: Array) -> Array:
    """Return pi(a|s) / mu(a|s), bounded to at most e^20; beyond the bound, its gradient is 0."""
    return exp(clip(log_pi - log_mu, -math.inf, _LOG_LIKELIHOOD_RATIO))


def kl_divergence(mean_p: Array, std_p: Array, mean_q: Array, std_q: Array) -> Array:
    """Return KL(p || q), where p is N(mean_p, std_p^2) and q is N(mean_q, std_q^2)."""
    deviation = square(std_p) + square(mean_p - mean_q)
    return (log(std_q / std_p) + deviation / (square(std_q) * 2.0) - 0.5).row_sums()
