"""DDPG (Lillicrap et al. 2016) as de Bruin et al. 2018 use it (§3.2), for S trials at once.

An update is a fixed list of some fifty kernels bound to preallocated buffers: no allocation, no autograd, hardly any
Python.  Gradients are written by hand over flat parameter vectors (``onrig.learner.networks``) and tested against
autograd.  Trials share only the kernels: trial s of S gives bit for bit what it gives alone (on one kind of
machine, with one torch thread).

The paper gives no order for the two gradients.  Both are taken at the same parameters and applied together, as in
OpenAI's baselines (which its RoboSchool experiments used), not the critic's first as in Lillicrap's Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.adam import Adam
from onrig.learner.algorithm_settings import DdpgConfig
from onrig.learner.algorithms import Minibatches, Signals, State
from onrig.learner.algorithms.buffers import Forward, Record
from onrig.learner.networks import NETWORK_SIZES, critic_layout, initial_vector, mlp_layout, padded, split_layers

Kernel = Callable[[], object]
_relu_backward: Final = torch.ops.aten.threshold_backward.grad_input
_tanh_backward: Final = torch.ops.aten.tanh_backward.grad_input


class Ddpg:
    """Actors and critics of S trials, their targets and optimisers, and the update that trains them."""

    discrete: Final = None

    def __init__(
        self,
        config: DdpgConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialise one trial from each of ``streams`` (actor first, then critic)."""
        size = NETWORK_SIZES[config.network]
        self.config = config
        self.trials = S = len(streams)
        self.updates = 0
        self._m = n_actions
        self._dtype = dtype
        self._layouts = (
            mlp_layout(n_observations, n_actions, size.actor),
            critic_layout(n_observations, n_actions, size.critic),
        )
        self._split = self._layouts[0].flat_size(S)
        self._online = self._zeros(self._split + self._layouts[1].flat_size(S))
        drawn = [[initial_vector(layout, stream) for layout in self._layouts] for stream in streams]
        for net, (layout, part) in enumerate(zip(self._layouts, self._parts(self._online), strict=True)):
            layout.write(part, np.stack([vectors[net] for vectors in drawn]), S)
        self._target = self._online.clone()
        self._gradient = torch.zeros_like(self._online)
        self._adams = tuple(
            Adam(
                part,
                layout,
                S,
                lr=lr,
                betas=(config.beta1, config.beta2),
                eps=config.adam_eps,
                decay=decay,
                coupled=config.decay == "coupled",
            )
            for part, layout, lr, decay in zip(
                self._parts(self._online),
                self._layouts,
                (config.actor_lr, config.critic_lr),
                (0.0, config.critic_decay),
                strict=True,
            )
        )
        self._record = Record(S, config.batch, n_observations, n_actions, dtype)
        self._target_and_td = self._zeros(2, S, padded(config.batch), 1)
        self._gradient_kernels: list[Kernel] = self._build_gradients()
        self._step_kernels: list[Kernel] = [
            partial(self._gradient.mul_, torch.cat([x.trainable(S) for x in self._layouts]).to(self._gradient)),
            *(partial(adam.step, part) for adam, part in zip(self._adams, self._parts(self._gradient), strict=True)),
            partial(self._target.lerp_, self._online, config.tau),
        ]
        self._actors = Forward(self._layouts[0], self._parts(self._online)[0], S, squash=True)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._dtype)

    def _parts(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return flat[: self._split], flat[self._split :]

    def _build_gradients(self) -> list[Kernel]:
        """Bind the kernels from a record to TD errors and gradients.

        First axes: 2S is [online nets on s, target nets on s'], 3S is [online on (s, pi(s)), online on (s, a), target
        on (s', pi-(s'))].
        """
        S, B, rows, m = self.trials, self.config.batch, padded(self.config.batch), padded(self._m)
        (actor, critic), x, actions = self._layouts, self._record.x, self._record.actions
        nets = [self._parts(flat) for flat in (self._online, self._target, self._gradient)]
        w, tw, gw = (actor.blocks(net[0], S) for net in nets)
        v, tv, gv = (critic.blocks(net[1], S) for net in nets)
        kernels: list[Kernel] = []
        step = kernels.append

        # Policies pi(s) and pi-(s').
        h = [self._zeros(2 * S, rows, layer.cols) for layer in actor.layers]
        policy = self._zeros(S, rows, m)
        for i, out in enumerate(h):
            below = h[i - 1] if i else x
            step(partial(torch.bmm, below[:S], w[i], out=out[:S]))
            step(partial(torch.bmm, below[S:], tw[i], out=out[S:]))
            if not actor.layers[i].last:
                step(out.relu_)
        step(partial(torch.tanh, h[-1][:S], out=policy))
        step(partial(torch.tanh, h[-1][S:], out=actions[S:]))

        # First critic layer; the actions join its output.
        hidden = critic.layers[:-1]
        join = critic.layers[1].action_start
        z = [self._zeros((3 if i else 2) * S, rows, layer.cols) for i, layer in enumerate(hidden)]
        step(partial(torch.bmm, x[:S], v[0], out=z[0][:S]))
        step(partial(torch.bmm, x[S:], tv[0], out=z[0][S:]))
        step(z[0].relu_)
        step(partial(z[0][:, :, join:].copy_, actions))

        # Second layer: (s, pi(s)) differs from (s, a) in the actions' rows alone.
        detour = self._zeros(S, rows, m)
        step(partial(torch.bmm, z[0][:S], v[1], out=z[1][S : 2 * S]))
        step(partial(torch.bmm, z[0][S:], tv[1], out=z[1][2 * S :]))
        step(partial(torch.sub, policy, actions[:S], out=detour))
        step(partial(torch.baddbmm, z[1][S : 2 * S], detour, v[1][:, join:], out=z[1][:S]))
        step(z[1].relu_)
        for i in range(2, len(z)):
            for below, weights, out in zip(z[i - 1].chunk(3), (v[i], v[i], tv[i]), z[i].chunk(3), strict=True):
                step(partial(torch.bmm, below, weights, out=out))
            step(z[i].relu_)

        # TD error (eq. 4); dL/dQ is -2 w delta / B for the critic (5) and -1 / B for the policy's ascent (6).
        q = self._zeros(2 * S, rows, critic.layers[-1].cols)
        dq = self._zeros(2, S, rows, critic.layers[-1].cols)
        dq[0, :, :B, 0] = -1.0 / B
        step(partial(torch.bmm, z[-1][S : 2 * S], v[-1], out=q[:S]))
        step(partial(torch.bmm, z[-1][2 * S :], tv[-1], out=q[S:]))
        y, td = self._target_and_td
        step(partial(torch.mul, self._record.discount, q[S:, :, :1], out=y))
        step(partial(y.add_, self._record.reward))
        step(partial(torch.sub, y, q[:S, :, :1], out=td))
        step(partial(torch.mul, td, self._record.weight, out=dq[1, :, :, :1]))

        # Back through the critic: from (s, pi(s)) to the action, from (s, a) to the parameters.
        d = [self._zeros((2 if i else 1) * S, rows, layer.cols) for i, layer in enumerate(hidden)]
        step(partial(torch.mul, dq[..., :1], v[-1][:, None, :, 0], out=d[-1].view(2, S, rows, -1)))
        step(partial(torch.bmm, z[-1][S : 2 * S].mT, dq[1], out=gv[-1]))
        for i in range(len(z) - 1, 0, -1):
            step(partial(_relu_backward, d[i], z[i][: 2 * S], 0.0, grad_input=d[i]))
            below = z[i - 1][S : 2 * S] if i > 1 else z[0][:S]
            step(partial(torch.bmm, below.mT, d[i][S:], out=gv[i]))
            step(partial(torch.bmm, d[i][S:], v[i].mT, out=d[i - 1][-S:]))
            if i > 1:
                step(partial(torch.bmm, d[i][:S], v[i].mT, out=d[i - 1][:S]))
        step(partial(_relu_backward, d[0], z[0][:S], 0.0, grad_input=d[0]))
        step(partial(torch.bmm, x[:S].mT, d[0], out=gv[0]))

        # Back through the policy.
        e = [self._zeros(S, rows, layer.cols) for layer in actor.layers]
        step(partial(torch.bmm, d[1][:S], v[1][:, join:].mT, out=e[-1]))
        step(partial(_tanh_backward, e[-1], policy, grad_input=e[-1]))
        for i in range(len(e) - 1, -1, -1):
            below = h[i - 1][:S] if i else x[:S]
            step(partial(torch.bmm, below.mT, e[i], out=gw[i]))
            if i:
                step(partial(torch.bmm, e[i], w[i].mT, out=e[i - 1]))
                step(partial(_relu_backward, e[i - 1], below, 0.0, grad_input=e[i - 1]))
        return kernels

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act without noise: normalised observations (S, E, n) to normalised actions (S, E, m).

        E states of each trial side by side (of a training and an evaluation episode, say).
        """
        return self._actors(observation)[:, :, : self._m].copy()

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raises ValueError when they are of another shape."""
        records = self._record.pack(batches, self.config.gamma, self.config.reward_scale)
        told = torch.empty((len(records), *self._target_and_td.shape), dtype=self._dtype)
        kernels = self._gradient_kernels + self._step_kernels
        for record, target_and_td in zip(records, told.unbind(0), strict=True):
            self._record.memory.copy_(record)
            for kernel in kernels:
                kernel()
            target_and_td.copy_(self._target_and_td)
        self.updates += len(records)
        both = told.numpy()[..., : self.config.batch, 0]
        return Signals(both[:, 1], target=both[:, 0])

    def gradients(self, batches: Minibatches) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Compute, without a step, the actor's and the critic's gradient on one minibatch (K = 1), each (S, P).

        They are gradients to descend: of -mean Q(s, pi(s)) and of mean w delta^2, decay left out.
        """
        (record,) = self._record.pack(batches, self.config.gamma, self.config.reward_scale)
        self._record.memory.copy_(record)
        for kernel in self._gradient_kernels:
            kernel()
        actor, critic = (
            layout.read(part, self.trials)
            for layout, part in zip(self._layouts, self._parts(self._gradient), strict=True)
        )
        return actor, critic

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy one trial's actor out: weights (in, out) and bias (out,) per layer."""
        layout = self._layouts[0]
        return split_layers(layout, layout.read(self._parts(self._online)[0], self.trials)[trial])

    def state(self) -> State:
        """Copy of everything needed to resume training: plain vectors (S, P), Adam's moments, counts."""
        state: State = {"updates": np.array(self.updates, dtype=np.int64)}
        for net, name in enumerate(("actor", "critic")):
            for kind, flat in (("online", self._online), ("target", self._target)):
                state[f"{kind}_{name}"] = self._layouts[net].read(self._parts(flat)[net], self.trials)
            state |= {f"adam_{name}_{key}": value for key, value in self._adams[net].state().items()}
        return state

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        for net, name in enumerate(("actor", "critic")):
            for kind, flat in (("online", self._online), ("target", self._target)):
                vectors: NDArray[np.floating] = np.asarray(state[f"{kind}_{name}"], dtype=np.float64)
                self._layouts[net].write(self._parts(flat)[net], vectors, self.trials)
            prefix = f"adam_{name}_"
            self._adams[net].restore({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        self.updates = int(state["updates"])
