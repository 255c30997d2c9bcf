"""Common base of the algorithms of Novati and Koumoutsakos 2019: Gaussian policies, softsign units, ReF-ER.

If ``refer.standardise`` is set (App. B), states are standardised once, before the first update, and rewards are divided
by their root mean square, which is recomputed every 1000 updates and replaces ``reward_scale``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithm_config import AlgorithmConfig
from onrig.learner.algorithms import MemoryAccess, Minibatches, Signals, State
from onrig.learner.algorithms.refer import BehaviourSample, PolicyDistance, Refer, Rules, policy_distance
from onrig.learner.algorithms.traced import Forward, MinibatchRecords, TracedAlgorithm, Values, check_shapes
from onrig.learner.export import export_gaussian_policy
from onrig.learner.refer_settings import ReferSettings
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate
from onrig.learner.tape.spaces import Group, Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import GAUSSIAN, PolicyContract

RESCALE_EVERY: Final = 1000
"""Number of updates between two rescalings of rewards."""
MIN_STD: Final = 1e-3
"""Lower bound on the behaviour policy's standard deviation in updates: a deviation of 0, which is recorded while
exploration is suppressed, would make every other policy infinitely distant."""
_GATHER_CHUNK_SIZE: Final = 1024
"""Number of experiences gathered per call to compute the memory's statistics."""


