"""What the algorithms of Novati and Koumoutsakos 2019 have in common: Gaussian policies, softsign units, ReF-ER.

States are standardised once, before the first update, and rewards divided by their root mean square every 1000 updates,
where ``refer.standardise`` says so (App. B); such a division takes the place of ``reward_scale``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import softplus

from onrig.learner.algorithm_config import AlgorithmConfig
from onrig.learner.algorithms import Minibatches, Signals, State, Stored
from onrig.learner.algorithms.torch_refer import Apart, Refer, Weights
from onrig.learner.autograd import Blocks, Nets, states
from onrig.learner.networks import Layer, Layout, split_layers
from onrig.learner.refer_settings import ReferSettings

RESCALE_EVERY: Final = 1000
"""Updates between looks at the rewards in the memory."""
LEAST_STD: Final = 1e-3
"""Of policies that acted, as it is learned from: 0 is recorded where exploration was held back, which is infinitely far
from any other policy."""
_AT_ONCE: Final = 1024
"""Experiences gathered at once for statistics of the memory."""


def initial_vectors(layout: Layout, streams: Sequence[np.random.Generator]) -> NDArray[np.float64]:
    """Draw parameters (S, 1, P) (App. A): Glorot-uniform hidden layers, U(+-0.1 / sqrt(inputs)) output, no biases."""

    def drawn(stream: np.random.Generator) -> NDArray[np.float64]:
        parts = []
        for layer in layout.layers:
            inputs = layer.inputs + layer.action_rows
            bound = 0.1 / inputs**0.5 if layer.last else (6.0 / (inputs + layer.outputs)) ** 0.5
            parts += [stream.uniform(-bound, bound, inputs * layer.outputs), np.zeros(layer.outputs)]
        return np.concatenate(parts)

    return np.array([[drawn(stream)] for stream in streams])


def with_common_std(
    body: Layout, vectors: NDArray[np.float64], std: float, m: int
) -> tuple[Layout, NDArray[np.float64]]:
    """Add a standard deviation of m actions, ``std`` at first, to a network: one without inputs, the same in all
    states."""
    spread = np.full((*vectors.shape[:2], m), math.log(math.expm1(std)))
    return Layout((*body.layers, Layer(0, m, last=True))), np.concatenate((vectors, spread), axis=2)


def common_std(blocks: Blocks, m: int) -> torch.Tensor:
    """Standard deviation (S, 1, m) of such a network."""
    return softplus(blocks[-1][:, :1, :m])


class MinibatchTensors(NamedTuple):
    """One minibatch as tensors, prepared."""

    x: torch.Tensor
    """(S, rows, cols): states with the constant unit, padded."""
    x_next: torch.Tensor
    action: torch.Tensor
    """(S, B, m): applied."""
    reward: torch.Tensor
    """(S, B): scaled."""
    discount: torch.Tensor
    """(S, B): gamma, 0 where terminated."""
    weight: torch.Tensor
    """(S, B): importance-sampling weights."""
    acted: tuple[torch.Tensor, torch.Tensor]
    """Mean and standard deviation of the policy that acted, (S, B, m) each."""
    drawn: torch.Tensor
    """(S, B, m)"""
    slots: NDArray[np.int64]
    """(S, B)"""
    deviates: NDArray[np.bool_]
    """(S, B)"""


class Host(ABC):
    """Gaussian policies of S trials under ReF-ER; a subclass has networks and losses."""

    discrete: Final = None
    bounded: ClassVar[bool] = False
    """Whether means pass a tanh."""

    def __init__(self, config: AlgorithmConfig, refer: ReferSettings, n: int, m: int, trials: int) -> None:
        self._config, self._settings = config, refer
        self.trials, self._n, self._m = trials, n, m
        self.updates = 0
        self._centre: NDArray[np.float64] = np.zeros((trials, 1, n))
        self._spread: NDArray[np.float64] = np.ones((trials, 1, n))
        self._reward_scale: NDArray[np.float64] = np.full((trials, 1), config.reward_scale)
        self._stored: Stored | None = None
        self._refer: Refer | None = None

    @abstractmethod
    def _present(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation (S, rows, m) at prepared states, without gradients."""

    @abstractmethod
    def _update(self, drawn: MinibatchTensors, refer: Refer) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one step; returns TD errors before it and targets, (S, B) each."""

    @abstractmethod
    def _mean_layers(self) -> tuple[Layout, NDArray[np.floating], int]:
        """Layout and vectors (S, P) of the networks that lead to means, and the output that is the first of them."""

    @property
    @abstractmethod
    def _nets(self) -> dict[str, Nets]:
        """All networks, by name."""

    def attend(self, stored: Stored) -> None:
        """Learn from this memory; once, before the first update."""
        self._stored = stored
        self._refer = Refer(self._settings, self._config.batch, stored.notes)

    def departure(self) -> NDArray[np.float64]:
        """(S, 2): mean KL divergence from the policies that acted, and share of far experiences, over the memory."""
        assert self._refer is not None
        return np.stack((self._refer.mean_kl, self._refer.far_share), axis=1)

    def distribution(self, observation: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Mean and standard deviation at normalised observations (S, E, n): (S, E, m) each."""
        E = observation.shape[1]
        with torch.no_grad():
            mean, std = self._present(self._inputs(observation))
        return mean[:, :E].numpy(), std[:, :E].numpy()

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the mean: normalised observations (S, E, n) to normalised actions (S, E, m)."""
        acted: NDArray[np.floating] = np.clip(self.distribution(observation)[0], -1.0, 1.0)
        return acted

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn, with their slots and behaviour; ValueError when they are of another shape."""
        told = [self._step(batches, k) for k in range(len(batches.reward))]
        td, target, far, kl = (np.stack(column) for column in zip(*told, strict=True))
        return Signals(td, target=target if self._config.gives_targets else None, far=far, kl=kl)

    def _step(self, batches: Minibatches, k: int) -> tuple[NDArray[np.floating], ...]:
        assert self._refer is not None
        if self._settings.standardise:
            self._standardise()
        for net in self._nets.values():
            net.anneal(self._refer.annealing)
        drawn = self._drawn(batches, k)
        td, target = self._update(drawn, self._refer)
        self.updates += 1
        judged = np.arange(self.trials)[:, None], drawn.slots
        far, kl = (column[judged].astype(np.float32) for column in (self._refer.far, self._refer.kl))
        return td.numpy(), target.numpy(), far, kl

    def _drawn(self, batches: Minibatches, k: int) -> MinibatchTensors:
        behaviour, slots, S, B = batches.behaviour, batches.slots, self.trials, self._config.batch
        if behaviour is None or slots is None:
            raise ValueError("expected minibatches with the policies that acted, and their slots")
        shapes = batches.observation.shape[1:], batches.action.shape[1:]
        if shapes != ((S, B, self._n), (S, B, self._m)):
            expected = f"{(S, B, self._n)} and {(S, B, self._m)}"
            raise ValueError(f"observations and actions of shape {shapes[0]} and {shapes[1]}, expected {expected}")

        def tensor(values: NDArray[np.floating]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32)

        weights = np.ones((S, B)) if batches.weights is None else batches.weights[k]
        return MinibatchTensors(
            *self._around(batches, k),
            tensor(batches.action[k]),
            tensor(batches.reward[k] * self._reward_scale),
            tensor(np.where(batches.terminated[k], 0.0, self._config.gamma)),
            tensor(weights),
            (tensor(behaviour.mean[k]), tensor(behaviour.std[k]).clamp(min=LEAST_STD)),
            tensor(behaviour.drawn[k]),
            slots[k],
            behaviour.deviates[k],
        )

    def _judged(
        self, drawn: MinibatchTensors, present: tuple[torch.Tensor, torch.Tensor], refer: Refer
    ) -> tuple[Apart, Weights]:
        apart = refer.apart(drawn.drawn, drawn.acted, present)
        return apart, refer.weigh(drawn.slots, apart)

    def _inputs(self, observation: NDArray[np.floating]) -> torch.Tensor:
        """Prepared states of observations (S, E, n)."""
        return states((observation - self._centre) / self._spread)

    def _around(self, taken: Minibatches, at: int | slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepared states of experiences, or of those of one minibatch, and the states that they lead to."""
        return self._inputs(taken.observation[at]), self._inputs(taken.next_observation[at])

    def _standardise(self) -> None:
        assert self._stored is not None
        if self.updates % RESCALE_EVERY:
            return
        stored = self._stored.notes.stored
        observations, rewards = [], []
        for start in range(0, int(stored.max()), _AT_ONCE):
            slots = np.minimum(np.arange(start, start + _AT_ONCE), self._stored.notes.capacity - 1)
            taken = self._stored.gather(np.broadcast_to(slots, (self.trials, _AT_ONCE)))
            rewards.append(np.array(taken.reward, np.float64))
            if self.updates == 0:  # later the memory may be large, and observations are standardised once
                observations.append(np.array(taken.observation, np.float64))
        if self.updates == 0:
            observation = np.concatenate(observations, axis=1)
            for trial, count in enumerate(stored.tolist()):
                spread = observation[trial, :count].std(axis=0)
                self._centre[trial] = observation[trial, :count].mean(axis=0)
                self._spread[trial] = np.where(spread > 1e-6, spread, 1.0)
        reward = np.concatenate(rewards, axis=1)
        for trial, count in enumerate(stored.tolist()):
            size = np.sqrt(np.square(reward[trial, :count]).mean())
            self._reward_scale[trial] = 1.0 / size if size > 0.0 else 1.0

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy the network of one trial's mean out, before the tanh if it is ``bounded``: weights (in, out) and bias
        (out,) per layer, softsign between them, standardisation included."""
        layout, vectors, first = self._mean_layers()
        layers = split_layers(layout, vectors[trial])
        weight, bias = layers[0]
        scaled = weight / self._spread[trial].T
        (last_weight, last_bias) = layers[-1]
        means = slice(first, first + self._m)
        inner = [(scaled, bias - self._centre[trial, 0] @ scaled), *layers[1:-1]]
        return [*inner, (last_weight[:, means], last_bias[means])]

    def actor_std(self, trial: int) -> NDArray[np.floating]:
        """Copy the standard deviation of one trial's policy out, the same in all states: (m,)."""
        _, std = self.distribution(np.zeros((self.trials, 1, self._n)))
        return np.array(std[trial, 0])

    def state(self) -> State:
        """Copy of everything needed to resume training but the notes beside the slots."""
        state: State = {"updates": np.array(self.updates, dtype=np.int64)}
        state |= {"centre": self._centre.copy(), "spread": self._spread.copy()}
        state["reward_scale"] = self._reward_scale.copy()
        for name, net in self._nets.items():
            state |= net.state(name)
        return state if self._refer is None else state | self._refer.state()

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        for name, net in self._nets.items():
            net.restore(state, name)
        if self._refer is not None:
            self._refer.restore(state)
        self._centre[:], self._spread[:] = state["centre"], state["spread"]
        self._reward_scale[:] = state["reward_scale"]
        self.updates = int(state["updates"])
