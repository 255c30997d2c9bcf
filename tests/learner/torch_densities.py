"""Densities of diagonal Gaussian policies: ln pi(a|s), importance ratios, and both KL divergences.

Pure functions of tensors (..., m), summed over the actions: (...).  Actions are those drawn, before any clipping.
"""

from __future__ import annotations

import math
from typing import Final

import torch

_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)
_MAX_LOG_RATIO: Final = 7.0
"""Bound of |ln rho|, against overflow."""
_MAX_LOG_LIKELIHOOD_RATIO: Final = 20.0
"""The same for ratios with an ordinary gradient: float32 overflows at 88, and 0 times infinity is NaN."""


def log_density(action: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """ln pi(a|s) of N(mean, std^2)."""
    return (-0.5 * ((action - mean) / std).square() - std.log() - _HALF_LOG_2PI).sum(-1)


def importance_ratio(log_pi: torch.Tensor, log_mu: torch.Tensor, max_ratio: float = math.inf) -> torch.Tensor:
    """rho = pi(a|s) / mu(a|s), within e^-7 and e^7, at most ``max_ratio``.

    Its gradient is rho grad ln pi of the bounded rho: a bound limits the step and does not mask the experience.
    """
    rho = (log_pi - log_mu).detach().clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp().clamp(max=max_ratio)
    return rho * (1.0 + (log_pi - log_pi.detach()))


def likelihood_ratio(log_pi: torch.Tensor, log_mu: torch.Tensor) -> torch.Tensor:
    """pi(a|s) / mu(a|s), at most e^20, where its gradient ends."""
    return (log_pi - log_mu).clamp(max=_MAX_LOG_LIKELIHOOD_RATIO).exp()


def kl_divergence(mean_p: torch.Tensor, std_p: torch.Tensor, mean_q: torch.Tensor, std_q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of N(mean_p, std_p^2) from N(mean_q, std_q^2)."""
    policy_distance = std_p.square() + (mean_p - mean_q).square()
    return ((std_q / std_p).log() + policy_distance / (2.0 * std_q.square()) - 0.5).sum(-1)
