"""Buffers that kernels are bound to: the minibatch an update reads, and forward passes for any number of states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import Minibatches
from onrig.learner.networks import Layout, padded


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

    def pack(
        self, batches: Minibatches, gamma: float | NDArray[np.floating], reward_scale: float
    ) -> tuple[torch.Tensor, ...]:
        """Write K records, one assignment per field, into a reused buffer; ``gamma`` may differ, (K, S, B).

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


class _Bound(NamedTuple):
    """The network bound to buffers for some number of states."""

    x: torch.Tensor
    y: torch.Tensor
    kernels: list[Callable[[], object]]


class Forward:
    """Forward pass of the networks in a flat vector at their current values; not used for training."""

    def __init__(self, layout: Layout, flat: torch.Tensor, trials: int, *, squash: bool) -> None:
        """View ``flat`` (``Layout.flat_size``); the output is tanh with ``squash`` (a policy), else linear (values)."""
        self._layout, self._trials, self._squash = layout, trials, squash
        self._flat = flat
        self._bound: dict[int, _Bound] = {}

    def __call__(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the outputs at (S, E, n) states: (S, E, columns of the last layer), valid until the next call."""
        _, E, n = observation.shape
        # Padded even for one row: single-row products round differently from trial to trial.
        rows = padded(E)
        bound = self._bound.get(rows)
        if bound is None:
            bound = self._bound[rows] = self._bind(rows)
        bound.x[:, :E, :n] = torch.tensor(observation, dtype=self._flat.dtype)
        for kernel in bound.kernels:
            kernel()
        outputs: NDArray[np.floating] = bound.y[:, :E].numpy()
        return outputs

    def _bind(self, rows: int) -> _Bound:
        first = self._layout.layers[0]
        x = below = torch.zeros((self._trials, rows, first.rows), dtype=self._flat.dtype)
        x[:, :, first.inputs] = 1.0
        kernels: list[Callable[[], object]] = []
        for layer, w in zip(self._layout.layers, self._layout.blocks(self._flat, self._trials), strict=True):
            out = torch.zeros((self._trials, rows, layer.cols), dtype=self._flat.dtype)
            kernels.append(partial(torch.bmm, below, w, out=out))
            if not layer.last:
                kernels.append(out.relu_)
            elif self._squash:
                kernels.append(out.tanh_)
            below = out
        return _Bound(x, below, kernels)
