"""torchrl: ``ReplayBuffer`` over a storage that is allocated at start, ``add`` of a ``TensorDict``.

``TensorDictReplayBuffer`` does the same with more conveniences and takes up to twice as long.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torchrl.data import PrioritizedSampler, ReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, TensorStorage

from onrig.tools.benchmarks.peers import ALPHA, BETA, Buffer, Columns, Unavailable, proportional_law, uniform_law
from onrig.tools.benchmarks.transitions import BATCH, Errors, Floats, Transitions

_EPSILON: Final = 1e-8

torch.set_num_threads(1)


class _Torchrl(Buffer):
    def __init__(self, kind: str, n_obs: int, n_act: int, capacity: int) -> None:
        self._prioritised = kind == "PER"
        self._capacity = capacity
        zeros = Transitions(
            np.zeros((capacity, n_obs), np.float32),
            np.zeros((capacity, n_act), np.float32),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, n_obs), np.float32),
            np.zeros(capacity, np.bool_),
            np.zeros(0, np.float32),
        )
        sampler = RandomSampler()
        if self._prioritised:
            try:
                sampler = PrioritizedSampler(capacity, alpha=ALPHA, beta=BETA, eps=_EPSILON)
            except RuntimeError as error:
                # It does so only with the torch release it was built against.
                raise Unavailable(f"its compiled part does not load with torch {torch.__version__}") from error
        # A storage that is given its tensors counts them as stored; they are overwritten from the first one on.
        self._memory = ReplayBuffer(storage=TensorStorage(_tensordict(zeros, [capacity])), sampler=sampler)
        self._add = self._memory.add
        self._arguments: list[object] = []
        self._slots: list[object] = []
        self._td: list[object] = []

    def extend(self, t: Transitions) -> None:
        self._memory.extend(_tensordict(t, [len(t.reward)]))

    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        if self._prioritised:
            self._memory.update_priority(torch.from_numpy(slots), torch.from_numpy(td))

    def law(self, td: Floats) -> NDArray[np.float64]:
        return proportional_law(td, _EPSILON) if self._prioritised else uniform_law(self._capacity)

    def columns(self) -> Columns:
        s = self._memory.sample(BATCH)
        return Columns(*(s[name].numpy() for name in _NAMES))

    def prepare(self, t: Transitions, e: Errors) -> None:
        whole = _tensordict(t, [len(t.reward)])
        self._arguments = [row.clone() for row in whole.unbind(0)]
        self._slots, self._td = list(torch.from_numpy(e.slots)), list(torch.from_numpy(e.td))

    def insert(self, i: int) -> object:
        return self._add(self._arguments[i])

    def sample(self, size: int) -> object:
        return self._memory.sample(size)

    def update(self, i: int) -> None:
        self._memory.update_priority(self._slots[i], self._td[i])

    def learn(self, i: int) -> None:
        if not self._prioritised:
            self._memory.sample(BATCH)
            return
        _, info = self._memory.sample(BATCH, return_info=True)
        self._memory.update_priority(info["index"], self._td[i])


_NAMES: Final = ("observation", "action", "reward", "next_observation", "terminated")


def _tensordict(t: Transitions, size: list[int]) -> TensorDict:
    return TensorDict({name: torch.from_numpy(f) for name, f in zip(_NAMES, t[:5], strict=True)}, batch_size=size)


def build(kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> Buffer:
    """Build an empty memory; raises ``Unavailable`` for a prioritised one without its compiled part."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    return _Torchrl(kind, n_obs, n_act, capacity)
