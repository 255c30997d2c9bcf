"""tianshou: ``add`` of a ``Batch``, as its collector makes them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

from onrig.tools.benchmarks.peers import ALPHA, BETA, Buffer, Columns, proportional_law, uniform_law
from onrig.tools.benchmarks.transitions import BATCH, Errors, Floats, Transitions

_EPSILON = float(np.finfo(np.float32).eps)

torch.set_num_threads(1)


class _Tianshou(Buffer):
    def __init__(self, kind: str, capacity: int, seed: int) -> None:
        self._prioritised = kind == "PER"
        self._capacity = capacity
        if self._prioritised:
            self._memory = PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA, random_seed=seed)
        else:
            self._memory = ReplayBuffer(capacity, random_seed=seed)
        self._add = self._memory.add
        self._arguments: list[object] = []
        self._slots: list[NDArray[np.int64]] = []
        self._td: list[Floats] = []

    def extend(self, t: Transitions) -> None:
        truncated = np.zeros(len(t.reward), np.bool_)
        self._memory.update(
            ReplayBuffer.from_data(
                obs=t.observation,
                act=t.action,
                rew=t.reward.astype(np.float64),
                terminated=t.terminated,
                truncated=truncated,
                done=t.terminated,
                obs_next=t.next_observation,
            )
        )

    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        if self._prioritised:
            self._memory.update_weight(slots, td)

    def law(self, td: Floats) -> NDArray[np.float64]:
        return proportional_law(td, _EPSILON) if self._prioritised else uniform_law(self._capacity)

    def columns(self) -> Columns:
        s, _ = self._memory.sample(BATCH)
        return Columns(s.obs, s.act, s.rew, s.obs_next, s.terminated)

    def prepare(self, t: Transitions, e: Errors) -> None:
        rows = zip(t.observation, t.action, t.reward.tolist(), t.next_observation, t.terminated.tolist(), strict=True)
        self._arguments = [
            Batch(obs=o, act=a, rew=r, terminated=d, truncated=False, obs_next=n) for o, a, r, n, d in rows
        ]
        self._slots, self._td = list(e.slots), list(e.td)

    def insert(self, i: int) -> object:
        return self._add(self._arguments[i])

    def sample(self, size: int) -> object:
        return self._memory.sample(size)

    def update(self, i: int) -> None:
        self._memory.update_weight(self._slots[i], self._td[i])

    def learn(self, i: int) -> None:
        _, slots = self._memory.sample(BATCH)
        if self._prioritised:
            self._memory.update_weight(slots, self._td[i])


def build(kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> Buffer:
    """Build an empty memory; the prioritised one draws from numpy's global generator."""
    np.random.seed(seed)
    return _Tianshou(kind, capacity, seed)
