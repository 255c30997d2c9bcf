"""TD3: twin critics, a smoothed target policy, and an actor that is updated less often (Fujimoto et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithm_settings import Td3Config
from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.algorithms.image_inputs import Inputs
from onrig.learner.algorithms.traced import MinibatchRecords, TracedAlgorithm
from onrig.learner.export import export_policy
from onrig.learner.tape.array import Array
from onrig.learner.tape.convolutions import ReadFrames
from onrig.learner.tape.elementary import clip, concatenate, minimum, square, tanh
from onrig.learner.tape.networks import Mlp, fan_in_uniform, mlp
from onrig.learner.tape.optimiser import Adam, descend, polyak_average
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import DETERMINISTIC, PolicyContract

_DELAYED_SECTION: Final = 1
"""Section of the tape that runs in every ``delay``-th update."""


class Td3(TracedAlgorithm):
    """Actors and twin critics of S trials, with the update that trains them."""

    behaviour: Final = DETERMINISTIC
    discrete: Final = None

    def __init__(
        self,
        config: Td3Config,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order actor, critics, update noise.

        Raises ValueError if ``n_observations`` does not match the configured images.
        """
        self._inputs: Final = Inputs(config.image, n_observations, dtype)
        state, n, m, B = Layout(), self._inputs.width, n_actions, config.batch
        self._actor, self._target_actor = (
            mlp(state, name, (n, *config.hidden, m), config.image) for name in ("actor", "target_actor")
        )
        self._critics, self._target_critics = (
            [mlp(state, f"{name}{i}", (n + m, *config.hidden, 1), config.image) for i in (1, 2)]
            for name in ("critic", "target_critic")
        )
        self._adams = [Adam(state, net.group, lr=config.lr) for net in (*self._critics, self._actor)]
        super().__init__(state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            for net in (self._actor, *self._critics):
                net.draw(row, stream, fan_in_uniform)
            for target, net in self._pairs:
                target.copy(row, net)

        self.config, self._m = config, m
        self._act = self.forward(lambda tape, s, _: tanh(self._actor(s)), n, m)
        self._records = MinibatchRecords(B, n, m, {"noise": (B, m), "td1": (B, 1), "td2": (B, 1), "target": (B, 1)})
        tape = Tape(state, self._records.layout)
        self._update(tape, **self._records.read(tape))
        self._run = self.bind_update(tape)

    @property
    def _pairs(self) -> list[tuple[Mlp, Mlp]]:
        networks = zip(self._target_critics, self._critics, strict=True)
        return [(self._target_actor, self._actor), *networks]

    def _update(self, tape: Tape, **fields: Array) -> None:
        config = self.config
        s, a, r, s_next, discount, weight = (
            fields[name] for name in ("observation", "action", "reward", "next_observation", "discount", "weight")
        )
        a_next = clip(tanh(self._target_actor(s_next)) + fields["noise"], -1.0, 1.0)
        pair = concatenate(s_next, a_next)
        target = r + discount * minimum(*(q(pair) for q in self._target_critics))
        pair = concatenate(s, a)
        td = [target - q(pair) for q in self._critics]
        descend(tape, (weight * (square(td[0]) + square(td[1]))).mean(), self._adams[:2])
        for name, value in (("td1", td[0]), ("td2", td[1]), ("target", target)):
            tape.output(self._records.fields[name], value)

        with tape.section(_DELAYED_SECTION):
            pair = concatenate(s, tanh(self._actor(s)))
            descend(tape, -self._critics[0](pair).mean(), self._adams[2:])
        with tape.section(_DELAYED_SECTION if config.targets == "delayed" else 0):
            for target_net, net in self._pairs:
                polyak_average(tape, target_net.group, net.group, config.tau)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        return self._act(self._inputs(observation)).copy()

    def bind_frames(self, read_frames: ReadFrames) -> None:
        self._inputs.bind_frames(read_frames)

    def update(self, batches: Minibatches) -> Signals:
        return self._inputs.update(batches, self._update_networks)

    def _update_networks(self, batches: Minibatches) -> Signals:
        config, records = self.config, self._records
        rows = records.pack(self, batches, config.gamma, config.reward_scale)
        K = rows.shape[1]
        noise = self.normals(K, config.batch, self._m).swapaxes(0, 1) * config.target_noise
        records.set("noise", np.clip(noise, -config.noise_clip, config.noise_clip))
        self._run(self.rows, rows, self.sections_due(K, _DELAYED_SECTION, config.delay))
        self.updates += K
        twin = np.stack((records.get("td1"), records.get("td2")))
        return Signals(twin.mean(axis=0), np.abs(twin).max(axis=0), records.get("target"))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out one trial's actor: weights (in, out) and bias (out,) per layer."""
        return self._actor.layers(self.rows[trial])

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        return export_policy(self.actor_layers(trial), contract, image=self.config.image)
