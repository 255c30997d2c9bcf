"""Memories of other libraries, each imported only in the process that measures it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.tools.bench.replay.buffers import (
    ALPHA,
    BATCH_SIZE,
    BETA,
    Buffer,
    Columns,
    Errors,
    Floats,
    Transitions,
    proportional_probabilities,
    uniform_probabilities,
)
from onrig.tools.workers import Unavailable

ErrorSink = Callable[[Any, Any], object]
BufferFactory = Callable[[str, int, int, int, int], Buffer]


class _Peer(Buffer):
    """Base of the other libraries' memories; ``_apply_errors`` assigns errors to slots."""

    _EPSILON = 0.0
    """Constant that the library adds to priorities."""

    def __init__(self, kind: str, capacity: int) -> None:
        self._is_prioritised = kind == "PER"
        self._capacity = capacity
        self._arguments: list[Any] = []
        self._slots: list[Any] = []
        self._td: list[Any] = []
        self._apply_errors: ErrorSink = lambda slots, td: None

    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        if self._is_prioritised:
            self._apply_errors(slots, td)

    def probabilities(self, td: Floats) -> NDArray[np.float64]:
        return (
            proportional_probabilities(td, self._EPSILON)
            if self._is_prioritised
            else uniform_probabilities(self._capacity)
        )

    def prepare(self, t: Transitions, e: Errors) -> None:
        self._arguments = self._rows(t)
        self._slots, self._td = list(e.slots), list(e.td)

    def _rows(self, t: Transitions) -> list[Any]:
        raise NotImplementedError

    def update(self, i: int) -> None:
        self._apply_errors(self._slots[i], self._td[i])


class _Cpprb(_Peer):
    """Memory of cpprb, filled by ``add`` with keyword arguments; samples are dictionaries of arrays.

    The library seeds itself.
    """

    _EPSILON = 1e-4

    def __init__(self, kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> None:
        import cpprb

        super().__init__(kind, capacity)
        fields = {"obs": {"shape": n_obs}, "act": {"shape": n_act}, "rew": {}, "next_obs": {"shape": n_obs}, "done": {}}
        if self._is_prioritised:
            self._memory = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA, eps=self._EPSILON)
            self._apply_errors = self._memory.update_priorities
        else:
            self._memory = cpprb.ReplayBuffer(capacity, fields)
        self._add = self._memory.add

    def extend(self, t: Transitions) -> None:
        self._add(obs=t.observation, act=t.action, rew=t.reward, next_obs=t.next_observation, done=t.terminated)

    def columns(self) -> Columns:
        s = self._draw(BATCH_SIZE)
        return Columns(s["obs"], s["act"], s["rew"][:, 0], s["next_obs"], s["done"][:, 0])

    def _rows(self, t: Transitions) -> list[Any]:
        rewards, done = t.reward.tolist(), t.terminated.astype(float).tolist()
        rows = zip(t.observation, t.action, rewards, t.next_observation, done, strict=True)
        return [{"obs": o, "act": a, "rew": r, "next_obs": n, "done": d} for o, a, r, n, d in rows]

    def insert(self, i: int) -> object:
        return self._add(**self._arguments[i])

    def sample(self, size: int) -> object:
        return self._draw(size)

    def _draw(self, size: int) -> dict[str, NDArray[np.float32]]:
        sample: dict[str, NDArray[np.float32]]
        sample = self._memory.sample(size, BETA) if self._is_prioritised else self._memory.sample(size)
        return sample

    def learn(self, i: int) -> None:
        sample = self._draw(BATCH_SIZE)
        if self._is_prioritised:
            self._apply_errors(sample["indexes"], self._td[i])


