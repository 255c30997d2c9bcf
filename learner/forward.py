"""Forward passes of one network of S trials, for any number of states side by side; learning needs none of this."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.networks import Layout, padded


class _Bound(NamedTuple):
    """The network bound to buffers for some number of states."""

    x: torch.Tensor
    y: torch.Tensor
    kernels: list[Callable[[], object]]


class Forward:
    """Evaluates the networks that lie in a flat vector, as they are at the time."""

    def __init__(self, layout: Layout, flat: torch.Tensor, trials: int, *, squash: bool) -> None:
        """Look at ``flat`` (``Layout.flat_size``); ``squash`` ends in tanh (a policy), else linearly (values)."""
        self._layout, self._trials, self._squash = layout, trials, squash
        self._flat = flat
        self._bound: dict[int, _Bound] = {}

    def __call__(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the outputs at (S, E, n) states: (S, E, columns of the last layer), valid until the next call."""
        _, E, n = observation.shape
        # Padded even for one: a product of a single row rounds differently from trial to trial.
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
