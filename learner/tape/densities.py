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
"""Bound on |ln rho|, against overflow."""
_LOG_LIKELIHOOD_RATIO: Final = 20.0
"""Bound for ratios with an ordinary gradient: float32 overflows at 88, and 0 times infinity is NaN."""


def log_density(action: Array, mean: Array, std: Array) -> Array:
    """ln pi(a|s) of N(mean, std^2)."""
    return (square((action - mean) / std) * -0.5 - (log(std) + _HALF_LOG_2PI)).row_sums()


def score(action: Array, mean: Array, std: Array) -> tuple[Array, Array]:
    """Gradient of ln pi(a|s) with respect to mean and standard deviation, (B, m) each."""
    deviation = (action - mean) / std
    return deviation / std, (square(deviation) - 1.0) / std


def importance_ratio(log_pi: Array, log_mu: Array, max_ratio: float = math.inf) -> Array:
    """rho = pi(a|s) / mu(a|s), between e^-7 and e^7, at most ``max_ratio``.

    Its gradient is rho grad ln pi with the bounded rho: the bound limits the step and does not mask the experience.
    """
    constant_log_pi = log_pi.detach()
    rho = clip(exp(clip(constant_log_pi - log_mu, -_LOG_RATIO, _LOG_RATIO)), 0.0, max_ratio)
    return rho * (log_pi - constant_log_pi + 1.0)


def likelihood_ratio(log_pi: Array, log_mu: Array) -> Array:
    """pi(a|s) / mu(a|s), at most e^20, beyond which its gradient is 0."""
    return exp(clip(log_pi - log_mu, -math.inf, _LOG_LIKELIHOOD_RATIO))


def kl_divergence(mean_p: Array, std_p: Array, mean_q: Array, std_q: Array) -> Array:
    """KL(p || q) of N(mean_p, std_p^2) from N(mean_q, std_q^2)."""
    deviation = square(std_p) + square(mean_p - mean_q)
    return (log(std_q / std_p) + deviation / (square(std_q) * 2.0) - 0.5).row_sums()
