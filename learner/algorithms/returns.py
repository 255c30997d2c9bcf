"""Estimates along episodes: off-policy returns (Retrace; Munos et al. 2016), and on-policy advantages (Schulman et al.
2016)."""

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
    next_slot: NDArray[np.int64],
    gamma: float,
    advantage: Column | None = None,
) -> NDArray[np.float64]:
    """Compute Q^ret_t = r_{t+1} + gamma V^tbc_{t+1} for the experiences in one memory's slots; all columns are (n,).

    V^tbc_t = V_t + min(1, rho_t) (Q^ret_t - V_t - A_t) (Novati and Koumoutsakos 2019, eq. 8, App. E); without
    ``advantage``, A is 0.  After the last experience of a chain, V^tbc is ``end_value``, which must be 0 where the task
    terminated.  ``next_slot``: slot of the episode's next experience, -1 if none follows.
    """
    action_advantage = np.zeros(len(value)) if advantage is None else advantage
    reward, value, trace, action_advantage, end_value = (
        np.ascontiguousarray(column, np.float64)
        for column in (reward, value, np.minimum(1.0, ratio), action_advantage, end_value)
    )
    native = _native()
    if native is None:
        return _retrace_numpy(reward, value, trace, action_advantage, end_value, next_slot, gamma)
    n, next_slot = len(value), np.ascontiguousarray(next_slot, np.int64)
    q, previous_slot = np.empty(n), np.empty(n, np.int64)
    columns = (reward, value, trace, action_advantage, end_value, next_slot)
    native(n, *(column.ctypes.data for column in columns), gamma, previous_slot.ctypes.data, q.ctypes.data)
    return q


def _retrace_numpy(
    reward: Column,
    value: Column,
    trace: Column,
    advantage: Column,
    end_value: Column,
    next_slot: NDArray[np.int64],
    gamma: float,
) -> NDArray[np.float64]:
    """Compute ``retrace`` without the C library, one step of all chains at a time; bit-identical to the library."""
    q = np.asarray(reward + gamma * end_value, np.float64)
    previous_slots = np.full(len(q), -1)
    slots_with_next = np.flatnonzero(next_slot >= 0)
    previous_slots[next_slot[slots_with_next]] = slots_with_next
    current_slots = previous_slots[next_slot < 0]
    while len(current_slots := current_slots[current_slots >= 0]):
        next_slots = next_slot[current_slots]
        q[current_slots] = reward[current_slots] + gamma * (
            value[next_slots] + trace[next_slots] * (q[next_slots] - value[next_slots] - advantage[next_slots])
        )
        current_slots = previous_slots[current_slots]
    return q


@cache
def _native() -> Callable[..., None] | None:
    native_library = library()
    if native_library is None:
        return None
    function = native_library["onrig_retrace"]
    function.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 6, ctypes.c_double, *[ctypes.c_void_p] * 2]
    function.restype = None
    return function


def generalised_advantages(
    error: Column, is_end: NDArray[np.bool_], gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """Compute A_t = sum_l (gamma lambda)^l delta_{t+l}, (..., T), up to the end of the episode or of the T steps.

    ``error`` holds delta_t = r_{t+1} + gamma V(s_{t+1}) - V(s_t), without V(s_{t+1}) where the task terminated;
    ``is_end`` marks the ends of episodes, by termination or truncation.  This is generalised advantage estimation.
    """
    advantage = np.array(error, np.float64)
    factor = np.where(is_end, 0.0, gamma * gae_lambda)
    covered_steps = 1
    while covered_steps < advantage.shape[-1]:  # doubling: each entry covers ``covered_steps`` steps so far
        advantage[..., :-covered_steps] += factor[..., :-covered_steps] * advantage[..., covered_steps:]
        factor[..., :-covered_steps] *= factor[..., covered_steps:]
        covered_steps *= 2
    return advantage
