"""DDPG under ReF-ER (Novati and Koumoutsakos 2019, Alg. 4): its exploration, a Gaussian of fixed width, is a density.

The critic learns from near experiences only, and is not scaled by beta; the actor's gradient is the mixture.  Both
gradients are taken at the same parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithm_settings import DdpgConfig
from onrig.learner.algorithms.host import Host, MinibatchTensors, initial_vectors
from onrig.learner.algorithms.refer import Refer
from onrig.learner.autograd import Blocks, Nets, action_value_layout, softsign_outputs
from onrig.learner.networks import NETWORK_SIZES, Layout, mlp_layout
from onrig.learner.refer_settings import ReferSettings


class ReferDdpg(Host):
    """Actors and critics of S trials, and the update that trains them."""

    bounded = True

    def __init__(
        self,
        config: DdpgConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
    ) -> None:
        """Initialise one trial from each of ``streams`` (actor, then critic)."""
        super().__init__(config, refer, n_observations, n_actions, len(streams))
        size = NETWORK_SIZES[config.network]
        self._tau = config.tau
        self._layout = mlp_layout(n_observations, n_actions, size.actor)
        self._critic_layout = action_value_layout(n_observations, n_actions, size.critic)
        betas, coupled = (config.beta1, config.beta2), config.decay == "coupled"
        self._actor, self._critic = (
            Nets(
                layout,
                initial_vectors(layout, streams),
                lr=lr,
                dtype=torch.float32,
                eps=config.adam_eps,
                betas=betas,
                decay=decay,
                coupled=coupled,
            )
            for layout, lr, decay in (
                (self._layout, config.actor_lr, 0.0),
                (self._critic_layout, config.critic_lr, config.critic_decay),
            )
        )
        self._std = torch.full((1, 1, n_actions), refer.std)

    @property
    def _nets(self) -> dict[str, Nets]:
        return {"actor": self._actor, "critic": self._critic}

    def _acts(self, blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
        return softsign_outputs(self._layout, blocks, x).tanh()

    def _present(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = self._acts(self._actor.frozen, x)[..., : self._m]
        return mean, self._std.expand_as(mean)

    def _value(self, blocks: Blocks, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Values (S, B) of states and padded actions (S, rows, cols)."""
        pair = torch.cat((x, action), dim=-1)
        return softsign_outputs(self._critic_layout, blocks, pair)[:, : self._config.batch, 0]

    def _update(self, drawn: MinibatchTensors, refer: Refer) -> tuple[torch.Tensor, torch.Tensor]:
        B, critic = self._config.batch, self._critic
        acted = self._acts(self._actor.online, drawn.x)
        mean = acted[:, :B, : self._m]
        apart, weights = self._judged(drawn, (mean, self._std.expand_as(mean)), refer)
        value = self._value(critic.frozen, drawn.x, acted)
        self._actor.descend(weights.mixed(-value, apart.kl).sum() / B)

        with torch.no_grad():
            after = self._value(critic.target, drawn.x_next, self._acts(self._actor.target, drawn.x_next))
            target = drawn.reward + drawn.discount * after
        taken = torch.zeros_like(acted)
        taken[:, :B, : self._m] = drawn.action
        td = target - self._value(critic.online, drawn.x, taken)
        critic.descend((drawn.weight * weights.near * td.square()).sum() / B)
        self._actor.follow(self._tau)
        critic.follow(self._tau)
        return td.detach(), target

    def _mean_layers(self) -> tuple[Layout, NDArray[np.floating], int]:
        return self._layout, self._actor.vectors()[:, 0], 0
