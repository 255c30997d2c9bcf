"""DDPG (Lillicrap et al. 2016), as in de Bruin et al. 2018 (§3.2).

The paper does not state the order of the two gradients.  Both are taken at the same parameters and applied together, as
in OpenAI's baselines (which the paper uses for its RoboSchool experiments), rather than one after the other with the
critic's first, as in Lillicrap's Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithm_settings import NETWORK_SIZES, DdpgConfig
from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.algorithms.traced import MinibatchRecords, TracedAlgorithm
from onrig.learner.export import export_policy
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import square, tanh
from onrig.learner.tape.networks import Mlp, glorot
from onrig.learner.tape.optimiser import Adam, polyak_average
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import DETERMINISTIC, PolicyContract


def optimisers(state: Layout, config: DdpgConfig, actor: Mlp, critic: Mlp) -> tuple[Adam, Adam]:
    """Return the optimisers of actor and critic; only the critic's weights decay."""
    betas, eps, is_coupled = (config.beta1, config.beta2), config.adam_eps, config.decay == "coupled"
    decay, weights = config.critic_decay, critic.weights
    actor_adam = Adam(state, actor.group, lr=config.actor_lr, betas=betas, eps=eps)
    group, lr = critic.group, config.critic_lr
    critic_adam = Adam(
        state, group, lr=lr, betas=betas, eps=eps, decay=decay, is_coupled=is_coupled, decayed_fields=weights
    )
    return actor_adam, critic_adam


class Ddpg(TracedAlgorithm):
    """Actors and critics of S trials, with the update that trains them."""

    behaviour: Final = DETERMINISTIC
    discrete: Final = None

    def __init__(
        self,
        config: DdpgConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order actor, critic."""
        state, n, m, B, size = Layout(), n_observations, n_actions, config.batch, NETWORK_SIZES[config.network]
        self._actor, self._target_actor = (Mlp(state, name, (n, *size.actor, m)) for name in ("actor", "target_actor"))
        # The action enters at the second layer, as the parameter counts in Table 8 imply.
        self._critic, self._target_critic = (
            Mlp(state, name, (n, *size.critic, 1), joined_widths={1: m}) for name in ("critic", "target_critic")
        )
        self._actor_adam, self._critic_adam = optimisers(state, config, self._actor, self._critic)
        super().__init__(state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            for target, net in self._pairs:
                net.draw(row, stream, glorot)
                target.copy(row, net)

        self.config = config
        self._act = self.forward(lambda tape, s, _: tanh(self._actor(s)), n, m)
        self._records = MinibatchRecords(B, n, m, {"td": (B, 1), "target": (B, 1)})
        tape = Tape(state, self._records.layout)
        self._update(tape, **self._records.read(tape))
        self._run = self.bind_update(tape)

    @property
    def _pairs(self) -> list[tuple[Mlp, Mlp]]:
        return [(self._target_actor, self._actor), (self._target_critic, self._critic)]

    def _update(self, tape: Tape, **fields: Array) -> None:
        s, a, r, s_next, discount, weight = (
            fields[name] for name in ("observation", "action", "reward", "next_observation", "discount", "weight")
        )
        a_next = tanh(self._target_actor(s_next))
        target = r + discount * self._target_critic(s_next, join1=a_next)
        features = self._critic.layer(0, s)
        td = target - self._critic.from_layer(1, features, join1=a)
        value = self._critic.from_layer(1, features, join1=tanh(self._actor(s)))
        (critic_gradient,) = tape.gradient((weight * square(td)).mean(), [self._critic.group])
        (actor_gradient,) = tape.gradient(-value.mean(), [self._actor.group])
        self._actor_adam.step(tape, actor_gradient)
        self._critic_adam.step(tape, critic_gradient)
        for target_net, net in self._pairs:
            polyak_average(tape, target_net.group, net.group, self.config.tau)
        tape.output(self._records.fields["td"], td)
        tape.output(self._records.fields["target"], target)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        return self._act(observation).copy()

    def update(self, batches: Minibatches) -> Signals:
        rows = self._records.pack(self, batches, self.config.gamma, self.config.reward_scale)
        self._run(self.rows, rows, None)
        self.updates += rows.shape[1]
        return Signals(self._records.get("td"), target=self._records.get("target"))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out one trial's actor: weights (in, out) and bias (out,) of each layer."""
        return self._actor.layers(self.rows[trial])

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        return export_policy(self.actor_layers(trial), contract)
