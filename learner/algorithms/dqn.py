"""DQN (Mnih et al. 2015), as de Bruin et al. 2018 compare it with DDPG (§6.3, App. B).

One action dimension is discretised into levels uniform on [-1, 1].  The memory stores action values, as for DDPG, and
an applied action is treated as the nearest level.  The loss is the squared TD error (eq. 5).  Mnih et al. clip the
error; de Bruin et al. do not mention clipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithm_settings import NETWORK_SIZES, DqnConfig
from onrig.learner.algorithms import DiscreteActions, Minibatches, Signals, level_values
from onrig.learner.algorithms.traced import MinibatchRecords, TracedAlgorithm
from onrig.learner.export import export_discrete_policy
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import square
from onrig.learner.tape.networks import Mlp, glorot
from onrig.learner.tape.optimiser import Adam, descend, polyak_average
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import DETERMINISTIC, PolicyContract

_COPY_SECTION: Final = 1
"""Section of the tape that copies the network to its target, after every ``target_every``-th update."""


def nearest_level(action: NDArray[np.floating], levels: int) -> NDArray[np.int64]:
    """Return the index of the level nearest to each normalised action; ties go to the lower level.

    The ``levels`` are uniform on [-1, 1].
    """
    level_index = np.ceil((action.astype(np.float64) + 1.0) * (0.5 * (levels - 1)) - 0.5)
    # A diverged trial has NaN actions and NaN parameters.
    index: NDArray[np.int64] = np.clip(np.nan_to_num(level_index), 0, levels - 1).astype(np.int64)
    return index


class Dqn(TracedAlgorithm):
    """Q-networks of S trials, with the update that trains them."""

    behaviour: Final = DETERMINISTIC

    def __init__(
        self,
        config: DqnConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``; only one action dimension is supported."""
        state, sizes, B = Layout(), NETWORK_SIZES[config.network].critic, config.batch
        self._network, self._target = (
            Mlp(state, name, (n_observations, *sizes, config.levels)) for name in ("network", "target_network")
        )
        self._adam = Adam(
            state,
            self._network.group,
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.adam_eps,
            decay=config.weight_decay,
            is_coupled=config.decay == "coupled",
            decayed_fields=self._network.weights,
        )
        super().__init__(state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            self._network.draw(row, stream, glorot)
            self._target.copy(row, self._network)

        self.config = config
        self.discrete: Final = DiscreteActions(config.levels, config.epsilon)
        self.levels: NDArray[np.floating] = level_values(config.levels).astype(self.rows.dtype)
        """Values of the discrete actions, (levels,)."""
        self._values = self.forward(lambda tape, s, _: self._network(s), n_observations, config.levels)
        self._records = MinibatchRecords(
            B, n_observations, 1, {"chosen": (B, config.levels), "td": (B, 1), "target": (B, 1)}
        )
        tape = Tape(state, self._records.layout)
        self._update(tape, **self._records.read(tape))
        self._run = self.bind_update(tape)

    def _update(self, tape: Tape, **fields: Array) -> None:
        best_value = self._target(fields["next_observation"]).row_maxima()
        target = fields["reward"] + fields["discount"] * best_value
        td = target - (self._network(fields["observation"]) * fields["chosen"]).row_sums()
        descend(tape, (fields["weight"] * square(td)).mean(), [self._adam])
        with tape.section(_COPY_SECTION):
            polyak_average(tape, self._target.group, self._network.group, 1.0)
        tape.output(self._records.fields["td"], td)
        tape.output(self._records.fields["target"], target)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act greedily: normalised observations (S, E, n) to the value of the best level (S, E, 1).

        Ties go to the lowest level; the result is NaN if the network has diverged.
        """
        q = self._values(observation)
        # A diverged network has no best level, but argmax would return one.
        actions: NDArray[np.floating] = np.where(np.isnan(q).any(axis=2), np.nan, self.levels[q.argmax(axis=2)])
        return actions[:, :, None]

    def update(self, batches: Minibatches) -> Signals:
        config, records = self.config, self._records
        rows = records.pack(self, batches, config.gamma, config.reward_scale)
        records.set("chosen", np.eye(config.levels)[nearest_level(batches.action[..., 0], config.levels)])
        K = rows.shape[1]
        self._run(self.rows, rows, self.sections_due(K, _COPY_SECTION, config.target_every))
        self.updates += K
        return Signals(records.get("td"), target=records.get("target"))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out one trial's network, whose outputs are the values of the levels: weights (in, out) and bias (out,)
        per layer."""
        return self._network.layers(self.rows[trial])

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        return export_discrete_policy(self.actor_layers(trial), level_values(self.config.levels), contract)
