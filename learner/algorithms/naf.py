"""NAF (Gu et al. 2016) under ReF-ER, as Novati and Koumoutsakos 2019 have it (App. A).

One network gives the value V, the mean m of the policy, which nothing bounds, and a lower triangular L with a positive
diagonal: Q(s, a) = V - (a - m)' L L' (a - m) / 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms.heads import quadratic, quadratic_outputs
from onrig.learner.algorithms.host import Host, MinibatchTensors, initial_vectors
from onrig.learner.algorithms.refer import Refer
from onrig.learner.autograd import Blocks, Nets, softsign_outputs
from onrig.learner.networks import Layout, mlp_layout
from onrig.learner.refer_settings import NafConfig, ReferSettings


class Naf(Host):
    """Networks of S trials, and the update that trains them."""

    def __init__(
        self,
        config: NafConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
    ) -> None:
        """Initialise one trial from each of ``streams``."""
        super().__init__(config, refer, n_observations, n_actions, len(streams))
        self._naf = config
        outputs = 1 + n_actions + quadratic_outputs(n_actions)
        self._layout = mlp_layout(n_observations, outputs, config.hidden)
        vectors = initial_vectors(self._layout, streams)
        self._network = Nets(self._layout, vectors, lr=config.lr, dtype=torch.float32)
        self._std = torch.full((1, 1, n_actions), refer.std)

    @property
    def _nets(self) -> dict[str, Nets]:
        return {"network": self._network}

    def _out(self, blocks: Blocks, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Value (S, rows), mean (S, rows, m) and the outputs of L (S, rows, (m^2 + m) / 2)."""
        m = self._m
        out = softsign_outputs(self._layout, blocks, x)
        return out[..., 0], out[..., 1 : 1 + m], out[..., 1 + m : 1 + m + quadratic_outputs(m)]

    def _present(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, mean, _ = self._out(self._network.frozen, x)
        return mean, self._std.expand_as(mean)

    def _update(self, drawn: MinibatchTensors, refer: Refer) -> tuple[torch.Tensor, torch.Tensor]:
        B, network = self._config.batch, self._network
        value, mean, lower = (part[:, :B] for part in self._out(network.online, drawn.x))
        apart, weights = self._judged(drawn, (mean, self._std.expand_as(mean)), refer)
        with torch.no_grad():
            target = drawn.reward + drawn.discount * self._out(network.target, drawn.x_next)[0][:, :B]
        beta = weights.beta
        if self._naf.beta_on == "mean":
            # The value of this is the mean; its gradient is beta times as large.
            mean = mean.detach() + beta[..., None] * (mean - mean.detach())
            beta = torch.ones_like(beta)
        # A value of the action drawn, whose clipping is the world's: of the clipped one, V(s) would never meet a return
        # where the mean lies beyond the limits.  Of the one applied where that is another.
        action = torch.where(torch.from_numpy(drawn.deviates)[..., None], drawn.action, drawn.drawn)
        td = target - value - quadratic(action, mean, lower)
        loss = beta * weights.near * drawn.weight * 0.5 * td.square() + (1.0 - weights.beta) * apart.kl
        network.descend(loss.sum() / B)
        network.follow(self._naf.tau)
        return td.detach(), target

    def _mean_layers(self) -> tuple[Layout, NDArray[np.floating], int]:
        return self._layout, self._network.vectors()[:, 0], 1
