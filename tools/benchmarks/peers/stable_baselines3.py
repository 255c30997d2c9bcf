"""Stable-Baselines3: ``ReplayBuffer`` of one environment; it has no prioritised one.

Time limits are told apart from terminations, as is its default and as Onrig does.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from onrig.tools.benchmarks.peers import Buffer, Columns, Unavailable, uniform_law
from onrig.tools.benchmarks.transitions import BATCH, Errors, Floats, Transitions

_INFOS: Final[list[dict[str, bool]]] = [{}]

torch.set_num_threads(1)


class _StableBaselines3(Buffer):
    def __init__(self, n_obs: int, n_act: int, capacity: int) -> None:
        observations, actions = Box(-1.0, 1.0, (n_obs,), np.float32), Box(-1.0, 1.0, (n_act,), np.float32)
        self._capacity = capacity
        self._memory = ReplayBuffer(capacity, observations, actions, device="cpu")
        self._add = self._memory.add
        self._arguments: list[tuple[object, ...]] = []

    def extend(self, t: Transitions) -> None:
        for row in _rows(t):
            self._add(*row)

    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        """Nothing goes by errors here."""

    def law(self, td: Floats) -> NDArray[np.float64]:
        return uniform_law(self._capacity)

    def columns(self) -> Columns:
        s = self._memory.sample(BATCH)
        fields = (s.observations, s.actions, s.rewards[:, 0], s.next_observations, s.dones[:, 0])
        return Columns(*(field.numpy() for field in fields))

    def prepare(self, t: Transitions, e: Errors) -> None:
        self._arguments = _rows(t)

    def insert(self, i: int) -> object:
        o, n, a, r, d, infos = self._arguments[i]
        return self._add(o, n, a, r, d, infos)

    def sample(self, size: int) -> object:
        return self._memory.sample(size)

    def update(self, i: int) -> None:
        """Nothing goes by errors here."""

    def learn(self, i: int) -> None:
        self._memory.sample(BATCH)


def _rows(t: Transitions) -> list[tuple[object, ...]]:
    """Give each transition the axis of the one environment, as a vectorised environment does."""
    fields = (t.observation, t.next_observation, t.action, t.reward, t.terminated)
    return [(*(f[i : i + 1] for f in fields), _INFOS) for i in range(len(t.reward))]


def build(kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> Buffer:
    """Build an empty memory, drawn from with numpy's global generator; ``Unavailable`` for a prioritised one."""
    if kind != "Uniform":
        raise Unavailable("it has no prioritised memory")
    np.random.seed(seed)
    return _StableBaselines3(n_obs, n_act, capacity)
