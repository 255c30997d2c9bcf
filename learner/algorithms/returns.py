"""Estimates along episodes: of returns from actions of older policies (Retrace; Munos et al. 2016), and of advantages
from those of the present one (Schulman et al. 2016)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.floating]


def linear_recursion(offset: Column, factor: Column, after: NDArray[np.int64]) -> NDArray[np.float64]:
    """Solve y_i = offset_i + factor_i y_after(i), all (n,), by doubling; ``after`` is -1 where nothing follows.

    As many passes as the logarithm of the longest chain; with factors within [0, 1) products only shrink.
    """
    n = len(offset)
    y, a = np.append(offset, 0.0), np.append(np.where(after < 0, 0.0, factor), 0.0)
    ahead = np.append(np.where(after < 0, n, after), n)
    while ahead.min() < n:
        y += a * y[ahead]
        a *= a[ahead]
        ahead = ahead[ahead]
    return np.asarray(y[:n], np.float64)


def retrace(
    reward: Column,
    value: Column,
    ratio: Column,
    end_value: Column,
    after: NDArray[np.int64],
    gamma: float,
    advantage: Column | None = None,
) -> NDArray[np.float64]:
    """Q^ret_t = r_{t+1} + gamma V^tbc_{t+1} of the experiences in the slots of one memory, (n,) each.

    V^tbc_t = V_t + min(1, rho_t) (Q^ret_t - V_t - A_t) (Novati and Koumoutsakos 2019, eq. 8, App. E); without
    ``advantage`` A is 0.  Behind the last experience of a chain it is ``end_value``: 0 where the task terminated.
    """
    follows, trace = after >= 0, np.minimum(1.0, ratio)
    q = value if advantage is None else value + advantage
    beyond = np.where(follows, (value - trace * q)[after], end_value)
    return linear_recursion(reward + gamma * beyond, gamma * trace[after], after)


def generalised_advantages(
    error: Column, ended: NDArray[np.bool_], gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """A_t = sum_l (gamma lambda)^l delta_{t+l}, (..., T), to the end of the episode or of the T steps.

    ``error`` holds delta_t = r_{t+1} + gamma V(s_{t+1}) - V(s_t), without V(s_{t+1}) where the task terminated;
    ``ended`` says where an episode did, by termination or truncation (generalised advantage estimation).
    """
    advantage = np.array(error, np.float64)
    factor = np.where(ended, 0.0, gamma * gae_lambda)
    ahead = 1
    while ahead < advantage.shape[-1]:  # by doubling: so far of as many steps each
        advantage[..., :-ahead] += factor[..., :-ahead] * advantage[..., ahead:]
        factor[..., :-ahead] *= factor[..., ahead:]
        ahead *= 2
    return advantage
