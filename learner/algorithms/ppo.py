"""PPO with the clipped objective (Schulman et al. 2017), and PPO-ER, its variant with replay (Han and Sung 2017)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import State
from onrig.learner.algorithms.actor_critic import ActorCritic, BatchStatistics, flatten_actors, gather_minibatches
from onrig.learner.algorithms.on_policy import HeartbeatCallback, PolicyBatch, ignore_heartbeat
from onrig.learner.algorithms.traced import RecordBuffer
from onrig.learner.on_policy_settings import PpoConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.densities import likelihood_ratio, log_density
from onrig.learner.tape.elementary import maximum, minimum, square
from onrig.learner.tape.optimiser import descend
from onrig.learner.tape.trace import Tape


class Experiences(NamedTuple):
    """Experiences with their statistics: R for each of S trials, or M for each trial in every one of k minibatches."""

    observation: NDArray[Any]
    """(S, R, n) or (k, S, M, n): network inputs."""
    drawn: NDArray[Any]
    """(S, R, m) or (k, S, M, m)"""
    log_pi: NDArray[Any]
    """(S, R) or (k, S, M)"""
    advantage: NDArray[Any]
    target: NDArray[Any]


class Ppo(ActorCritic):
    """Policies and values of S trials, the batches they replay, and their update."""

    def __init__(
        self,
        config: PpoConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order policy, value, minibatch draws."""
        rates = {"policy_lr": config.lr, "value_lr": config.value_lr or config.lr, "adam_eps": config.adam_eps}
        super().__init__(config, n_observations, n_actions, streams, dtype, **rates)
        self.config: Final = config
        self._replayed_batches: Final[deque[BatchStatistics]] = deque(maxlen=config.depth)
        """Replay memory: the last L batches, oldest first."""
        columns = {"observation": n_observations, "drawn": n_actions, "log_pi": 1, "advantage": 1, "target": 1}
        shapes = {name: (config.batch, cols) for name, cols in columns.items()} | {"rate": (1, 1), "clip": (1, 1)}
        self._records = RecordBuffer(shapes)
        tape = Tape(self.layout, self._records.layout)
        self._update(tape, **self._records.read(tape))
        self._run = self.bind_update(tape)

    def _update(
        self,
        tape: Tape,
        observation: Array,
        drawn: Array,
        log_pi: Array,
        advantage: Array,
        target: Array,
        rate: Array,
        clip: Array,
    ) -> None:
        """Take a gradient step on -mean min(R A, clip(R) A) + c mean (V - V^)^2."""
        ratio = likelihood_ratio(log_density(drawn, *self._distribution(observation)), log_pi)
        clipped_ratio = maximum(minimum(ratio, clip + 1.0), 1.0 - clip)
        gain = minimum(ratio * advantage, clipped_ratio * advantage)
        error = self._value(observation) - target
        loss = (square(error) * self.config.value_weight - gain).mean()
        optimisers = self._adams if self.config.value_weight else self._adams[:-1]  # the last one optimises the value
        descend(tape, loss, optimisers, factor=rate, max_norm=self.config.max_norm)

    @property
    def _standardises_batch(self) -> bool:
        return self.config.standardise == "batch"

    def learn(
        self, batch: PolicyBatch, remaining_fraction: float, heartbeat: HeartbeatCallback = ignore_heartbeat
    ) -> None:
        """Run the epochs of one iteration; ``remaining_fraction`` of the run remained when the batch began."""
        self._replayed_batches.append(self._compute_statistics(batch))
        alpha = remaining_fraction if self.config.anneal else 1.0
        memory = self._merge_replayed_batches()
        for _ in range(self.config.epochs):
            self._descend(self._draw_minibatches(memory), alpha)
            heartbeat()

    def _descend(self, minibatches: Experiences, alpha: float) -> None:
        """Take a step on each of k minibatches, with step sizes and clip range annealed by ``alpha``."""
        config, records, (k, S) = self.config, self._records, minibatches.log_pi.shape[:2]
        rows = records.allocate(self, k)
        for name, values in minibatches._asdict().items():
            records.set(name, values)
        rates = alpha / (1.0 + config.lr_decay * (self.updates + np.arange(k)))
        records.set("rate", np.repeat(rates[:, None], S, axis=1))
        records.set("clip", np.full((k, S), config.clip * alpha))
        self._run(self.rows, rows, None)
        self.updates += k

    def _merge_replayed_batches(self) -> Experiences:
        """Return all experiences of the replay memory, actor by actor: fields (S, K R, ...)."""
        flat_batch = flatten_actors(
            BatchStatistics(*(np.concatenate(column, axis=2) for column in zip(*self._replayed_batches, strict=True)))
        )
        fields = self._inputs(flat_batch.observation), *flat_batch[1:]
        return Experiences(*(field.astype(self.executor.dtype, copy=False) for field in fields))

    def _draw_minibatches(self, memory: Experiences) -> Experiences:
        size = memory.log_pi.shape[1]
        slots = np.stack([self._draw_slots(stream, size) for stream in self._streams], axis=1)
        minibatches = Experiences(*(gather_minibatches(field, slots) for field in memory))
        if self.config.standardise == "minibatch":
            a = minibatches.advantage
            a = (a - a.mean(axis=2, keepdims=True)) / (a.std(axis=2, ddof=1, keepdims=True) + 1e-8)
            minibatches = minibatches._replace(advantage=a)
        return minibatches

    def _draw_slots(self, stream: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draw the slots of one trial's minibatches in an epoch, (size / M, M)."""
        config = self.config
        if config.draw == "permutation":
            return stream.permutation(size).reshape(-1, config.batch)
        K = config.actors
        actor_slots = stream.integers(0, size // K, (size // config.batch, K, config.batch // K))
        return (actor_slots + size // K * np.arange(K)[:, None]).reshape(-1, config.batch)

    def state(self) -> State:
        """Return a copy of everything needed to resume training, including batch statistics."""
        statistics = {
            f"replayed_{name}": np.stack([getattr(batch, name) for batch in self._replayed_batches])
            for name in BatchStatistics._fields
            if self._replayed_batches
        }
        return super().state() | statistics

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        super().restore(state)
        self._replayed_batches.clear()
        if "replayed_log_pi" in state:
            columns = [np.asarray(state[f"replayed_{name}"], np.float32) for name in BatchStatistics._fields]
            self._replayed_batches.extend(BatchStatistics(*fields) for fields in zip(*columns, strict=True))
