"""DQN (Mnih et al. 2015) as de Bruin et al. 2018 compare it with DDPG (§6.3, App. B), for S trials at once.

Built like DDPG here: kernels bound to preallocated buffers, gradients by hand over flat parameter vectors, trials that
share nothing but the kernels.  One action dimension is cut into levels uniform on [-1, 1]; the memory holds their
values, as for DDPG, and an applied action counts as its nearest level.

The loss is the squared TD error (eq. 5): Mnih et al. clip it, de Bruin et al. do not mention that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.adam import Adam
from onrig.learner.algorithm_settings import DqnConfig
from onrig.learner.algorithms import DiscreteActions, Minibatches, Signals, State, level_values
from onrig.learner.algorithms.buffers import Forward, Record
from onrig.learner.networks import NETWORK_SIZES, initial_vector, mlp_layout, padded, split_layers

Kernel = Callable[[], object]
_relu_backward: Final = torch.ops.aten.threshold_backward.grad_input


def nearest_level(action: NDArray[np.floating], levels: int) -> NDArray[np.int64]:
    """Index of the level nearest to each normalised action, of ``levels`` uniform on [-1, 1]; the lower one of two."""
    place = np.ceil((action.astype(np.float64) + 1.0) * (0.5 * (levels - 1)) - 0.5)
    # NaN in a diverged trial, whose parameters are NaN anyway.
    index: NDArray[np.int64] = np.clip(np.nan_to_num(place), 0, levels - 1).astype(np.int64)
    return index


class Dqn:
    """Q-networks of S trials, their targets and optimiser, and the update that trains them."""

    def __init__(
        self,
        config: DqnConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``; there is one action dimension."""
        self.config = config
        self.discrete: Final = DiscreteActions(config.levels, config.epsilon)
        self.trials = S = len(streams)
        self.updates = 0
        self._dtype = dtype
        self._layout = mlp_layout(n_observations, config.levels, NETWORK_SIZES[config.network].critic)
        self._online = self._zeros(self._layout.flat_size(S))
        self._layout.write(self._online, np.stack([initial_vector(self._layout, s) for s in streams]), S)
        self._target = self._online.clone()
        self._gradient = torch.zeros_like(self._online)
        self._adam = Adam(
            self._online,
            self._layout,
            S,
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.adam_eps,
            decay=config.weight_decay,
            coupled=config.decay == "coupled",
        )
        rows = padded(config.batch)
        self._record = Record(S, config.batch, n_observations, 1, dtype)
        self._index = torch.zeros((S, rows, 1), dtype=torch.int64)
        self._target_and_td = self._zeros(2, S, rows, 1)
        self._gradient_kernels: list[Kernel] = self._build_gradients()
        self._step_kernels: list[Kernel] = [
            partial(self._gradient.mul_, self._layout.trainable(S).to(self._gradient)),
            partial(self._adam.step, self._gradient),
        ]
        self._values = Forward(self._layout, self._online, self.trials, squash=False)
        self.levels: NDArray[np.floating] = torch.from_numpy(level_values(config.levels)).to(dtype).numpy()
        """Values of the discrete actions, (levels,)."""

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._dtype)

    def _build_gradients(self) -> list[Kernel]:
        """Bind the kernels from a record to TD errors and gradients; first axis 2S: online on s, target on s'."""
        S, layers, x, index = self.trials, self._layout.layers, self._record.x, self._index
        v, tv, gv = (self._layout.blocks(flat, S) for flat in (self._online, self._target, self._gradient))
        kernels: list[Kernel] = []
        step = kernels.append

        h = [self._zeros(2 * S, x.shape[1], layer.cols) for layer in layers]
        for i, out in enumerate(h):
            below = h[i - 1] if i else x
            step(partial(torch.bmm, below[:S], v[i], out=out[:S]))
            step(partial(torch.bmm, below[S:], tv[i], out=out[S:]))
            if not layers[i].last:
                step(out.relu_)

        # TD error (eq. 4 with the best action of the target network); dL/dQ(s, a) is -2 w delta / B.
        d = [self._zeros(S, x.shape[1], layer.cols) for layer in layers]
        y, td = self._target_and_td
        q = torch.zeros_like(td)
        step(partial(torch.amax, h[-1][S:, :, : self.config.levels], dim=2, keepdim=True, out=y))
        step(partial(torch.gather, h[-1][:S], 2, index, out=q))
        step(partial(y.mul_, self._record.discount))
        step(partial(y.add_, self._record.reward))
        step(partial(torch.sub, y, q, out=td))
        step(partial(torch.mul, td, self._record.weight, out=q))
        step(d[-1].zero_)
        step(partial(d[-1].scatter_, 2, index, q))

        for i in range(len(d) - 1, -1, -1):
            below = h[i - 1][:S] if i else x[:S]
            step(partial(torch.bmm, below.mT, d[i], out=gv[i]))
            if i:
                step(partial(torch.bmm, d[i], v[i].mT, out=d[i - 1]))
                step(partial(_relu_backward, d[i - 1], below, 0.0, grad_input=d[i - 1]))
        return kernels

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act greedily: normalised observations (S, E, n) to the value of the best level (S, E, 1).

        Of equal values the lowest level wins; NaN where the network has diverged.
        """
        # numpy's argmax is the first of equals, torch's is any.
        q = self._values(observation)[:, :, : self.config.levels]
        # A diverged network has no best level; argmax would name one.
        actions: NDArray[np.floating] = np.where(np.isnan(q).any(axis=2), np.nan, self.levels[q.argmax(axis=2)])
        return actions[:, :, None]

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raises ValueError when they are of another shape."""
        records, indices = self._packed(batches)
        told = torch.empty((len(records), *self._target_and_td.shape), dtype=self._dtype)
        kernels = self._gradient_kernels + self._step_kernels
        for record, index, target_and_td in zip(records, indices, told.unbind(0), strict=True):
            self._record.memory.copy_(record)
            self._index.copy_(index)
            for kernel in kernels:
                kernel()
            target_and_td.copy_(self._target_and_td)
            self.updates += 1
            if self.updates % self.config.target_every == 0:
                self._target.copy_(self._online)
        both = told.numpy()[..., : self.config.batch, 0]
        return Signals(both[:, 1], target=both[:, 0])

    def _packed(self, batches: Minibatches) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        records = self._record.pack(batches, self.config.gamma, self.config.reward_scale)
        indices = np.zeros((len(records), *self._index.shape), dtype=np.int64)
        indices[:, :, : self.config.batch] = nearest_level(batches.action, self.config.levels)
        return records, torch.from_numpy(indices).unbind(0)

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy one trial's network out, which leads to the values of the levels: weights (in, out), bias (out,)."""
        return split_layers(self._layout, self._layout.read(self._online, self.trials)[trial])

    def gradients(self, batches: Minibatches) -> NDArray[np.floating]:
        """Compute, without a step, the gradient of mean w delta^2 on one minibatch (K = 1), (S, P); no decay in it."""
        (record,), (index,) = self._packed(batches)
        self._record.memory.copy_(record)
        self._index.copy_(index)
        for kernel in self._gradient_kernels:
            kernel()
        return self._layout.read(self._gradient, self.trials)

    def state(self) -> State:
        """Copy of everything needed to resume training: plain vectors (S, P), Adam's moments, the update count.

        The count also determines when the next copy to the target is due.
        """
        return {
            "updates": np.array(self.updates, dtype=np.int64),
            "online": self._layout.read(self._online, self.trials),
            "target": self._layout.read(self._target, self.trials),
            **{f"adam_{key}": value for key, value in self._adam.state().items()},
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        for kind, flat in (("online", self._online), ("target", self._target)):
            self._layout.write(flat, np.asarray(state[kind], dtype=np.float64), self.trials)
        self._adam.restore({k.removeprefix("adam_"): v for k, v in state.items() if k.startswith("adam_")})
        self.updates = int(state["updates"])