def initial_layer(
    stream: np.random.Generator, inputs: int, outputs: int, is_last: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw a layer (App. A) with zero biases: Glorot-uniform if hidden, U(+-0.1 / sqrt(inputs)) if it is the last."""
    bound = 0.1 / inputs**0.5 if is_last else (6.0 / (inputs + outputs)) ** 0.5
    return stream.uniform(-bound, bound, (inputs, outputs)), np.zeros(outputs)


def common_std(state: Layout, m: int, name: str = "std") -> Group:
    """Lay out the standard deviation of m actions, which is the same in all states and stored as the input of a
    softplus."""
    return state.group(name, {"output": (1, m)})


def inverse_softplus(std: float) -> float:
    """Return the input at which softplus equals ``std``."""
    return math.log(math.expm1(std))


class ReferAlgorithm(TracedAlgorithm, ABC):
    """Base class for Gaussian policies of S trials under ReF-ER; a subclass adds networks and losses."""

    behaviour: Final = GAUSSIAN
    discrete: Final = None
    has_bounded_mean: ClassVar[bool] = False
    """Whether means pass through a tanh."""

    def __init__(
        self,
        config: AlgorithmConfig,
        refer: ReferSettings,
        n: int,
        m: int,
        state: Layout,
        streams: Sequence[np.random.Generator],
        dtype: DTypeLike,
    ) -> None:
        """Initialise the parameters; ``state`` contains the networks."""
        self._config, self._settings, self._n, self._m = config, refer, n, m
        self._centre_field, self._observation_std_field = state.add("centre", 1, n), state.add("spread", 1, n)
        self._scale_field = state.add("reward_scale", 1, 1)
        super().__init__(state, streams, dtype)
        self._centre, self._observation_std, self._reward_scale = map(
            self.values, (self._centre_field, self._observation_std_field, self._scale_field)
        )
        self._observation_std[:], self._reward_scale[:] = 1.0, config.reward_scale
        self._memory: MemoryAccess | None = None
        self._refer: Refer | None = None
        self._distribution = self._bind_distribution()

    @abstractmethod
    def _current_policy(self, x: Array) -> tuple[Array, Array]:
        """Return the mean (rows, m) and the standard deviation, (rows, m) or (1, m), at standardised states."""

    @abstractmethod
    def _step(self, batches: Minibatches, k: int, refer: Refer) -> Sequence[Values]:
        """Take one step on the k-th packed minibatch.

        Return the TD errors before the step, the targets, which experiences are far, and the KL divergences from the
        behaviour policies, (S, B) each.
        """

    @abstractmethod
    def _pack(self, batches: Minibatches) -> None:
        """Write minibatches into records; raise ValueError if their shape does not fit."""

    @abstractmethod
    def _mean_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Return the layers from standardised states to means, with the means as the only outputs of the last layer."""

    def _bind_distribution(self) -> Forward:
        return self.forward(
            lambda tape, s, _: self._concatenate_outputs(tape, *self._current_policy(self._inputs(s))),
            self._n,
            2 * self._m,
        )

    def _concatenate_outputs(self, tape: Tape, mean: Array, std: Array, *extra_outputs: Array) -> Array:
        return concatenate(mean, tape.emit("copy", mean.shape, [std]), *extra_outputs)

    def _inputs(self, observation: Array) -> Array:
        tape = observation.tape
        return (observation - tape.read(self._centre_field)) / tape.read(self._observation_std_field)

    def bind_memory(self, memory: MemoryAccess) -> None:
        self._memory = memory
        self._refer = Refer(self._settings, self._config.batch, memory.notes)

    def divergence(self) -> NDArray[np.float64]:
        assert self._refer is not None
        return np.stack((self._refer.mean_kl, self._refer.far_fraction), axis=1)

    def distribution(self, observation: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        outputs, m = self._distribution(observation).copy(), self._m
        return outputs[..., :m], outputs[..., m:]

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        return np.asarray(np.clip(self.distribution(observation)[0], -1.0, 1.0))

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raise ValueError if they lack slots or behaviour policies, or their shape
        does not fit."""
        if batches.behaviour is None or batches.slots is None:
            raise ValueError("expected minibatches with their behaviour policies and slots")
        check_shapes(batches, self.trials, self._config.batch, self._n, self._m)
        assert self._refer is not None
        self._pack(batches)
        steps = []
        for k in range(len(batches.reward)):
            if self._settings.standardise:
                self._standardise()
            steps.append(self._step(batches, k, self._refer))
            self.updates += 1
        td, target, far, kl = (np.stack(column) for column in zip(*steps, strict=True))
        return Signals(td, target=target if self._config.provides_targets else None, far=far.astype(np.float32), kl=kl)

    def _standardise(self) -> None:
        assert self._memory is not None
        if self.updates % RESCALE_EVERY:
            return
        n_stored = self._memory.notes.stored
        observations, rewards = [], []
        for start in range(0, int(n_stored.max()), _GATHER_CHUNK_SIZE):
            slots = np.minimum(np.arange(start, start + _GATHER_CHUNK_SIZE), self._memory.notes.capacity - 1)
            experiences = self._memory.gather(np.broadcast_to(slots, (self.trials, _GATHER_CHUNK_SIZE)))
            rewards.append(np.array(experiences.reward, np.float64))
            if self.updates == 0:  # observations are standardised only once
                observations.append(np.array(experiences.observation, np.float64))
        if self.updates == 0:
            observation = np.concatenate(observations, axis=1)
            for trial, count in enumerate(n_stored.tolist()):
                std = observation[trial, :count].std(axis=0)
                self._centre[trial] = observation[trial, :count].mean(axis=0)
                self._observation_std[trial] = np.where(std > 1e-6, std, 1.0)
        reward = np.concatenate(rewards, axis=1)
        for trial, count in enumerate(n_stored.tolist()):
            scale = np.sqrt(np.square(reward[trial, :count]).mean())
            self._reward_scale[trial] = 1.0 / scale if scale > 0.0 else 1.0

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out one trial's mean network, up to the tanh if ``has_bounded_mean``: weights (in, out) and bias (out,)
        per layer, with softsign between the layers and the standardisation merged into the first one."""
        (weight, bias), *rest_layers = self._mean_layers(trial)
        centre, std = (field[trial, 0].astype(np.float64) for field in (self._centre, self._observation_std))
        scaled_weight = weight.astype(np.float64)
        scaled_weight[: self._n] /= std[:, None]
        return [(scaled_weight, bias - centre @ scaled_weight[: self._n]), *rest_layers]

    def actor_std(self, trial: int) -> NDArray[np.floating]:
        """Copy out the standard deviation of one trial's policy, the same in all states: (m,)."""
        return np.array(self.distribution(np.zeros((self.trials, 1, self._n)))[1][trial, 0])

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        layers = self.actor_layers(trial)
        return export_gaussian_policy(layers, self.actor_std(trial), contract, has_bounded_mean=self.has_bounded_mean)

    def state(self) -> State:
        """Return a copy of everything needed to resume training except the notes per slot."""
        return super().state() | ({} if self._refer is None else self._refer.state())

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        super().restore(state)
        if self._refer is not None:
            self._refer.restore(state)


_OUTPUTS: Final = ("td", "target", "rho", "kl")


class ReferMinibatchAlgorithm(ReferAlgorithm):
    """Base class for algorithms that learn from the drawn experiences, each of which ReF-ER classifies."""

    def _trace(self, **extra_fields: tuple[int, int]) -> None:
        """Trace ``_update``; ``extra_fields`` adds fields to the record."""
        B, m = self._config.batch, self._m
        inputs = dict.fromkeys(("drawn", "acted_mean", "acted_std"), (B, m)) | {"rules": (1, len(Rules._fields))}
        outputs = dict.fromkeys(_OUTPUTS, (B, 1))
        self._records = MinibatchRecords(B, self._n, m, inputs | outputs | extra_fields, separate_calls=True)
        tape = Tape(self.layout, self._records.layout)
        fields = self._records.read(tape)
        fields["reward"] = fields["reward"] * tape.read(self._scale_field)
        rules_row = fields.pop("rules")
        rules = Rules(*(rules_row.columns(i, i + 1) for i in range(len(Rules._fields))))
        for name, value in self._update(tape, rules, **fields).items():
            tape.output(self._records.fields[name], value)
        self._run = self.bind_update(tape)

    @abstractmethod
    def _update(self, tape: Tape, rules: Rules, **fields: Array) -> dict[str, Array]:
        """Trace an update on scaled rewards, and return its outputs, (B, 1) each."""

    def _policy_distance(self, mean: Array, std: Array, **fields: Array) -> PolicyDistance:
        sample = BehaviourSample(fields["drawn"], fields["acted_mean"], fields["acted_std"])
        return policy_distance(self._settings, sample, mean, std)

    def _pack(self, batches: Minibatches) -> None:
        assert batches.behaviour is not None
        self._records.pack(self, batches, self._config.gamma, 1.0)
        self._records.set("drawn", batches.behaviour.drawn)
        self._records.set("acted_mean", batches.behaviour.mean)
        self._records.set("acted_std", np.maximum(batches.behaviour.std, MIN_STD))

    def _step(self, batches: Minibatches, k: int, refer: Refer) -> Sequence[Values]:
        assert batches.slots is not None
        record = self._records.view_of_update(k)
        self._prepare(record, batches, k)
        record[:, 0, self._records.fields["rules"].slice] = refer.rules
        self._run(self.rows, record, None)
        td, target, rho, kl = (record[:, 0, self._records.fields[name].slice] for name in _OUTPUTS)
        return td, target, refer.classify(batches.slots[k], rho, kl), kl

    def _prepare(self, record: Values, batches: Minibatches, k: int) -> None:
        """Write the inputs of the k-th update that come from the notes per slot."""
