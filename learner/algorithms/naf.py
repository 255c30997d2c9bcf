"""NAF (Gu et al. 2016) under ReF-ER, as in Novati and Koumoutsakos 2019 (App. A).

One network outputs the value V, the policy's unbounded mean m, and a lower triangular matrix L with a positive
diagonal: Q(s, a) = V - (a - m)' L L' (a - m) / 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import Minibatches
from onrig.learner.algorithms.heads import quadratic, quadratic_outputs
from onrig.learner.algorithms.refer import Rules
from onrig.learner.algorithms.refer_algorithm import ReferMinibatchAlgorithm, initial_layer
from onrig.learner.refer_settings import NafConfig, ReferSettings
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import softsign, square
from onrig.learner.tape.networks import Mlp
from onrig.learner.tape.optimiser import Adam, descend, polyak_average
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape


class Naf(ReferMinibatchAlgorithm):
    """Networks of S trials, with the update that trains them."""

    def __init__(
        self,
        config: NafConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``."""
        state, n, m = Layout(), n_observations, n_actions
        self._naf = config
        sizes = (n, *config.hidden, 1 + m + quadratic_outputs(m))
        self._network, self._target = (Mlp(state, name, sizes, activation=softsign) for name in ("network", "target"))
        self._adam = Adam(state, self._network.group, lr=config.lr)
        super().__init__(config, refer, n, m, state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            self._network.draw(row, stream, initial_layer)
            self._target.copy(row, self._network)
        self._trace()

    def _split_outputs(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the value (B, 1), the mean (B, m) and the entries of L (B, (m^2 + m) / 2)."""
        out, m = self._network(x), self._m
        return out.columns(0, 1), out.columns(1, 1 + m), out.columns(1 + m, out.shape[1])

    def _current_policy(self, x: Array) -> tuple[Array, Array]:
        return self._split_outputs(x)[1], x.tape.filled((1, self._m), self._settings.std)

    def _update(self, tape: Tape, rules: Rules, **fields: Array) -> dict[str, Array]:
        value, mean, triangle = self._split_outputs(self._inputs(fields["observation"]))
        distance = self._policy_distance(mean, tape.filled((1, self._m), self._settings.std), **fields)
        next_value = self._target(self._inputs(fields["next_observation"])).columns(0, 1)
        target = fields["reward"] + fields["discount"] * next_value
        beta = rules.beta
        if self._naf.beta_on == "mean":
            # This expression has the value of the mean, and beta times its gradient.
            mean = mean.detach() + beta * (mean - mean.detach())
            beta = tape.filled((1, 1), 1.0)
        td = target - value - quadratic(fields["action"], mean, triangle)
        loss = beta * rules.near_mask(distance.rho) * fields["weight"] * square(td) * 0.5
        loss = (loss + (1.0 - rules.beta) * distance.kl).mean()
        descend(tape, loss, [self._adam], factor=rules.annealing)
        polyak_average(tape, self._target.group, self._network.group, self._naf.tau)
        return {"td": td, "target": target, "rho": distance.rho, "kl": distance.kl}

    def _pack(self, batches: Minibatches) -> None:
        super()._pack(batches)
        # Q takes the sampled action, before the environment clips it: with the clipped action, V(s) could never reach
        # the return for a mean beyond the limits.  If a different action was applied, Q takes that action.
        behaviour = batches.behaviour
        assert behaviour is not None
        action = np.where(behaviour.overridden[..., None], batches.action, behaviour.drawn)
        self._records.set("action", action)

    def _mean_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        *hidden, (weight, bias) = self._network.layers(self.rows[trial])
        means = slice(1, 1 + self._m)
        return [*hidden, (weight[:, means], bias[means])]
