"""TD3: twin critics, a smoothed target policy, and an actor that is updated less often (Fujimoto et al. 2018).

By autograd, for S trials at once (``onrig.learner.autograd``): trial s of S gives bit for bit what it gives alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithm_settings import Td3Config
from onrig.learner.algorithms import Minibatches, Signals, State
from onrig.learner.algorithms.buffers import Forward, Record
from onrig.learner.autograd import Nets, action_value_layout, drawn_vectors, normals, outputs, values
from onrig.learner.networks import mlp_layout, split_layers
from onrig.runtime.replay.memory.order.uniforms import restore_streams, words_of_streams


class Td3:
    """Actors and twin critics of S trials, and the update that trains them."""

    discrete: Final = None

    def __init__(
        self,
        config: Td3Config,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialise one trial from each of ``streams`` (actor, critics, then the noise of updates)."""
        self.config = config
        self.updates = 0
        self._m, self._dtype = n_actions, dtype
        self._streams = tuple(streams)
        self._layout = mlp_layout(n_observations, n_actions, config.hidden)
        critic = action_value_layout(n_observations, n_actions, config.hidden)
        self._actor = Nets(self._layout, drawn_vectors(self._layout, streams), lr=config.lr, dtype=dtype)
        self._critics = Nets(critic, drawn_vectors(critic, streams, copies=2), lr=config.lr, dtype=dtype)
        self._record = Record(len(streams), config.batch, n_observations, n_actions, dtype)
        self._actors = Forward(self._layout, self._actor.flat, len(streams), squash=True)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act without noise: normalised observations (S, E, n) to normalised actions (S, E, m)."""
        return self._actors(observation)[:, :, : self._m].copy()

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raises ValueError when they are of another shape."""
        config, B = self.config, self.config.batch
        records = self._record.pack(batches, config.gamma, config.reward_scale)
        noise = normals(self._streams, (len(records),), B, self._m, self._dtype)
        noise.mul_(config.target_noise).clamp_(-config.noise_clip, config.noise_clip)
        told = []
        for record, of_update in zip(records, noise, strict=True):
            self._record.memory.copy_(record)
            told.append(self._update(of_update))
        *twin, target = torch.stack(told, dim=1)[..., :B, 0].numpy()
        return Signals(np.mean(twin, axis=0), np.abs(twin).max(axis=0), target)

    def _update(self, noise: torch.Tensor) -> torch.Tensor:
        """Train on the minibatch in the record; returns both TD errors before it and the target, (3, S, B, 1)."""
        config, actor, critics = self.config, self._actor, self._critics
        s, s_next = self._record.x.chunk(2)
        a, _ = self._record.actions.chunk(2)

        with torch.no_grad():
            a_next = outputs(actor.target, s_next).tanh_().add_(noise).clamp_(-1.0, 1.0)
            q_next = torch.minimum(*values(critics.target, s_next, a_next))
            target = self._record.reward + self._record.discount * q_next
        td = target - values(critics.online, s, a)
        critics.descend(-0.5 * (self._record.weight * td.square()).sum())  # a record's weight is -2 w / B

        self.updates += 1
        delayed = self.updates % config.delay == 0
        if delayed:
            first = [block[: len(s)] for block in critics.frozen]
            actor.descend(-values(first, s, outputs(actor.online, s).tanh()).sum() / config.batch)
        if delayed or config.targets == "every":
            actor.follow(config.tau)
            critics.follow(config.tau)
        return torch.cat((td.detach(), target[None]))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy one trial's actor out: weights (in, out) and bias (out,) per layer."""
        return split_layers(self._layout, self._actor.vectors()[trial, 0])

    def state(self) -> State:
        """Copy of everything needed to resume training: plain vectors (S, copies, P), Adam's moments, streams."""
        return {
            "updates": np.array(self.updates, dtype=np.int64),
            **self._actor.state("actor"),
            **self._critics.state("critic"),
            "streams": words_of_streams(self._streams),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        self._actor.restore(state, "actor")
        self._critics.restore(state, "critic")
        restore_streams(self._streams, state["streams"])
        self.updates = int(state["updates"])