class _StableBaselines3(_Peer):
    """``ReplayBuffer`` for one environment, which draws with numpy's global generator.

    The library has no prioritised memory. Time limits are distinguished from terminations, which is the library's
    default and what Onrig does.
    """

    def __init__(self, kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> None:
        if kind != "Uniform":
            raise Unavailable("no prioritised memory")
        from gymnasium.spaces import Box
        from stable_baselines3.common.buffers import ReplayBuffer

        super().__init__(kind, capacity)
        _one_torch_thread()
        np.random.seed(seed)
        observations, actions = Box(-1.0, 1.0, (n_obs,), np.float32), Box(-1.0, 1.0, (n_act,), np.float32)
        self._memory = ReplayBuffer(capacity, observations, actions, device="cpu")
        self._add = self._memory.add

    def extend(self, t: Transitions) -> None:
        for row in self._rows(t):
            self._add(*row)

    def columns(self) -> Columns:
        s = self._memory.sample(BATCH_SIZE)
        fields = (s.observations, s.actions, s.rewards[:, 0], s.next_observations, s.dones[:, 0])
        return Columns(*(field.numpy() for field in fields))

    def _rows(self, t: Transitions) -> list[Any]:
        """Split transitions into rows with the environment axis of a vectorised environment."""
        fields = (t.observation, t.next_observation, t.action, t.reward, t.terminated)
        no_infos: list[dict[str, bool]] = [{}]
        return [(*(f[i : i + 1] for f in fields), no_infos) for i in range(len(t.reward))]

    def insert(self, i: int) -> object:
        o, n, a, r, d, infos = self._arguments[i]
        return self._add(o, n, a, r, d, infos)

    def sample(self, size: int) -> object:
        return self._memory.sample(size)

    def learn(self, i: int) -> None:
        self._memory.sample(BATCH_SIZE)


class _Tianshou(_Peer):
    """Memory of Tianshou, filled by ``add`` with a ``Batch`` as in the library's collector.

    The prioritised memory draws with numpy's global generator.
    """

    _EPSILON = float(np.finfo(np.float32).eps)

    def __init__(self, kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> None:
        from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

        super().__init__(kind, capacity)
        _one_torch_thread()
        np.random.seed(seed)
        if self._is_prioritised:
            self._memory = PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA, random_seed=seed)
            self._apply_errors = self._memory.update_weight
        else:
            self._memory = ReplayBuffer(capacity, random_seed=seed)
        self._add = self._memory.add
        self._from_data = ReplayBuffer.from_data

    def extend(self, t: Transitions) -> None:
        truncated = np.zeros(len(t.reward), np.bool_)
        self._memory.update(
            self._from_data(
                obs=t.observation,
                act=t.action,
                rew=t.reward.astype(np.float64),
                terminated=t.terminated,
                truncated=truncated,
                done=t.terminated,
                obs_next=t.next_observation,
            )
        )

    def columns(self) -> Columns:
        s, _ = self._memory.sample(BATCH_SIZE)
        return Columns(s.obs, s.act, s.rew, s.obs_next, s.terminated)

    def _rows(self, t: Transitions) -> list[Any]:
        from tianshou.data import Batch

        rows = zip(t.observation, t.action, t.reward.tolist(), t.next_observation, t.terminated.tolist(), strict=True)
        return [Batch(obs=o, act=a, rew=r, terminated=d, truncated=False, obs_next=n) for o, a, r, n, d in rows]

    def insert(self, i: int) -> object:
        return self._add(self._arguments[i])

    def sample(self, size: int) -> object:
        return self._memory.sample(size)

    def learn(self, i: int) -> None:
        _, slots = self._memory.sample(BATCH_SIZE)
        if self._is_prioritised:
            self._apply_errors(slots, self._td[i])


class _Torchrl(_Peer):
    """``ReplayBuffer`` over a preallocated storage, filled by ``add`` with a ``TensorDict``.

    ``TensorDictReplayBuffer`` is more convenient but takes up to twice as long.
    """

    _EPSILON = 1e-8
    _NAMES: Final = ("observation", "action", "reward", "next_observation", "terminated")

    def __init__(self, kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import PrioritizedSampler, ReplayBuffer
        from torchrl.data.replay_buffers import RandomSampler, TensorStorage

        super().__init__(kind, capacity)
        self._torch, self._tensordict = torch, TensorDict
        _one_torch_thread()
        torch.manual_seed(seed)
        np.random.seed(seed)
        zeros = Transitions(
            np.zeros((capacity, n_obs), np.float32),
            np.zeros((capacity, n_act), np.float32),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, n_obs), np.float32),
            np.zeros(capacity, np.bool_),
            np.zeros(0, np.float32),
        )
        sampler = RandomSampler()
        if self._is_prioritised:
            try:
                sampler = PrioritizedSampler(capacity, alpha=ALPHA, beta=BETA, eps=self._EPSILON)
            except RuntimeError as error:
                # The compiled extension requires the release of torch that it was built with.
                raise Unavailable(
                    f"the compiled extension of torchrl does not load with torch {torch.__version__}"
                ) from error
        # A storage built from tensors treats them as stored transitions, which inserts overwrite in order.
        self._memory = ReplayBuffer(storage=TensorStorage(self._to_tensordict(zeros, capacity)), sampler=sampler)
        self._add = self._memory.add
        if self._is_prioritised:
            self._apply_errors = self._memory.update_priority

    def _to_tensordict(self, t: Transitions, n: int) -> Any:
        fields = zip(self._NAMES, t[:5], strict=True)
        return self._tensordict({name: self._torch.from_numpy(f) for name, f in fields}, batch_size=[n])

    def extend(self, t: Transitions) -> None:
        self._memory.extend(self._to_tensordict(t, len(t.reward)))

    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        if self._is_prioritised:
            self._apply_errors(self._torch.from_numpy(slots), self._torch.from_numpy(td))

    def columns(self) -> Columns:
        s = self._memory.sample(BATCH_SIZE)
        return Columns(*(s[name].numpy() for name in self._NAMES))

    def prepare(self, t: Transitions, e: Errors) -> None:
        self._arguments = self._rows(t)
        self._slots, self._td = list(self._torch.from_numpy(e.slots)), list(self._torch.from_numpy(e.td))

    def _rows(self, t: Transitions) -> list[Any]:
        return [row.clone() for row in self._to_tensordict(t, len(t.reward)).unbind(0)]

    def insert(self, i: int) -> object:
        return self._add(self._arguments[i])

    def sample(self, size: int) -> object:
        return self._memory.sample(size)

    def learn(self, i: int) -> None:
        if not self._is_prioritised:
            self._memory.sample(BATCH_SIZE)
            return
        _, info = self._memory.sample(BATCH_SIZE, return_info=True)
        self._apply_errors(info["index"], self._td[i])


def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)


PEERS: Final[dict[str, BufferFactory]] = {
    "cpprb": _Cpprb,
    "torchrl": _Torchrl,
    "stable-baselines3": _StableBaselines3,
    "tianshou": _Tianshou,
}


def load_factory(package: str) -> BufferFactory:
    """Return the factory of ``package``'s memories. Raises ``Unavailable`` if the package cannot be imported."""
    build = PEERS[package]
    try:
        importlib.import_module(package.replace("-", "_"))
    except ImportError as error:
        raise Unavailable(f"cannot be imported: {error}") from error
    return build
