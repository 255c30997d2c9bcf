"""Estimates along episodes: returns from actions of older policies (Retrace; Munos et al. 2016), and advantages of the
present policy's actions (Schulman et al. 2016)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import library

Column = NDArray[np.floating]


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
    ``advantage`` A is 0.  After the last experience of a chain V^tbc is ``end_value``: 0 where the task terminated.
    ``after``: slot of the next experience of the episode, -1 if none follows.
    """
    action_advantage = np.zeros(len(value)) if advantage is None else advantage
    reward, value, trace, action_advantage, end_value = (
        np.ascontiguousarray(column, np.float64)
        for column in (reward, value, np.minimum(1.0, ratio), action_advantage, end_value)
    )
    native = _native()
    if native is None:
        return _retrace_numpy(reward, value, trace, action_advantage, end_value, after, gamma)
    n, after = len(value), np.ascontiguousarray(after, np.int64)
    q, before = np.empty(n), np.empty(n, np.int64)
    columns = (reward, value, trace, action_advantage, end_value, after)
    native(n, *(column.ctypes.data for column in columns), gamma, before.ctypes.data, q.ctypes.data)
    return q


def _retrace_numpy(
    reward: Column,
    value: Column,
    trace: Column,
    advantage: Column,
    end_value: Column,
    after: NDArray[np.int64],
    gamma: float,
) -> NDArray[np.float64]:
    """Compute ``retrace`` without the C library, one step of all chains at a time; bit-identical to it."""
    q = np.asarray(reward + gamma * end_value, np.float64)
    previous_slots = np.full(len(q), -1)
    has_next = np.flatnonzero(after >= 0)
    previous_slots[after[has_next]] = has_next
    current = previous_slots[after < 0]
    while len(current := current[current >= 0]):
        ahead = after[current]
        q[current] = reward[current] + gamma * (
            value[ahead] + trace[ahead] * (q[ahead] - value[ahead] - advantage[ahead])
        )
        current = previous_slots[current]
    return q


@cache
def _native() -> Callable[..., None] | None:
    loaded = library()
    if loaded is None:
        return None
    function = loaded["onrig_retrace"]
    function.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 6, ctypes.c_double, *[ctypes.c_void_p] * 2]
    function.restype = None
    return function


def generalised_advantages(
    error: Column, ended: NDArray[np.bool_], gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """A_t = sum_l (gamma lambda)^l delta_{t+l}, (..., T), to the end of the episode or of the T steps.

    ``error`` holds delta_t = r_{t+1} + gamma V(s_{t+1}) - V(s_t), without V(s_{t+1}) where the task terminated;
    ``ended`` marks the ends of episodes, by termination or truncation (generalised advantage estimation).
    """
    advantage = np.array(error, np.float64)
    factor = np.where(ended, 0.0, gamma * gae_lambda)
    ahead = 1
    while ahead < advantage.shape[-1]:  # doubling: each entry covers ``ahead`` steps so far
        advantage[..., :-ahead] += factor[..., :-ahead] * advantage[..., ahead:]
        factor[..., :-ahead] *= factor[..., ahead:]
        ahead *= 2
    return advantage
