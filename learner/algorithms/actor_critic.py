"""Common base of PPO and TRPO: Gaussian policies and value functions with tanh units, and a filter that standardises
observations.

Batch statistics (advantages, target values, densities) are computed once, when a batch arrives, and kept
(Han and Sung 2017, §III-A).  At that point the filter already includes the batch, so importance ratios are 1 before the
first gradient step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import State
from onrig.learner.algorithms.on_policy import PolicyBatch
from onrig.learner.algorithms.returns import generalised_advantages
from onrig.learner.algorithms.traced import TracedAlgorithm
from onrig.learner.export import InputFilter, export_gaussian_policy
from onrig.learner.on_policy_settings import OnPolicyConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.densities import log_density
from onrig.learner.tape.elementary import clip, concatenate, exp, tanh
from onrig.learner.tape.networks import Mlp
from onrig.learner.tape.optimiser import Adam
from onrig.learner.tape.spaces import Group, Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import GAUSSIAN, PolicyContract

FILTER_CLIP: Final = 5.0
_FIRST_COUNT: Final = 1e-2
"""Weight of the standard normal with which a filter is initialised, and the filter's minimum variance
(OpenAI's baselines)."""
MEAN_GAIN: Final = 0.01
"""Factor applied to the initial weights in the last layer of the network for a policy's mean."""


def initial_layer(
    stream: np.random.Generator, inputs: int, outputs: int, is_last: bool, *, scheme: str, output_gain: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw weights by ``scheme`` (``OnPolicyConfig.initial``), scaled by ``output_gain`` in the last layer, and zero
    biases."""
    normals = stream.standard_normal((inputs, outputs))
    if scheme == "normc":
        weights = normals / np.sqrt(np.square(normals).sum(axis=0, keepdims=True))
    else:
        weights = _orthogonal(normals) * (1.0 if is_last else 2.0**0.5)
    return weights * (output_gain if is_last else 1.0), np.zeros(outputs)


def _orthogonal(normals: NDArray[np.float64]) -> NDArray[np.float64]:
    tall_matrix = normals if normals.shape[0] >= normals.shape[1] else normals.T
    q, r = np.linalg.qr(tall_matrix)
    q = q * np.sign(np.diag(r))
    return np.asarray(q if normals.shape[0] >= normals.shape[1] else q.T)


class Filter:
    """Standardisation of S trials' observations by their running mean and standard deviation."""

    def __init__(self, trials: int, n: int) -> None:
        self.count: NDArray[np.float64] = np.full(trials, _FIRST_COUNT)
        self.total: NDArray[np.float64] = np.zeros((trials, n))
        self.squares: NDArray[np.float64] = np.full((trials, n), _FIRST_COUNT)
        self._update_moments()

    def _update_moments(self) -> None:
        count = self.count[:, None]
        mean = self.total / count
        variance = np.maximum(self.squares / count - np.square(mean), _FIRST_COUNT)
        self._mean, self._std = mean[:, None], np.sqrt(variance)[:, None]

    def add(self, observation: NDArray[np.floating]) -> None:
        """Add observations (S, R, n) to the statistics."""
        observations = observation.astype(np.float64)
        for trial, trial_observations in enumerate(observations):
            self.count[trial] += len(trial_observations)
            self.total[trial] += trial_observations.sum(axis=0)
            self.squares[trial] += np.square(trial_observations).sum(axis=0)
        self._update_moments()

    def __call__(self, observation: NDArray[np.floating]) -> NDArray[np.float64]:
        """Standardise observations (S, R, n), and clip them to 5 standard deviations."""
        return np.clip((observation - self._mean) / self._std, -FILTER_CLIP, FILTER_CLIP)

    def of_trial(self, trial: int) -> InputFilter:
        return InputFilter(self._mean[trial, 0].copy(), self._std[trial, 0].copy(), FILTER_CLIP)

    def state(self) -> State:
        return {
            "filter_count": self.count.copy(),
            "filter_total": self.total.copy(),
            "filter_squares": self.squares.copy(),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self.count[:], self.total[:] = state["filter_count"], state["filter_total"]
        self.squares[:] = state["filter_squares"]
        self._update_moments()


class BatchStatistics(NamedTuple):
    """Quantities derived from the experiences of a batch, of which each of K actors gathered R = N / K."""

    observation: NDArray[np.float32]
    """(S, K, R, n), raw."""
    drawn: NDArray[np.float32]
    """(S, K, R, m)"""
    log_pi: NDArray[np.float32]
    """(S, K, R): ln pi(a|s) under the behaviour policy; infinite where a different action was applied."""
    advantage: NDArray[np.float32]
    """(S, K, R): standardised over all N, if so configured."""
    target: NDArray[np.float32]
    """(S, K, R): training target of the value."""


def flatten_actors(batch: BatchStatistics) -> BatchStatistics:
    """Merge the experiences of all actors into one axis: (S, K R, ...)."""
    return BatchStatistics(*(field.reshape(len(field), -1, *field.shape[3:]) for field in batch))


def gather_minibatches(field: NDArray[Any], slots: NDArray[np.int64]) -> NDArray[Any]:
    """Gather minibatches (k, S, M, ...) of a field (S, R, ...) from slots (k, S, M)."""
    S, size, *dimensions = field.shape
    rows: NDArray[Any] = np.take(field.reshape(S * size, *dimensions), slots + size * np.arange(S)[:, None], axis=0)
    return rows


class ActorCritic(TracedAlgorithm):
    """Gaussian policies and values of S trials; a subclass adds the update."""

    behaviour: Final = GAUSSIAN
    discrete: Final = None

    def __init__(
        self,
        config: OnPolicyConfig,
        n: int,
        m: int,
        streams: Sequence[np.random.Generator],
        dtype: DTypeLike,
        *,
        value_lr: float,
        policy_lr: float | None = None,
        adam_eps: float = 1e-8,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order policy, value.

        Policies use Adam if ``policy_lr`` is given.  Raises ValueError if ``streams`` is empty.
        """
        if not streams:
            raise ValueError("expected one random stream per trial, got none")
        state = Layout()
        self._mean = Mlp(state, "policy", (n, *config.hidden, m), activation=tanh)
        self._log_std: Final[Group] = state.group("spread", {"log_std": (1, m)})
        self._value = Mlp(state, "value", (n, *config.hidden, 1), activation=tanh)
        rates = {self._mean.group: policy_lr, self._log_std: policy_lr, self._value.group: value_lr}
        self._adams = [Adam(state, g, lr=lr, eps=adam_eps) for g, lr in rates.items() if lr is not None]
        super().__init__(state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            for net, gain in ((self._mean, MEAN_GAIN), (self._value, 1.0)):
                net.draw(row, stream, partial(initial_layer, scheme=config.initial, output_gain=gain))
            row[self._log_std.flat_field.slice] = config.log_std
        self._on_policy_config: Final = config
        self._filter: Final = Filter(len(streams), n)
        self._mean_actions = self.forward(lambda tape, x, _: clip(self._mean(x), -1.0, 1.0), n, m)
        self._sampled_actions = self.forward(self._trace_sample, n, m, m)
        self._densities_and_values = self.forward(self._trace_density, n, 2, m)
        """Program from states and the actions sampled in them to ln pi(a|s) and the states' values."""
        self._values = self.forward(lambda tape, x, _: self._value(x), n, 1)

    def _distribution(self, x: Array) -> tuple[Array, Array]:
        """Return the mean (B, m) and the standard deviation (1, m)."""
        return self._mean(x), exp(x.tape.read(self._log_std.fields[0]))

    def _trace_sample(self, tape: Tape, x: Array, noise: Array | None) -> Array:
        mean, std = self._distribution(x)
        assert noise is not None
        return mean + std * noise

    def _trace_density(self, tape: Tape, x: Array, drawn: Array | None) -> Array:
        assert drawn is not None
        return concatenate(log_density(drawn, *self._distribution(x)), self._value(x))

    def _inputs(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the network inputs for observations (S, R, n)."""
        return self._filter(observation) if self._on_policy_config.filter else observation

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        return self._mean_actions(self._inputs(observation)).copy()

    def draw(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        return self._sampled_actions(self._inputs(observation), noise).copy()

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out one trial's mean network: weights (in, out) and bias (out,) per layer, with tanh between the
        layers."""
        return self._mean.layers(self.rows[trial])

    def actor_std(self, trial: int) -> NDArray[np.floating]:
        """Copy out the standard deviation of one trial's policy, the same in all states: (m,)."""
        std: NDArray[np.floating] = np.exp(self.rows[trial, self._log_std.flat_field.slice])
        return std

    def actor_filter(self, trial: int) -> InputFilter | None:
        """Copy out one trial's observation filter; None if observations are not standardised."""
        return self._filter.of_trial(trial) if self._on_policy_config.filter else None

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        layers, std = self.actor_layers(trial), self.actor_std(trial)
        return export_gaussian_policy(layers, std, contract, activation="Tanh", input_filter=self.actor_filter(trial))

    def _compute_statistics(self, batch: PolicyBatch) -> BatchStatistics:
        """Compute the statistics of a batch under the current policies; raise ValueError if its size is wrong."""
        config, (S, K, T) = self._on_policy_config, batch.reward.shape
        expected_shape = self.trials, config.actors, config.steps // config.actors
        if batch.reward.shape != expected_shape:
            raise ValueError(f"expected a batch of {expected_shape} experiences, got {(S, K, T)}")
        observation, next_observation, drawn = (
            field.reshape(S, K * T, -1) for field in (batch.observation, batch.next_observation, batch.drawn)
        )
        self._filter.add(observation)
        statistics = self._densities_and_values(self._inputs(observation), drawn).reshape(S, K, T, 2)
        log_pi = statistics[..., 0] if batch.log_pi is None else batch.log_pi
        value = statistics[..., 1].astype(np.float64)
        next_value = self._values(self._inputs(next_observation)).astype(np.float64).reshape(S, K, T)
        is_end = batch.terminated | batch.truncated
        has_no_bootstrap = batch.terminated if config.truncations == "bootstrap" else is_end
        error = config.reward_scale * batch.reward + config.gamma * np.where(has_no_bootstrap, 0.0, next_value) - value
        advantage = generalised_advantages(error, is_end, config.gamma, config.gae_lambda)
        target = advantage + value
        if self._standardises_batch:
            a = advantage.reshape(S, -1)
            a = (a - a.mean(axis=1, keepdims=True)) / np.maximum(a.std(axis=1, keepdims=True), 1e-8)
            advantage = a.reshape(S, K, T)
        log_pi = np.where(batch.overridden, np.inf, log_pi)
        fields = batch.observation, batch.drawn, log_pi, advantage, target
        return BatchStatistics(*(field.astype(np.float32) for field in fields))

    @property
    def _standardises_batch(self) -> bool:
        return True

    def state(self) -> State:
        return super().state() | self._filter.state()

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        super().restore(state)
        self._filter.restore(state)
