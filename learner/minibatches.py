"""What consecutive updates learn from, and the packed records the update kernels read it from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.networks import padded


@dataclass(frozen=True)
class Minibatches:
    """K consecutive minibatches of B experiences for each of S trials; normalised units, raw rewards."""

    observation: NDArray[np.floating]
    """(K, S, B, n)"""
    action: NDArray[np.floating]
    """The applied action, (K, S, B, m)."""
    reward: NDArray[np.floating]
    """(K, S, B)"""
    next_observation: NDArray[np.floating]
    """(K, S, B, n)"""
    terminated: NDArray[np.bool_]
    """True where s' ends the task, (K, S, B).  An episode that ends by time is truncated, which is not this."""
    weights: NDArray[np.floating] | None = None
    """Importance-sampling weights on the critic's gradient (000 §3.3.2), (K, S, B); None for all 1."""


class Record:
    """Buffers one update reads its minibatch from, filled by a single copy of a packed record.

    Shapes, with rows and columns padded (``onrig.learner.networks.WIDTH``): ``x`` (2S, B, n + 1) holds s, then s', each
    with the constant unit behind it; ``reward``, ``discount`` (0 where terminated) and ``weight`` (-2 w / B) are (S, B,
    1); ``actions`` (2S, B, m) holds the applied actions, then room for the target policy's, which is no part of the
    record.
    """

    def __init__(self, trials: int, batch: int, n: int, m: int, dtype: torch.dtype) -> None:
        rows = padded(batch)
        self._batch, self._n, self._m = batch, n, m
        self._shape = (trials, rows)
        scalar, action = trials * rows, trials * rows * padded(m)
        self._cuts = [int(c) for c in np.cumsum([2 * scalar * padded(n + 1), scalar, scalar, scalar])]
        self._size = self._cuts[-1] + action
        memory = torch.zeros(self._size + action, dtype=dtype)
        self.memory = memory[: self._size]
        x, reward, discount, weight, actions = memory.tensor_split(self._cuts)
        self.x = x.view(2 * trials, rows, -1)
        self.reward, self.discount, self.weight = (t.view(trials, rows, 1) for t in (reward, discount, weight))
        self.actions = actions.view(2 * trials, rows, -1)
        self._packed = torch.zeros((0, self._size), dtype=dtype)

    def pack(self, batches: Minibatches, gamma: float, reward_scale: float) -> tuple[torch.Tensor, ...]:
        """Write K records, one assignment per field, into memory that is kept for the next call.

        Raises ValueError when the minibatches are of another shape.
        """
        (S, rows), B, n, m = self._shape, self._batch, self._n, self._m
        K = len(batches.reward)
        if batches.observation.shape != (K, S, B, n) or batches.action.shape != (K, S, B, m):
            got = f"{batches.observation.shape} and {batches.action.shape}"
            raise ValueError(f"observations and actions of shape {got}, expected {(K, S, B, n)} and {(K, S, B, m)}")
        if len(self._packed) != K:
            self._packed = torch.zeros((K, self._size), dtype=self.memory.dtype)
        x, reward, discount, weight, action = np.split(self._packed.numpy(), self._cuts, axis=1)
        x = x.reshape(K, 2, S, rows, -1)
        x[:, 0, :, :B, :n] = batches.observation
        x[:, 1, :, :B, :n] = batches.next_observation
        x[:, :, :, :B, n] = 1.0
        reward.reshape(K, S, rows)[:, :, :B] = batches.reward * reward_scale
        discount.reshape(K, S, rows)[:, :, :B] = np.where(batches.terminated, 0.0, gamma)
        weight.reshape(K, S, rows)[:, :, :B] = -2.0 / B * (1.0 if batches.weights is None else batches.weights)
        action.reshape(K, S, rows, -1)[:, :, :B, :m] = batches.action
        return self._packed.unbind(0)
