"""What PPO and TRPO have in common: Gaussian policies and values by tanh units, observations standardised as they come.

Statistics of a batch (advantages, target values, densities) are computed once, when it comes in, and frozen: Han and
Sung 2017, §III-A.  The filter has then seen the batch, so that importance ratios are 1 before the first gradient step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import InputFilter, State
from onrig.learner.algorithms.densities import log_density
from onrig.learner.algorithms.on_policy import PolicyBatch
from onrig.learner.algorithms.returns import generalised_advantages
from onrig.learner.autograd import Blocks, states, tanh_outputs
from onrig.learner.networks import Layer, Layout, mlp_layout, split_layers
from onrig.learner.on_policy_settings import OnPolicyConfig
from onrig.runtime.replay.memory.order.uniforms import restore_streams, words_of_streams

FILTER_CUT: Final = 5.0
_FIRST_COUNT: Final = 1e-2
"""Weight of the standard normal that a filter starts with, and its least variance (OpenAI's baselines)."""
MEAN_GAIN: Final = 0.01
"""Of the initial weights of the last layer of a policy's mean."""


def policy_layout(n: int, m: int, hidden: Sequence[int]) -> Layout:
    """Lay out a policy: the layers of its mean, then ln std as a layer without inputs."""
    return Layout((*mlp_layout(n, m, hidden).layers, Layer(0, m, last=True)))


def value_layout(n: int, hidden: Sequence[int]) -> Layout:
    """Lay out a value: observation -> hidden ... -> 1."""
    return mlp_layout(n, 1, hidden)


def initial_vector(
    layout: Layout, stream: np.random.Generator, *, initial: str, last_gain: float, log_std: float = 0.0
) -> NDArray[np.float64]:
    """Draw one trial's parameters (P,): weights as ``OnPolicyConfig.initial`` says, ``log_std`` where it stands."""
    parts = []
    for layer in layout.layers:
        shape = (layer.inputs, layer.outputs)
        if not layer.inputs:
            parts.append(np.full(layer.outputs, log_std))
            continue
        drawn = stream.standard_normal(shape)
        if initial == "normc":
            weights = drawn / np.sqrt(np.square(drawn).sum(axis=0, keepdims=True))
        else:
            weights = _orthogonal(drawn) * (1.0 if layer.last else 2.0**0.5)
        parts += [(weights * (last_gain if layer.last else 1.0)).reshape(-1), np.zeros(layer.outputs)]
    return np.concatenate(parts)


def _orthogonal(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    tall = drawn if drawn.shape[0] >= drawn.shape[1] else drawn.T
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))
    return np.asarray(q if drawn.shape[0] >= drawn.shape[1] else q.T)


