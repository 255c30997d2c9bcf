"""DDPG under ReF-ER (Novati and Koumoutsakos 2019, Alg. 4): the exploration noise, a Gaussian of fixed width, gives
the policy a density.

The critic learns only from near experiences, without the factor beta; the actor follows the mixed gradient of rule 2.
Both gradients are taken at the same parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithm_settings import NETWORK_SIZES, DdpgConfig
from onrig.learner.algorithms.ddpg import optimisers
from onrig.learner.algorithms.refer import Rules
from onrig.learner.algorithms.refer_algorithm import ReferMinibatchAlgorithm, initial_layer
from onrig.learner.refer_settings import ReferSettings
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate, softsign, square, tanh
from onrig.learner.tape.networks import Mlp
from onrig.learner.tape.optimiser import polyak_average
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape


class ReferDdpg(ReferMinibatchAlgorithm):
    """Actors and critics of S trials, with the update that trains them."""

    has_bounded_mean = True

    def __init__(
        self,
        config: DdpgConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order actor, critic."""
        state, n, m, size = Layout(), n_observations, n_actions, NETWORK_SIZES[config.network]
        self._actor, self._target_actor = (
            Mlp(state, name, (n, *size.actor, m), activation=softsign) for name in ("actor", "target_actor")
        )
        self._critic, self._target_critic = (
            Mlp(state, name, (n + m, *size.critic, 1), activation=softsign) for name in ("critic", "target_critic")
        )
        self._actor_adam, self._critic_adam = optimisers(state, config, self._actor, self._critic)
        self._tau = config.tau
        super().__init__(config, refer, n, m, state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            for target, net in self._pairs:
                net.draw(row, stream, initial_layer)
                target.copy(row, net)
        self._trace()

    @property
    def _pairs(self) -> list[tuple[Mlp, Mlp]]:
        return [(self._target_actor, self._actor), (self._target_critic, self._critic)]

    def _current_policy(self, x: Array) -> tuple[Array, Array]:
        return tanh(self._actor(x)), x.tape.filled((1, self._m), self._settings.std)

    def _update(self, tape: Tape, rules: Rules, **fields: Array) -> dict[str, Array]:
        x, x_next = self._inputs(fields["observation"]), self._inputs(fields["next_observation"])
        mean, std = self._current_policy(x)
        distance = self._policy_distance(mean, std, **fields)
        value = self._critic(concatenate(x, mean))
        (actor_gradient,) = tape.gradient(rules.mix(-value, distance).mean(), [self._actor.group])

        next_value = self._target_critic(concatenate(x_next, tanh(self._target_actor(x_next))))
        target = fields["reward"] + fields["discount"] * next_value
        td = target - self._critic(concatenate(x, fields["action"]))
        near_mask = rules.near_mask(distance.rho)
        (critic_gradient,) = tape.gradient((fields["weight"] * near_mask * square(td)).mean(), [self._critic.group])
        self._actor_adam.step(tape, actor_gradient, rules.annealing)
        self._critic_adam.step(tape, critic_gradient, rules.annealing)
        for target_net, net in self._pairs:
            polyak_average(tape, target_net.group, net.group, self._tau)
        return {"td": td, "target": target, "rho": distance.rho, "kl": distance.kl}

    def _mean_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        return self._actor.layers(self.rows[trial])
