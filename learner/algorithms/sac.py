"""SAC: a stochastic policy, twin critics, and a temperature that holds its entropy (Haarnoja et al. 2018b).

By autograd, for S trials at once (``onrig.learner.autograd``): trial s of S gives bit for bit what it gives alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithm_settings import SacConfig
from onrig.learner.algorithms import Minibatches, Signals, Spread, State
from onrig.learner.algorithms.buffers import Forward, Record
from onrig.learner.autograd import Blocks, Nets, action_value_layout, drawn_vectors, normals, states, torso, values
from onrig.learner.networks import Layer, Layout, mlp_layout, padded, split_layers
from onrig.runtime.replay.memory.order.uniforms import restore_streams, words_of_streams

_TEMPERATURE: Final = Layout((Layer(0, 1, last=True),))
"""ln alpha as a network without inputs: its only parameter is the bias."""
_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


class Sac:
    """Stochastic policies, twin critics and temperatures of S trials, and the update that trains them."""

    discrete: Final = None

    def __init__(
        self,
        config: SacConfig,
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
        self.noises = n_actions
        self._streams = tuple(streams)
        mean = mlp_layout(n_observations, n_actions, config.hidden)
        # The last two layers are both outputs of the last hidden one: mean and log standard deviation.
        self._layout = actor = Layout((*mean.layers, mean.layers[-1]))
        critic = action_value_layout(n_observations, n_actions, config.hidden)
        start = np.full((len(streams), 1, 1), math.log(config.temperature))
        self._actor = Nets(actor, drawn_vectors(actor, streams), lr=config.lr, dtype=dtype, targets=False)
        self._critics = Nets(critic, drawn_vectors(critic, streams, copies=2), lr=config.lr, dtype=dtype)
        self._temperature = Nets(_TEMPERATURE, start, lr=config.lr, dtype=dtype, targets=False)
        self._record = Record(len(streams), config.batch, n_observations, n_actions, dtype)
        self._means = Forward(mean, self._actor.flat, len(streams), squash=True)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the mean: normalised observations (S, E, n) to normalised actions (S, E, m)."""
        return self._means(observation)[:, :, : self._m].copy()

    def sample(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the policy's own exploration, from N(0, 1) ``noise`` (S, E, m): (S, E, m)."""
        S, E, _ = observation.shape
        x = states(observation, self._dtype)
        eps = torch.zeros((S, padded(E), padded(self._m)), dtype=self._dtype)
        eps[:, :E, : self._m] = torch.from_numpy(noise)
        with torch.no_grad():
            action, _ = self._act(self._actor.frozen, x, eps)
        sampled: NDArray[np.floating] = action[:, :E, : self._m].numpy()
        return sampled

    def _act(self, actor: Blocks, x: torch.Tensor, eps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Squashed Gaussian action (S, B, cols), and ln pi of it (S, B, 1): Haarnoja et al. 2018b, App. C."""
        units = torso(actor[:-2], x)
        mean, log_std = (torch.bmm(units, head) for head in actor[-2:])
        log_std = log_std.clamp(*self.config.log_std)
        action = torch.tanh(mean + log_std.exp() * eps)
        log_pi = -0.5 * eps.square() - log_std - _HALF_LOG_2PI - torch.log(1.0 - action.square() + 1e-6)
        return action, log_pi[..., : self._m].sum(dim=-1, keepdim=True)

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raises ValueError when they are of another shape."""
        config, B = self.config, self.config.batch
        records = self._record.pack(batches, config.gamma, config.reward_scale)
        noise = normals(self._streams, (len(records), 2), B, self._m, self._dtype)
        told = []
        for record, eps in zip(records, noise, strict=True):
            self._record.memory.copy_(record)
            told.append(self._update(eps))
        self.updates += len(records)
        *twin, target = torch.stack(told, dim=1)[..., :B, 0].numpy()
        return Signals(np.mean(twin, axis=0), np.abs(twin).max(axis=0), target)

    def _update(self, eps: torch.Tensor) -> torch.Tensor:
        """Train on the minibatch in the record; returns both TD errors before it and the target, (3, S, B, 1)."""
        config, B, critics = self.config, self.config.batch, self._critics
        s, s_next = self._record.x.chunk(2)
        a, _ = self._record.actions.chunk(2)

        with torch.no_grad():
            alpha = self._temperature.frozen[0].exp()[:, :1, :1]
            a_next, log_pi_next = self._act(self._actor.frozen, s_next, eps[0])
            q_next = torch.minimum(*values(critics.target, s_next, a_next)) - alpha * log_pi_next
            target = self._record.reward + self._record.discount * q_next
        td = target - values(critics.online, s, a)
        critics.descend(-0.5 * (self._record.weight * td.square()).sum())  # a record's weight is -2 w / B

        sampled, log_pi = self._act(self._actor.online, s, eps[1])
        q = torch.minimum(*values(critics.frozen, s, sampled))
        self._actor.descend((alpha * log_pi - q).sum() / B)

        entropy_gap = log_pi.detach()[:, :B] - self._m  # the target entropy is -m
        log_alpha = self._temperature.online[0][:, :1, :1]
        self._temperature.descend(-(log_alpha * entropy_gap).sum() / B)
        critics.follow(config.tau)
        return torch.cat((td.detach(), target[None]))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy the network of one trial's mean out: weights (in, out) and bias (out,) per layer."""
        return split_layers(self._layout, self._actor.vectors()[trial, 0])[:-1]

    def actor_spread(self, trial: int) -> Spread:
        """Copy the spread of one trial's policy out."""
        return Spread(*split_layers(self._layout, self._actor.vectors()[trial, 0])[-1], self.config.log_std)

    def state(self) -> State:
        """Copy of everything needed to resume training: plain vectors (S, copies, P), Adam's moments, streams."""
        return {
            "updates": np.array(self.updates, dtype=np.int64),
            **self._actor.state("actor"),
            **self._critics.state("critic"),
            **self._temperature.state("temperature"),
            "streams": words_of_streams(self._streams),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        self._actor.restore(state, "actor")
        self._critics.restore(state, "critic")
        self._temperature.restore(state, "temperature")
        restore_streams(self._streams, state["streams"])
        self.updates = int(state["updates"])
