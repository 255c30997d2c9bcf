"""cpprb: ``add`` with keyword arguments, samples as dictionaries of arrays."""

from __future__ import annotations

from typing import Final

import cpprb
import numpy as np
from numpy.typing import NDArray

from onrig.tools.benchmarks.peers import ALPHA, BETA, Buffer, Columns, proportional_law, uniform_law
from onrig.tools.benchmarks.transitions import BATCH, Errors, Floats, Transitions

_EPSILON: Final = 1e-4


class _Cpprb(Buffer):
    def __init__(self, kind: str, n_obs: int, n_act: int, capacity: int) -> None:
        fields = {"obs": {"shape": n_obs}, "act": {"shape": n_act}, "rew": {}, "next_obs": {"shape": n_obs}, "done": {}}
        self._prioritised = kind == "PER"
        self._capacity = capacity
        if self._prioritised:
            self._memory = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA, eps=_EPSILON)
        else:
            self._memory = cpprb.ReplayBuffer(capacity, fields)
        self._add = self._memory.add
        self._arguments: list[dict[str, NDArray[np.generic] | float]] = []
        self._slots: list[NDArray[np.int64]] = []
        self._td: list[Floats] = []

    def extend(self, t: Transitions) -> None:
        self._add(obs=t.observation, act=t.action, rew=t.reward, next_obs=t.next_observation, done=t.terminated)

    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        if self._prioritised:
            self._memory.update_priorities(slots, td)

    def law(self, td: Floats) -> NDArray[np.float64]:
        return proportional_law(td, _EPSILON) if self._prioritised else uniform_law(self._capacity)

    def columns(self) -> Columns:
        s = self._draw(BATCH)
        return Columns(s["obs"], s["act"], s["rew"][:, 0], s["next_obs"], s["done"][:, 0])

    def prepare(self, t: Transitions, e: Errors) -> None:
        rewards, done = t.reward.tolist(), t.terminated.astype(float).tolist()
        rows = zip(t.observation, t.action, rewards, t.next_observation, done, strict=True)
        self._arguments = [{"obs": o, "act": a, "rew": r, "next_obs": n, "done": d} for o, a, r, n, d in rows]
        self._slots, self._td = list(e.slots), list(e.td)

    def insert(self, i: int) -> object:
        return self._add(**self._arguments[i])

    def sample(self, size: int) -> object:
        return self._draw(size)

    def _draw(self, size: int) -> dict[str, NDArray[np.float32]]:
        sample: dict[str, NDArray[np.float32]]
        sample = self._memory.sample(size, BETA) if self._prioritised else self._memory.sample(size)
        return sample

    def update(self, i: int) -> None:
        self._memory.update_priorities(self._slots[i], self._td[i])

    def learn(self, i: int) -> None:
        sample = self._draw(BATCH)
        if self._prioritised:
            self._memory.update_priorities(sample["indexes"], self._td[i])


def build(kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> Buffer:
    """Build an empty memory; cpprb seeds itself."""
    return _Cpprb(kind, n_obs, n_act, capacity)
