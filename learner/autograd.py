"""Networks trained by autograd, as flat vectors on a trial axis (``onrig.learner.networks``).

A leaf of the graph is a whole block, whose data and ``.grad`` are views of one flat vector of parameters and one of
gradients: backward passes accumulate in place, and Adam, masks and targets take one pass each.  (Leaves cut out of one
flat leaf would each be given a gradient of the full size.)

Twin critics are two copies of one layout: an axis of copies before that of the trials, so blocks are (2 S, rows, cols).
Rows of padding are all zero, the constant unit's included, and so are the units above them: they add nothing to a
gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from onrig.learner.adam import Adam, AdamByTrial
from onrig.learner.networks import Layer, Layout, padded

Blocks = Sequence[torch.Tensor]
State = dict[str, NDArray[np.generic]]


def action_value_layout(n_observations: int, n_actions: int, hidden: Sequence[int]) -> Layout:
    """Lay out a critic whose first layer takes observation and action: hidden, relu ... -> 1, linear."""
    first = Layer(n_observations, hidden[0], action_rows=n_actions)
    rest = [Layer(inputs, outputs) for inputs, outputs in itertools.pairwise(hidden)]
    return Layout((first, *rest, Layer(hidden[-1], 1, last=True)))


def drawn_vectors(layout: Layout, streams: Sequence[np.random.Generator], copies: int = 1) -> NDArray[np.float64]:
    """Draw initial parameters (S, copies, P), uniform within 1 / sqrt(inputs): the start of TD3 and SAC."""

    def drawn(stream: np.random.Generator) -> NDArray[np.float64]:
        bounds = [1.0 / math.sqrt(layer.inputs + layer.action_rows) for layer in layout.layers]
        sizes = [layer.n_parameters for layer in layout.layers]
        return np.concatenate([stream.uniform(-b, b, size) for b, size in zip(bounds, sizes, strict=True)])

    return np.array([[drawn(stream) for _ in range(copies)] for stream in streams])


def torso(blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
    """Units of the last of these hidden layers, relu; ``x`` (nets, B, rows) has the constant unit behind the inputs."""
    for block in blocks:
        x = torch.bmm(x, block).relu_()
    return x


def outputs(blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
    """Linear outputs (nets, B, cols)."""
    return torch.bmm(torso(blocks[:-1], x), blocks[-1])


class _Softsign(torch.autograd.Function):
    """x / (1 + |x|) in place, but x in the column of the constant unit; the derivative is the square of x's factor.

    Composed of torch's operations, whose derivatives pass over the units nine times, backward takes 1.7 times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, constant: int) -> torch.Tensor:
        factor = x.abs().add_(1.0)
        factor[..., constant] = 1.0
        ctx.save_for_backward(factor.reciprocal_())
        ctx.mark_dirty(x)
        return x.mul_(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (factor,) = ctx.saved_tensors
        return (gradients[0] * factor).mul_(factor), None


def softsign_outputs(layout: Layout, blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
    """Linear outputs (nets, B, cols) behind softsign units, x / (1 + |x|), which leave the constant one alone."""
    for layer, block in zip(layout.layers[:-1], blocks[:-1], strict=True):
        x = _Softsign.apply(torch.bmm(x, block), layer.outputs)  # type: ignore[no-untyped-call]
    return torch.bmm(x, blocks[-1])


TANH_CONSTANT: Final = 20.0
"""Weight of the constant unit on itself behind tanh units: tanh(20) is 1, exactly."""


def tanh_outputs(blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
    """Linear outputs (nets, B, cols) behind tanh units, of ``Nets`` with the constant ``TANH_CONSTANT``."""
    for block in blocks[:-1]:
        x = torch.bmm(x, block).tanh_()
    return torch.bmm(x, blocks[-1])


def states(observation: NDArray[np.floating], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Observations (S, B, n) as inputs of networks: padded, with the constant unit behind them."""
    S, B, n = observation.shape
    x = torch.zeros((S, padded(B), padded(n + 1)), dtype=dtype)
    x[:, :B, :n], x[:, :B, n] = torch.tensor(observation, dtype=dtype), 1.0
    return x


def values(blocks: Blocks, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Values (copies, S, B, 1) that each copy of a critic gives to states and padded actions (S, B, cols)."""
    pair = torch.cat((x, action), dim=-1)
    copies = len(blocks[0]) // len(pair)
    q = outputs(blocks, pair if copies == 1 else pair.repeat(copies, 1, 1))
    return q[..., :1].view(copies, len(pair), -1, 1)


def normals(
    streams: Sequence[np.random.Generator], shape: tuple[int, ...], batch: int, m: int, dtype: torch.dtype
) -> torch.Tensor:
    """Draw N(0, 1) for updates: (*shape, S, rows, cols), 0 in the padding; drawn at once or in turn they are equal."""
    noise = torch.zeros((*shape, len(streams), padded(batch), padded(m)), dtype=dtype)
    for trial, stream in enumerate(streams):
        noise[..., trial, :batch, :m] = torch.from_numpy(stream.standard_normal((*shape, batch, m)))
    return noise


class Nets:
    """``copies`` networks of one layout for each of S trials, with gradient, Adam and, if wanted, targets."""

    def __init__(
        self,
        layout: Layout,
        vectors: NDArray[np.float64],
        *,
        lr: float,
        dtype: torch.dtype,
        targets: bool = True,
        eps: float = 1e-8,
        by_trial: bool = False,
        constant: float = 1.0,
        **options: Any,
    ) -> None:
        """Start at plain ``vectors`` (S, copies, P); ``by_trial``: not all trials are always stepped.

        ``constant`` is the weight of a hidden layer's constant unit on the next; ``options`` are those of ``Adam``.
        """
        self._constant: Final = constant
        self._layout: Final = layout
        self._shape: Final = vectors.shape[:2]
        self._nets: Final = vectors.shape[0] * vectors.shape[1]
        self.flat: Final = torch.zeros(layout.flat_size(self._nets), dtype=dtype)
        """All parameters, ``layout.flat_size(copies * S)``."""
        self._write(self.flat, vectors)
        self._gradient: Final = torch.zeros_like(self.flat)
        self._trainable: Final = layout.trainable(self._nets).to(dtype)
        self._adam: Final = (
            AdamByTrial(self.flat, layout, self._nets, lr=lr)
            if by_trial
            else Adam(self.flat, layout, self._nets, lr=lr, eps=eps, **options)
        )
        self.frozen: Final = layout.blocks(self.flat, self._nets)
        """Blocks through which gradients pass on, but go no further."""
        self.online: Final = [block.detach().requires_grad_() for block in self.frozen]
        """The same as leaves."""
        for leaf, gradient in zip(self.online, layout.blocks(self._gradient, self._nets), strict=True):
            leaf.grad = gradient
        self._target: Final = self.flat.clone() if targets else None
        self.target: Final = [] if self._target is None else layout.blocks(self._target, self._nets)
        """Blocks of the targets."""

    def descend(self, loss: torch.Tensor, max_norm: float | None = None) -> None:
        """Take one step of Adam down ``loss``, a sum over trials; each trial's gradient is cut to ``max_norm``."""
        self.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        if max_norm is not None:
            self._gradient.mul_(self._trainable)
            self._cut(max_norm)
        self.step()

    def clear(self) -> None:
        """Set the gradient to 0."""
        self._gradient.zero_()

    def step(self, trials: NDArray[np.int64] | None = None) -> None:
        """Take one step of Adam down the gradient since ``clear``; with ``by_trial`` for these trials only."""
        self._gradient.mul_(self._trainable)
        if isinstance(self._adam, AdamByTrial):
            assert trials is not None
            S, copies = self._shape
            self._adam.step(self._gradient, (np.arange(copies)[:, None] * S + trials).reshape(-1).tolist())
        else:
            self._adam.step(self._gradient)

    def anneal(self, factor: float) -> None:
        """Take the next steps at the first rate times this."""
        assert isinstance(self._adam, Adam)
        self._adam.anneal(factor)

    def _cut(self, max_norm: float) -> None:
        blocks = self._layout.blocks(self._gradient, self._nets)
        for net in range(self._nets):  # one by one: a sum's rounding must not depend on the number of trials
            of_net = [block[net] for block in blocks]
            norm = torch.stack([part.square().sum() for part in of_net]).sum().sqrt()
            # NaN of a diverged trial stays with it.
            factor = max_norm / torch.clamp(norm, min=max_norm)
            for part in of_net:
                part.mul_(factor)

    def follow(self, tau: float) -> None:
        """Let the targets follow."""
        if self._target is not None:
            self._target.lerp_(self.flat, tau)

    def vectors(self) -> NDArray[np.floating]:
        """Copy the parameters out as plain vectors (S, copies, P)."""
        return self._by_trial(self._layout.read(self.flat, self._nets))

    def state(self, name: str) -> State:
        """Copy everything out, (S, copies, P) each, under keys that end in ``name``."""
        state: State = {f"online_{name}": self.vectors()}
        if self._target is not None:
            state[f"target_{name}"] = self._by_trial(self._layout.read(self._target, self._nets))
        for key, array in self._adam.state().items():
            state[f"adam_{key}_{name}"] = self._by_trial(array) if array.ndim else array
        return state

    def restore(self, state: Mapping[str, NDArray[np.generic]], name: str) -> None:
        """Restore what ``state(name)`` gave; raises KeyError or ValueError if it does not fit."""
        self._write(self.flat, state[f"online_{name}"])
        if self._target is not None:
            self._write(self._target, state[f"target_{name}"])
        adam = {key: state[f"adam_{key}_{name}"] for key in ("mean", "square", "step")}
        self._adam.restore({key: self._by_net(array) if array.ndim else array for key, array in adam.items()})

    def _write(self, flat: torch.Tensor, vectors: NDArray[np.generic]) -> None:
        self._layout.write(flat, self._by_net(vectors), self._nets, constant=self._constant)

    def _by_net(self, vectors: NDArray[np.generic]) -> NDArray[np.float64]:
        if vectors.shape[:2] != self._shape:
            raise ValueError(f"parameter vectors of shape {vectors.shape}, expected {self._shape} and their length")
        return np.swapaxes(np.asarray(vectors, dtype=np.float64), 0, 1).reshape(self._nets, -1)

    def _by_trial(self, vectors: NDArray[np.floating]) -> NDArray[np.floating]:
        S, copies = self._shape
        return np.ascontiguousarray(np.swapaxes(vectors.reshape(copies, S, -1), 0, 1))
