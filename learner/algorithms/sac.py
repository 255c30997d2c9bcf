"""SAC: a stochastic policy, critics, and a temperature that controls its entropy (Haarnoja et al. 2018b).

With different settings for the critics, it becomes REDQ, DroQ, CrossQ or RLPD (``onrig.learner.sac_settings``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.algorithms.critics import Critics, adam, total
from onrig.learner.algorithms.image_inputs import Inputs
from onrig.learner.algorithms.traced import MinibatchRecords, TracedAlgorithm
from onrig.learner.export import LogStdHead, export_policy
from onrig.learner.sac_settings import SacConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.convolutions import ReadFrames
from onrig.learner.tape.elementary import clip, concatenate, exp, log, square, tanh
from onrig.learner.tape.networks import BatchNormalised, Mlp, fan_in_uniform, mlp
from onrig.learner.tape.optimiser import descend
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import SQUASHED_GAUSSIAN, PolicyContract

_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)
_DELAYED_SECTION: Final = 1
"""Section of the tape that runs in every ``delay``-th update."""


class Sac(TracedAlgorithm):
    """Stochastic policies, critics and temperatures of S trials, with the update that trains them."""

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
        """Initialise one trial from each of ``streams``, in the order actor, critics, update noise.

        Raises ValueError if ``n_observations`` does not match the configured images.
        """
        self._inputs: Final = Inputs(config.image, n_observations, dtype)
        state, n, m, B = Layout(), self._inputs.width, n_actions, config.batch
        sizes = (n, *config.hidden, 2 * m)
        self._actor: Mlp
        if config.resolved_options.normalization == "batch":
            self._actor = BatchNormalised(state, "actor", sizes)
        else:
            self._actor = mlp(state, "actor", sizes, config.image)
        self._critics = Critics(state, config, n + m)
        self._temperature = state.group("temperature", {"log_alpha": (1, 1)})
        self._critic_adams = self._critics.optimisers(state)
        self._actor_adam = adam(state, self._actor.group, config)
        self._temperature_adam = adam(state, self._temperature, config)
        super().__init__(state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            self._actor.draw(row, stream, fan_in_uniform)
            self._critics.draw(row, stream)
            row[self._temperature.flat_field.slice] = math.log(config.temperature)

        self.config, self._m, self.noise_width = config, m, m
        self._mean_actions = self.forward(lambda tape, s, _: tanh(self._actor(s).columns(0, m)), n, m)
        self._sampled_actions = self.forward(lambda tape, s, noise: self._act(s, _require_noise(noise))[0], n, m, m)
        fields = dict.fromkeys(("noise", "next_noise"), (B, m))
        fields |= dict.fromkeys((*self._errors, "target"), (B, 1))
        self._records = MinibatchRecords(B, n, m, fields | self._critics.fields)
        tape = Tape(state, self._records.layout)
        self._update(tape, **self._records.read(tape))
        self._run = self.bind_update(tape)

    @property
    def _errors(self) -> list[str]:
        return [f"td{i}" for i in self._critics.indices]

    def _act(self, s: Array, noise: Array, *, is_training: bool = False) -> tuple[Array, Array]:
        """Return the squashed Gaussian action (B, m) and its ln pi (B, 1): Haarnoja et al. 2018b, App. C."""
        out, m = self._actor.train(s) if is_training else self._actor(s), self._m
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
        critics, randomness = self._critics, self._critics.read_randomness(fields)
        values, value_next = critics.values(concatenate(s, a), concatenate(s_next, a_next), randomness)
        target = r + discount * (value_next - alpha * log_pi_next)
        td = [target - value for value in values]
        descend(tape, (weight * total([square(error) for error in td])).mean(), self._critic_adams)

        with tape.section(_DELAYED_SECTION if self.config.resolved_options.delay > 1 else 0):
            pi, log_pi = self._act(s, fields["noise"], is_training=True)
            pair = concatenate(s, pi)
            descend(tape, (alpha * log_pi - critics.actor_value(pair, randomness)).mean(), [self._actor_adam])
            # The target entropy is -m.
            descend(tape, -(log_alpha * (log_pi - float(self._m))).mean(), [self._temperature_adam])
        critics.average_targets(tape)
        for name, value in zip((*self._errors, "target"), (*td, target), strict=True):
            tape.output(self._records.fields[name], value)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        return self._mean_actions(self._inputs(observation)).copy()

    def sample(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the policy's own exploration, based on N(0, 1) ``noise`` (S, E, m); return actions (S, E, m)."""
        return self._sampled_actions(self._inputs(observation), noise).copy()

    def bind_frames(self, read_frames: ReadFrames) -> None:
        self._inputs.bind_frames(read_frames)

    def update(self, batches: Minibatches) -> Signals:
        return self._inputs.update(batches, self._update_networks)

    def _update_networks(self, batches: Minibatches) -> Signals:
        config, records = self.config, self._records
        rows = records.pack(self, batches, config.gamma, config.reward_scale)
        K = rows.shape[1]
        normals, uniform_numbers = self.draw_noise(K, 2, config.batch, self._m, n_uniforms=self._critics.n_uniforms)
        next_noise, noise = normals.transpose(2, 1, 0, 3, 4)
        records.set("next_noise", next_noise)
        records.set("noise", noise)
        for name, values in self._critics.draw_fields(uniform_numbers).items():
            records.set(name, values.swapaxes(0, 1))
        self._run(self.rows, rows, self.sections_due(K, _DELAYED_SECTION, config.resolved_options.delay))
        self.updates += K
        td = np.stack([records.get(name) for name in self._errors])
        return Signals(td.mean(axis=0), np.abs(td).max(axis=0), records.get("target"))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out one trial's mean network: weights (in, out) and bias (out,) per layer."""
        *hidden, (weight, bias) = self._actor.layers(self.rows[trial])
        return [*hidden, (weight[:, : self._m], bias[: self._m])]

    def actor_log_std(self, trial: int) -> LogStdHead:
        """Copy out the parameters of the standard deviation of one trial's policy."""
        weight, bias = self._actor.layers(self.rows[trial])[-1]
        return LogStdHead(weight[:, self._m :], bias[self._m :], self.config.log_std)

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        return export_policy(self.actor_layers(trial), contract, self.actor_log_std(trial), image=self.config.image)


def _require_noise(noise: Array | None) -> Array:
    assert noise is not None
    return noise