class Filter:
    """Running mean and standard deviation of the observations of S trials; standardises with them."""

    def __init__(self, trials: int, n: int) -> None:
        self.count: NDArray[np.float64] = np.full(trials, _FIRST_COUNT)
        self.total: NDArray[np.float64] = np.zeros((trials, n))
        self.squares: NDArray[np.float64] = np.full((trials, n), _FIRST_COUNT)
        self._settle()

    def _settle(self) -> None:
        count = self.count[:, None]
        mean = self.total / count
        variance = np.maximum(self.squares / count - np.square(mean), _FIRST_COUNT)
        self._mean, self._std = mean[:, None], np.sqrt(variance)[:, None]

    def add(self, observation: NDArray[np.floating]) -> None:
        """Take in observations (S, R, n)."""
        seen = observation.astype(np.float64)
        for trial, of_trial in enumerate(seen):
            self.count[trial] += len(of_trial)
            self.total[trial] += of_trial.sum(axis=0)
            self.squares[trial] += np.square(of_trial).sum(axis=0)
        self._settle()

    def __call__(self, observation: NDArray[np.floating]) -> NDArray[np.float64]:
        """Standardise observations (S, R, n), cut to 5 deviations."""
        return np.clip((observation - self._mean) / self._std, -FILTER_CUT, FILTER_CUT)

    def of_trial(self, trial: int) -> InputFilter:
        """Copy one trial's out."""
        return InputFilter(self._mean[trial, 0].copy(), self._std[trial, 0].copy(), FILTER_CUT)

    def state(self) -> State:
        """Copy of the sums."""
        return {
            "filter_count": self.count.copy(),
            "filter_total": self.total.copy(),
            "filter_squares": self.squares.copy(),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore ``state()``; raises KeyError or ValueError if it does not fit."""
        self.count[:], self.total[:] = state["filter_count"], state["filter_total"]
        self.squares[:] = state["filter_squares"]
        self._settle()


class Frozen(NamedTuple):
    """Statistics of the experiences of a batch, R = N / K of each of K actors."""

    observation: NDArray[np.float32]
    """(S, K, R, n), raw."""
    drawn: NDArray[np.float32]
    """(S, K, R, m)"""
    log_pi: NDArray[np.float32]
    """(S, K, R): ln pi(a|s) of the policy that acted, infinite where its action was not what was applied."""
    advantage: NDArray[np.float32]
    """(S, K, R): standardised over the N of them, if so configured."""
    target: NDArray[np.float32]
    """(S, K, R): what the value is trained towards."""


def flattened(batch: Frozen) -> Frozen:
    """The same with one axis for the experiences of all actors: (S, K R, ...)."""
    return Frozen(*(field.reshape(len(field), -1, *field.shape[3:]) for field in batch))


def gathered(field: torch.Tensor, slots: NDArray[np.int64]) -> torch.Tensor:
    """Minibatches (k, S, M, ...) of a field (S, R, ...), whose slots are (k, S, M)."""
    S, size = field.shape[:2]
    rows = torch.from_numpy(slots + size * np.arange(S)[:, None]).reshape(-1)
    return field.reshape(S * size, *field.shape[2:])[rows].reshape(*slots.shape, *field.shape[2:])


class ActorCritic(ABC):
    """Gaussian policies and values of S trials; a subclass has the networks and learns."""

    discrete: Final = None

    def __init__(
        self,
        config: OnPolicyConfig,
        n: int,
        m: int,
        streams: Sequence[np.random.Generator],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Raises ValueError without a stream."""
        if not streams:
            raise ValueError("expected one random stream per trial, got none")
        self._common: Final = config
        self.updates = 0
        self._m, self._dtype = m, dtype
        self._streams: Final = tuple(streams)
        self._filter: Final = Filter(len(streams), n)

    @property
    @abstractmethod
    def _policy_blocks(self) -> Blocks:
        """Blocks of ``policy_layout``, without gradients."""

    @property
    @abstractmethod
    def _value_blocks(self) -> Blocks:
        """Blocks of ``value_layout``, without gradients."""

    @abstractmethod
    def _policy_vectors(self) -> NDArray[np.floating]:
        """Parameters of ``policy_layout``, (S, P)."""

    def _inputs(self, observation: NDArray[np.floating]) -> torch.Tensor:
        """Prepared states (S, rows, cols) of observations (S, R, n)."""
        return states(self._filter(observation) if self._common.filter else observation, self._dtype)

    def _distribution(self, blocks: Blocks, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation, (S, rows, m) each."""
        *mean, log_std = blocks
        # By a product with a constant unit: the gradient's sum over experiences is then a product too, and its bits do
        # not depend on the number of trials.
        ones = torch.zeros((*x.shape[:2], log_std.shape[1]), dtype=x.dtype)
        ones[..., 0] = 1.0
        return tanh_outputs(mean, x)[..., : self._m], torch.bmm(ones, log_std)[..., : self._m].exp()

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the mean: normalised observations (S, E, n) to normalised actions (S, E, m)."""
        x = self._inputs(observation)
        with torch.no_grad():
            mean = tanh_outputs(self._policy_blocks[:-1], x)
        acted: NDArray[np.floating] = np.clip(mean[:, : observation.shape[1], : self._m].numpy(), -1.0, 1.0)
        return acted

    def draw(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Draw actions by N(0, 1) ``noise`` (S, E, m): (S, E, m), not clipped."""
        E, x = observation.shape[1], self._inputs(observation)
        with torch.no_grad():
            *layers, log_std = self._policy_blocks
            mean = tanh_outputs(layers, x)[:, :E, : self._m].numpy()
            std = log_std[:, :1, : self._m].exp().numpy()
        drawn: NDArray[np.floating] = mean + std * noise.astype(np.float32)
        return drawn

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy the network of one trial's mean out: weights (in, out) and bias (out,) per layer, tanh between them."""
        config = self._common
        mean = mlp_layout(self._filter.total.shape[1], self._m, config.hidden)
        return split_layers(mean, self._policy_vectors()[trial])

    def actor_std(self, trial: int) -> NDArray[np.floating]:
        """Copy the standard deviation of one trial's policy out, the same in all states: (m,)."""
        std: NDArray[np.floating] = np.exp(self._policy_vectors()[trial, -self._m :])
        return std

    def actor_filter(self, trial: int) -> InputFilter | None:
        """Copy out how one trial's observations are standardised; None if they are not."""
        return self._filter.of_trial(trial) if self._common.filter else None

    def _freeze(self, batch: PolicyBatch) -> Frozen:
        """Statistics of a batch under the present policies; ValueError for one of another size."""
        config, (S, K, T) = self._common, batch.reward.shape
        expected = len(self._streams), config.actors, config.steps // config.actors
        if batch.reward.shape != expected:
            raise ValueError(f"a batch of {(S, K, T)} experiences, expected {expected}")
        seen = batch.observation.reshape(S, K * T, -1)
        self._filter.add(seen)
        x = self._inputs(seen)
        with torch.no_grad():
            log_pi = batch.log_pi
            if log_pi is None:
                mean, std = self._distribution(self._policy_blocks, x)
                drawn = torch.tensor(batch.drawn.reshape(S, K * T, -1), dtype=self._dtype)
                log_pi = log_density(drawn, mean[:, : K * T], std[:, : K * T]).numpy().reshape(S, K, T)
            after = self._inputs(batch.next_observation.reshape(S, K * T, -1))
            value, next_value = (
                tanh_outputs(self._value_blocks, at)[:, : K * T, 0].double().numpy().reshape(S, K, T)
                for at in (x, after)
            )
        ended = batch.terminated | batch.truncated
        over = batch.terminated if config.truncations == "bootstrap" else ended
        error = config.reward_scale * batch.reward + config.gamma * np.where(over, 0.0, next_value) - value
        advantage = generalised_advantages(error, ended, config.gamma, config.gae_lambda)
        target = advantage + value
        if self._standardises:
            flat = advantage.reshape(S, -1)
            flat = (flat - flat.mean(axis=1, keepdims=True)) / np.maximum(flat.std(axis=1, keepdims=True), 1e-8)
            advantage = flat.reshape(S, K, T)
        log_pi = np.where(batch.deviates, np.inf, log_pi)
        fields = batch.observation, batch.drawn, log_pi, advantage, target
        return Frozen(*(field.astype(np.float32) for field in fields))

    @property
    def _standardises(self) -> bool:
        """Whether advantages are standardised over their batch."""
        return True

    def state(self) -> State:
        """Copy of what all have: streams, filter, count."""
        return {
            "updates": np.array(self.updates, dtype=np.int64),
            **self._filter.state(),
            "streams": words_of_streams(self._streams),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore it; raises KeyError or ValueError if it does not fit."""
        self._filter.restore(state)
        restore_streams(self._streams, state["streams"])
        self.updates = int(state["updates"])
