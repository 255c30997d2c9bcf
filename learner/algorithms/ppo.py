"""PPO with the clipped objective (Schulman et al. 2017), and PPO-ER: its last batches are replayed (Han and Sung 2017).

By autograd, for S trials at once (``onrig.learner.autograd``): trial s of S gives bit for bit what it gives alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import State
from onrig.learner.algorithms.actor_critic import (
    MEAN_GAIN,
    ActorCritic,
    Frozen,
    flattened,
    gathered,
    initial_vector,
    policy_layout,
    value_layout,
)
from onrig.learner.algorithms.densities import likelihood_ratio, log_density
from onrig.learner.algorithms.on_policy import Beat, PolicyBatch, silently
from onrig.learner.autograd import TANH_CONSTANT, Blocks, Nets, tanh_outputs
from onrig.learner.networks import Layout
from onrig.learner.on_policy_settings import PpoConfig


class Minibatch(NamedTuple):
    """M experiences of each of S trials, with their statistics."""

    x: torch.Tensor
    """(S, M, cols): prepared states."""
    drawn: torch.Tensor
    """(S, M, m)"""
    log_pi: torch.Tensor
    """(S, M)"""
    advantage: torch.Tensor
    target: torch.Tensor


class Ppo(ActorCritic):
    """Policies and values of S trials, the batches they replay, and what trains them."""

    def __init__(
        self,
        config: PpoConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialise one trial from each of ``streams`` (policy, value, then the draws of minibatches)."""
        super().__init__(config, n_observations, n_actions, streams, dtype)
        self.config: Final = config
        policy = policy_layout(n_observations, n_actions, config.hidden)
        value = value_layout(n_observations, config.hidden)
        self._policy_layers, self._policy_size = len(policy.layers), policy.n_parameters
        vectors = [
            np.concatenate(
                (
                    initial_vector(policy, s, initial=config.initial, last_gain=MEAN_GAIN, log_std=config.log_std),
                    initial_vector(value, s, initial=config.initial, last_gain=1.0),
                )
            )
            for s in streams
        ]
        # Both in one vector: one step of Adam, and one norm of the gradient.
        self._nets = Nets(
            Layout((*policy.layers, *value.layers)),
            np.array(vectors)[:, None],
            lr=config.lr,
            dtype=dtype,
            targets=False,
            eps=config.adam_eps,
            constant=TANH_CONSTANT,
            rest=None if config.value_lr is None else (len(policy.layers), config.value_lr / config.lr),
        )
        self._replayed: Final[deque[Frozen]] = deque(maxlen=config.depth)
        """Replay memory: the last L batches, oldest first."""

    @property
    def _policy_blocks(self) -> Blocks:
        return self._nets.frozen[: self._policy_layers]

    @property
    def _value_blocks(self) -> Blocks:
        return self._nets.frozen[self._policy_layers :]

    def _policy_vectors(self) -> NDArray[np.floating]:
        return self._nets.vectors()[:, 0, : self._policy_size]

    @property
    def _standardises(self) -> bool:
        return self.config.standardise == "batch"

    def learn(self, batch: PolicyBatch, left: float, beat: Beat = silently) -> None:
        """Take the epochs of one iteration; ``left`` is the share of the run that was left at its start."""
        config = self.config
        self._replayed.append(self._freeze(batch))
        alpha = left if config.anneal else 1.0
        memory = self._memory()
        for _ in range(config.epochs):
            for minibatch in self._minibatches(memory):
                self._nets.anneal(alpha / (1.0 + config.lr_decay * self.updates))
                self._descend(minibatch, config.clip * alpha)
                self.updates += 1
            beat()

    def _descend(self, minibatch: Minibatch, clip: float) -> None:
        """Take a step down -mean min(R A, clip(R) A) + c mean (V - V^)^2."""
        config, blocks = self.config, self._nets.online
        mean, std = self._distribution(blocks[: self._policy_layers], minibatch.x)
        ratio = likelihood_ratio(log_density(minibatch.drawn, mean, std), minibatch.log_pi)
        advantage = minibatch.advantage
        clipped = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
        value = tanh_outputs(blocks[self._policy_layers :], minibatch.x)[..., 0]
        loss = config.value_weight * (value - minibatch.target).square() - clipped
        self._nets.descend(loss.sum() / config.batch, config.max_norm)

    def _memory(self) -> Minibatch:
        """All experiences of the replay memory, actor by actor: fields (S, K R, ...)."""
        flat = flattened(Frozen(*(np.concatenate(column, axis=2) for column in zip(*self._replayed, strict=True))))
        numbers = (torch.from_numpy(field).to(self._dtype) for field in flat[1:])
        return Minibatch(self._inputs(flat.observation), *numbers)

    def _minibatches(self, memory: Minibatch) -> Iterator[Minibatch]:
        """Draw the minibatches of one epoch."""
        config, size = self.config, memory.log_pi.shape[1]
        slots = np.stack([self._slots(stream, size) for stream in self._streams], axis=1)
        drawn = Minibatch(*(gathered(field, slots) for field in memory))
        if config.standardise == "minibatch":
            a = drawn.advantage.numpy()
            a = (a - a.mean(axis=2, keepdims=True)) / (a.std(axis=2, ddof=1, keepdims=True) + 1e-8)
            drawn = drawn._replace(advantage=torch.from_numpy(a))
        for fields in zip(*drawn, strict=True):
            yield Minibatch(*fields)

    def _slots(self, stream: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Slots of one trial's minibatches of an epoch, (size / M, M)."""
        config = self.config
        if config.draw == "permutation":
            return stream.permutation(size).reshape(-1, config.batch)
        K = config.actors
        of_actor = stream.integers(0, size // K, (size // config.batch, K, config.batch // K))
        return (of_actor + size // K * np.arange(K)[:, None]).reshape(-1, config.batch)

    def state(self) -> State:
        """Copy of everything needed to resume training, frozen statistics included."""
        frozen = {
            f"replayed_{name}": np.stack([getattr(batch, name) for batch in self._replayed])
            for name in Frozen._fields
            if self._replayed
        }
        return super().state() | self._nets.state("networks") | frozen

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        super().restore(state)
        self._nets.restore(state, "networks")
        self._replayed.clear()
        if "replayed_log_pi" in state:
            columns = [np.asarray(state[f"replayed_{name}"], np.float32) for name in Frozen._fields]
            self._replayed.extend(Frozen(*fields) for fields in zip(*columns, strict=True))
