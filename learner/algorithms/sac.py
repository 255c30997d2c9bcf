"""SAC: a stochastic policy, twin critics, and a temperature that controls its entropy (Haarnoja et al. 2018b)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithm_settings import SacConfig
from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.algorithms.traced import Records, Traced
from onrig.learner.export import Spread, export_policy
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import clip, concatenate, exp, log, minimum, square, tanh
from onrig.learner.tape.networks import Mlp, by_inputs
from onrig.learner.tape.optimiser import Adam, descend, follow
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import SQUASHED_GAUSSIAN, PolicyContract

_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


class Sac(Traced):
    """Stochastic policies, twin critics and temperatures of S trials, and their update."""

    behaviour: Final = SQUASHED_GAUSSIAN
    discrete: Final = None

    def __init__(
        self,
        config: SacConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams`` (actor, critics, then update noise)."""
        state, n, m = Layout(), n_observations, n_actions
        self._actor = Mlp(state, "actor", (n, *config.hidden, 2 * m))
        self._critics, self._targets = (
            [Mlp(state, f"{name}{i}", (n + m, *config.hidden, 1)) for i in (1, 2)]
            for name in ("critic", "target_critic")
        )
        self._temperature = state.group("temperature", {"log_alpha": (1, 1)})
        self._adams = [Adam(state, net.group, lr=config.lr) for net in (*self._critics, self._actor)]
        self._adams.append(Adam(state, self._temperature, lr=config.lr))
        super().__init__(state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            for net in (self._actor, *self._critics):
                net.draw(row, stream, by_inputs)
            for target, critic in zip(self._targets, self._critics, strict=True):
                target.copy(row, critic)
            row[self._temperature.flat.slice] = math.log(config.temperature)

        self.config, self._m, self.noises = config, m, m
        self._means = self.forward(lambda tape, s, _: tanh(self._actor(s).columns(0, m)), n, m)
        self._draws = self.forward(lambda tape, s, noise: self._act(s, _require_noise(noise))[0], n, m, m)
        B = config.batch
        noises, outputs = (
            dict.fromkeys(("noise", "next_noise"), (B, m)),
            dict.fromkeys(("td1", "td2", "target"), (B, 1)),
        )
        self._records = Records(B, n, m, noises | outputs)
        tape = Tape(state, self._records.layout)
        self._update(tape, **self._records.read(tape))
        self._run = self.bind_update(tape)

    def _act(self, s: Array, noise: Array) -> tuple[Array, Array]:
        """Return the squashed Gaussian action (B, m) and its ln pi (B, 1): Haarnoja et al. 2018b, App. C."""
        out, m = self._actor(s), self._m
        mean, log_std = out.columns(0, m), clip(out.columns(m, 2 * m), *self.config.log_std)
        action = tanh(mean + exp(log_std) * noise)
        log_pi = square(noise) * -0.5 - log_std - _HALF_LOG_2PI - log(1.0 - action * action + 1e-6)
        return action, log_pi.row_sums()

    def _update(self, tape: Tape, **fields: Array) -> None:
        s, a, r, s_next, discount, weight = (
            fields[name] for name in ("observation", "action", "reward", "next_observation", "discount", "weight")
        )
        log_alpha = tape.read(self._temperature.fields[0])
        alpha = exp(log_alpha)

        a_next, log_pi_next = self._act(s_next, fields["next_noise"])
        pair = concatenate(s_next, a_next)
        target = r + discount * (minimum(*(q(pair) for q in self._targets)) - alpha * log_pi_next)
        pair = concatenate(s, a)
        td = [target - q(pair) for q in self._critics]
        descend(tape, (weight * (square(td[0]) + square(td[1]))).mean(), self._adams[:2])

        pi, log_pi = self._act(s, fields["noise"])
        pair = concatenate(s, pi)
        descend(tape, (alpha * log_pi - minimum(*(q(pair) for q in self._critics))).mean(), self._adams[2:3])
        # The target entropy is -m.
        descend(tape, -(log_alpha * (log_pi - float(self._m))).mean(), self._adams[3:])
        for target_net, critic in zip(self._targets, self._critics, strict=True):
            follow(tape, target_net.group, critic.group, self.config.tau)
        for name, value in (("td1", td[0]), ("td2", td[1]), ("target", target)):
            tape.output(self._records.fields[name], value)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        return self._means(observation).copy()

    def sample(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the policy's own exploration, from N(0, 1) ``noise`` (S, E, m); returns (S, E, m)."""
        return self._draws(observation, noise).copy()

    def update(self, batches: Minibatches) -> Signals:
        config, records = self.config, self._records
        rows = records.pack(self, batches, config.gamma, config.reward_scale)
        K = rows.shape[1]
        next_noise, noise = self.normals(K, 2, config.batch, self._m).transpose(2, 1, 0, 3, 4)
        records.set("next_noise", next_noise)
        records.set("noise", noise)
        self._run(self.rows, rows, None)
        self.updates += K
        twin = np.stack((records.get("td1"), records.get("td2")))
        return Signals(twin.mean(axis=0), np.abs(twin).max(axis=0), records.get("target"))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out the network of one trial's mean: weights (in, out) and bias (out,) per layer."""
        *hidden, (weight, bias) = self._actor.layers(self.rows[trial])
        return [*hidden, (weight[:, : self._m], bias[: self._m])]

    def actor_spread(self, trial: int) -> Spread:
        """Copy out the parameters of the standard deviation of one trial's policy."""
        weight, bias = self._actor.layers(self.rows[trial])[-1]
        return Spread(weight[:, self._m :], bias[self._m :], self.config.log_std)

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        return export_policy(self.actor_layers(trial), contract, self.actor_spread(trial))


def _require_noise(noise: Array | None) -> Array:
    assert noise is not None
    return noise
