"""ERO, experience replay optimisation (Zha et al. 2019, as in Oh et al. 2021): a network selects experiences.

Each experience is included at random, with a probability that the network computes from its reward, TD error and age;
minibatches are uniform draws from the included ones.  After every training episode REINFORCE makes the current
selection more likely if the return has increased, and less likely if it has decreased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.algorithms.traced import RecordBuffer, TracedNetworks
from onrig.learner.sampler_settings import EroSettings
from onrig.learner.samplers import Draw, SamplerContext, State, sub_state
from onrig.learner.samplers.features import Features
from onrig.learner.samplers.multi_trial import MultiTrialSampler
from onrig.learner.samplers.sum_tree import sum_tree
from onrig.learner.samplers.uniform import Uniform
from onrig.learner.tape.elementary import sigmoid, softplus
from onrig.learner.tape.networks import Mlp, fan_in_uniform
from onrig.learner.tape.optimiser import Adam, descend
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.order.uniforms import restore_streams, stack_stream_words

_FEATURES: Final = 3
_TD_FEATURE: Final = 2
"""Index of the TD error among the features."""
_INITIAL_PROBABILITY: Final = 0.5
"""Inclusion probability of an experience that has not been replayed yet."""


class InclusionNets(TracedNetworks):
    """Networks of S trials that compute inclusion probabilities."""

    def __init__(
        self, settings: EroSettings, streams: Sequence[np.random.Generator], *, dtype: DTypeLike = np.float32
    ) -> None:
        """Initialise one trial from each of ``streams``."""
        state, size = Layout(), settings.sample
        net = Mlp(state, "net", (_FEATURES, *settings.hidden, 1))
        adam = Adam(state, net.group, lr=settings.lr)
        super().__init__(state, len(streams), dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            net.draw(row, stream, fan_in_uniform)
        self.probabilities: Final = self.forward(lambda tape, x, _: sigmoid(net(x)), _FEATURES, 1)
        """Program from features (S, n, 3) to probabilities (S, n, 1)."""
        self._records = RecordBuffer({"features": (size, _FEATURES), "sign": (size, 1), "weight": (size, 1)})
        tape = Tape(state, self._records.layout)
        fields = self._records.read(tape)
        # ln p = -ln(1 + e^-z), and ln(1 - p) = -ln(1 + e^z).
        descend(tape, (fields["weight"] * softplus(-fields["sign"] * net(fields["features"]))).sum(), [adam])
        self._run = self.bind(tape)

    def step(
        self,
        features: NDArray[np.floating],
        is_included: NDArray[np.bool_],
        weights: NDArray[np.float64],
        trials: NDArray[np.int64],
    ) -> None:
        """Take one Adam step for these trials on the loss -sum of weight (I ln p + (1 - I) ln(1 - p)).

        ``features`` are (S, sample, 3), ``is_included`` and ``weights`` (S, sample).  The other trials, including their
        moments, remain unchanged.
        """
        rows = self._records.allocate(self, 1)
        for name, values in (("features", features), ("sign", np.where(is_included, 1.0, -1.0)), ("weight", weights)):
            self._records.set(name, values[None])
        self.run_selected(self._run, rows, trials)


class Ero(MultiTrialSampler):
    """Sampler that draws uniformly from the included experiences, or from all experiences if too few are included for a
    minibatch.

    Whether an experience is included is drawn before the first minibatch after it was written, and redrawn after each
    update that replays it.
    """

    required_signals: ClassVar[frozenset[Signal]] = frozenset({Signal.TD_ERROR, Signal.RETURN})

    def __init__(self, context: SamplerContext, streams: Sequence[np.random.Generator]) -> None:
        """Build the sampler with one trial for each of ``streams`` (PCG64)."""
        super().__init__(context, streams)
        settings = context.options.sampler_section(EroSettings)
        self._settings: Final = settings
        child_streams = [stream.spawn(4) for stream in streams]
        self._minibatch_draws: Final = [Uniform(stream) for stream, _, _, _ in child_streams]
        self._learning_draws: Final = [Uniform(stream) for _, stream, _, _ in child_streams]
        self._inclusion_streams: Final = [stream for _, _, stream, _ in child_streams]
        self._is_included: Final = [sum_tree(context.capacity) for _ in streams]
        """Inclusion mask, one row per trial."""
        self._is_new: Final[NDArray[np.bool_]] = np.zeros((len(streams), context.capacity), np.bool_)
        """(S, capacity): whether the slot was written since the last draw."""
        self._has_new_slots = False
        self._features: Final = Features(self._view, self._trials, context.capacity)
        self._nets: Final = InclusionNets(settings, [stream for _, _, _, stream in child_streams])

    def on_write(self, slots: Sequence[NDArray[np.int64]]) -> None:
        self._features.on_write(slots)
        for is_new, trial_slots in zip(self._is_new, slots, strict=True):
            is_new[trial_slots] = True
        self._has_new_slots = True

    def _draw_new_inclusions(self) -> None:
        """Draw which new experiences are included, in the order of slots, so that it does not matter how writes are
        grouped."""
        for trial, is_new in enumerate(self._is_new):
            trial_slots = np.flatnonzero(is_new)
            self._draw_inclusions(trial, trial_slots, np.full(len(trial_slots), _INITIAL_PROBABILITY))
        self._is_new[:] = self._has_new_slots = False

    def _draw_inclusions(self, trial: int, slots: NDArray[np.int64], probabilities: NDArray[np.float64]) -> None:
        self._is_included[trial].put(
            slots, (self._inclusion_streams[trial].random(len(slots)) < probabilities).astype(np.float64)
        )

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch of distinct slots for each trial, (1, S, batch), without weights.

        Raises ValueError unless ``updates`` is 1, or if fewer experiences are stored than a minibatch needs.
        """
        if updates != 1:
            raise ValueError(f"expected 1 minibatch per draw, since each depends on the previous update, got {updates}")
        n_available = self._features.n_stored.min()
        if n_available < self._batch:
            raise ValueError(f"cannot draw {self._batch} distinct experiences from the {n_available} stored")
        if self._has_new_slots:
            self._draw_new_inclusions()
        return Draw(np.stack([self._minibatch(trial) for trial in range(self._trials)])[None], None)

    def _minibatch(self, trial: int) -> NDArray[np.int64]:
        inclusion_tree = self._is_included[trial]
        n_included = int(inclusion_tree.total)
        if n_included < self._batch:
            return self._minibatch_draws[trial].draw_below(int(self._features.n_stored[trial]), self._batch)
        return inclusion_tree.find(
            self._minibatch_draws[trial].draw_below(n_included, self._batch).astype(np.float64) + 0.5
        )

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Redraw which of the experiences in an update are included."""
        (replayed_slots,) = slots
        self._features.on_update(replayed_slots, signals)
        probabilities = self._nets.probabilities(self._inputs(replayed_slots))[..., 0].astype(np.float64)
        for trial, trial_slots in enumerate(replayed_slots):
            self._draw_inclusions(trial, trial_slots, probabilities[trial])

    def _inputs(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute the network inputs for slots (S, n): (S, n, 3)."""
        features = self._features.score_features(slots)
        features[..., _TD_FEATURE] = np.abs(features[..., _TD_FEATURE])
        return features

    def _learn(self, gain: NDArray[np.float64], is_eligible: NDArray[np.bool_]) -> None:
        size = self._settings.sample
        slots = np.zeros((self._trials, size), np.int64)
        is_valid = np.zeros((self._trials, size), np.bool_)
        is_included = np.zeros((self._trials, size), np.bool_)
        n_stored = self._features.n_stored
        for trial in np.flatnonzero(is_eligible & (n_stored > 0)).tolist():
            n = min(size, int(n_stored[trial]))
            slots[trial, :n] = trial_slots = self._learning_draws[trial].draw_below(int(n_stored[trial]), n)
            is_valid[trial, :n] = ~self._is_new[trial, trial_slots]  # inclusion already drawn
            is_included[trial, :n] = self._is_included[trial].values[trial_slots] > 0.0
        trials = np.flatnonzero(is_valid.any(axis=1))
        if len(trials):
            self._nets.step(self._inputs(slots), is_included, np.where(is_valid, gain[:, None], 0.0), trials)

    def _begin(self, has_ended: NDArray[np.bool_]) -> None:
        self._features.standardise(has_ended)

    def state(self) -> State:
        state = super().state() | {f"features/{k}": v for k, v in self._features.state().items()}
        state |= self.learned_state() | {"new": self._is_new.copy()}
        for trial in range(self._trials):
            for name, uniform_draws in (("draws", self._minibatch_draws), ("samples", self._learning_draws)):
                state |= {f"{name}{trial}/{k}": v for k, v in uniform_draws[trial].state().items()}
        state["members"] = np.stack([tree.values > 0.0 for tree in self._is_included])
        state["coins"] = stack_stream_words(self._inclusion_streams)
        return state

    def learned_state(self) -> State:
        return {f"nets/{k}": v for k, v in self._nets.state().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        super().restore(state)
        self._features.restore(sub_state(state, "features/"))
        self._nets.restore(sub_state(state, "nets/"))
        self._is_new[...] = state["new"]
        self._has_new_slots = bool(self._is_new.any())
        restore_streams(self._inclusion_streams, state["coins"])
        for trial, is_member in enumerate(state["members"]):
            for name, uniform_draws in (("draws", self._minibatch_draws), ("samples", self._learning_draws)):
                uniform_draws[trial].restore(sub_state(state, f"{name}{trial}/"))
            self._is_included[trial].load(is_member.astype(np.float64))
