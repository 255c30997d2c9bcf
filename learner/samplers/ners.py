"""NERS (Oh et al. 2021): experiences are drawn by their scores from a network that is trained on gains in return.

The score of an experience depends on its minibatch: a local network processes each experience, a global one averages
over the minibatch, and a third one computes scores from both.  After every training episode REINFORCE makes the
replayed experiences more likely if the return has increased, and less likely if it has decreased (eqs. 6, 7).
docs/methods.md explains how contradictory equations are resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.algorithms.traced import RecordBuffer, TracedNetworks
from onrig.learner.sampler_settings import NersSettings
from onrig.learner.samplers import Draw, SamplerContext, State, sub_state
from onrig.learner.samplers.features import Features
from onrig.learner.samplers.importance import Scale
from onrig.learner.samplers.multi_trial import MultiTrialSampler
from onrig.learner.samplers.proportional_per import ProportionalPer
from onrig.learner.tape.array import Array
from onrig.learner.tape.convolutions import Convolutions, image_inputs
from onrig.learner.tape.elementary import concatenate, log, sigmoid
from onrig.learner.tape.networks import Mlp, fan_in_uniform
from onrig.learner.tape.optimiser import Adam, descend
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.order.uniforms import restore_streams, stack_stream_words

MIN_SCORE: Final = 1e-6
"""Value added to a score before taking its log (eq. 7), and minimum score, so that every experience can be drawn."""


class ImageEmbedding:
    """Features of images: convolutions, then fully connected layers (Oh et al. 2021, App. B)."""

    def __init__(self, state: Layout, convolutions: Convolutions, units: Sequence[int]) -> None:
        shapes: dict[str, tuple[int, int]] = {}
        for i, (inputs, outputs) in enumerate(convolutions.filters):
            shapes[f"weight{i}"], shapes[f"bias{i}"] = (inputs, outputs), (1, outputs)
        self.filters: Final = state.group("filters", shapes)
        self.layers: Final = Mlp(state, "embedding", (convolutions.outputs, *units))
        self._convolutions, self._units = convolutions, units[-1]

    @property
    def inputs(self) -> int:
        """Number of elements in the images of a state and the next one."""
        return 2 * self._convolutions.inputs

    @property
    def outputs(self) -> int:
        return 2 * self._units

    def draw(self, row: NDArray[np.floating], stream: np.random.Generator) -> None:
        fields = iter(self.filters.fields)
        for size in self._convolutions.filters:
            for values in fan_in_uniform(stream, *size, False):
                row[next(fields).slice] = values.reshape(-1)
        self.layers.draw(row, stream, fan_in_uniform)

    def __call__(self, images: Array) -> Array:
        """Return the features (B, outputs) of a state and the next one (B, inputs)."""
        size = self._convolutions.inputs
        states = (images.columns(start, start + size) for start in (0, size))
        return concatenate(*(self.layers(self._convolutions(s, iter(self.filters.fields))) for s in states))


class ScoreNets(TracedNetworks):
    """The networks f of S trials; each assigns a score in (0, 1) to every experience in a minibatch."""

    def __init__(
        self,
        settings: NersSettings,
        width: int,
        streams: Sequence[np.random.Generator],
        *,
        convolutions: Convolutions | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, for ``width`` features, followed by the images of a state and
        the next one if ``convolutions`` are given."""
        state, embedding, size = Layout(), settings.hidden[-1], settings.sample
        self._vector_width, self._image_embedding = width, None
        if convolutions is not None:
            self._image_embedding = ImageEmbedding(state, convolutions, settings.embedding)
            width += self._image_embedding.outputs
        self._local, self._global = (Mlp(state, name, (width, *settings.hidden)) for name in ("local", "global"))
        self._score = Mlp(state, "score", (2 * embedding, *settings.score, 1))
        nets = (self._local, self._global, self._score)
        groups = [net.group for net in nets]
        if self._image_embedding is not None:
            groups += [self._image_embedding.filters, self._image_embedding.layers.group]
        adams = [Adam(state, group, lr=settings.lr) for group in groups]
        self.n_parameters: Final = sum(group.flat_field.size for group in groups)
        """Number of parameters of one trial."""
        super().__init__(state, len(streams), dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            for net in nets:
                net.draw(row, stream, fan_in_uniform)
            if self._image_embedding is not None:
                self._image_embedding.draw(row, stream)
        width = self._vector_width + (0 if self._image_embedding is None else self._image_embedding.inputs)
        self._uses_global = settings.ablation != "local"
        self._forward = self.forward(self._scores, width, 1, 1)
        self._records = RecordBuffer({"features": (size, width), "mean_weight": (size, 1), "weight": (size, 1)})
        tape = Tape(state, self._records.layout)
        fields = self._records.read(tape)
        loss = fields["weight"] * log(self._scores(tape, fields["features"], fields["mean_weight"]) + MIN_SCORE)
        descend(tape, loss.sum(), adams)
        self._run = self.bind(tape)

    def _scores(self, tape: Tape, x: Array, mean_weights: Array | None) -> Array:
        """Return the scores (B, 1) of features (B, width).

        ``mean_weights`` (B, 1) are the weights of the mean over the minibatch; they sum to 1, or are 0 without the
        global network.
        """
        assert mean_weights is not None
        if self._image_embedding is not None:
            x = concatenate(
                x.columns(0, self._vector_width), self._image_embedding(x.columns(self._vector_width, x.shape[1]))
            )
        mean_features = (mean_weights * self._global(x)).column_sums()
        repeated_features = tape.filled((x.shape[0], 1), 1.0) * mean_features
        return sigmoid(self._score(concatenate(self._local(x), repeated_features)))

    def _mean_weights(self, is_valid: NDArray[np.bool_]) -> NDArray[np.floating]:
        """Return the weight of each experience (S, B) in the mean over its minibatch; 0 if invalid."""
        n_valid = np.maximum(is_valid.sum(axis=1, keepdims=True), 1)
        return np.asarray(is_valid / n_valid * self._uses_global)

    def scores(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Score minibatches (S, B, width): (S, B)."""
        mean_weights = self._mean_weights(np.ones(features.shape[:2], np.bool_))
        return self._forward(features, mean_weights[..., None])[..., 0].astype(np.float64)

    def step(
        self,
        features: NDArray[np.floating],
        is_valid: NDArray[np.bool_],
        gain: NDArray[np.float64],
        trials: NDArray[np.int64],
    ) -> None:
        """Take one Adam step for these trials on eq. 7: -gain times the sum of ln(score + 1e-6) over valid rows.

        ``features`` are (S, sample, width), ``is_valid`` (S, sample), ``gain`` (S,).  The other trials, including their
        moments, remain unchanged.
        """
        rows = self._records.allocate(self, 1)
        self._records.set("features", np.where(is_valid[..., None], features, 0.0)[None])
        self._records.set("mean_weight", self._mean_weights(is_valid)[None])
        self._records.set("weight", np.where(is_valid, -gain[:, None], 0.0)[None])
        self.run_selected(self._run, rows, trials)


class Ners(MultiTrialSampler):
    """Sampler that draws in proportion to score^alpha, where the score is 1.0 before the first replay, with importance
    weights (eqs. 1, 5).

    Only drawn experiences are rescored, with the TD error and target from their update.
    """

    required_signals: ClassVar[frozenset[Signal]] = frozenset({Signal.TD_ERROR, Signal.TARGET, Signal.RETURN})

    def __init__(self, context: SamplerContext, streams: Sequence[np.random.Generator]) -> None:
        """Build the sampler with one trial for each of ``streams`` (PCG64)."""
        super().__init__(context, streams)
        settings = context.options.sampler_section(NersSettings)
        self._settings: Final = settings
        child_streams = [stream.spawn(3) for stream in streams]
        self._permutation_streams: Final = [stream for _, stream, _ in child_streams]
        self._samplers: Final = [
            ProportionalPer.with_beta(
                context,
                stream,
                settings.beta,
                grows_over_updates=True,
                alpha=settings.alpha,
                epsilon=0.0,
                scale=Scale.NONE,
            )
            for stream, _, _ in child_streams
        ]
        self._features: Final = Features(self._view, self._trials, context.capacity)
        self._uses_score_features: Final = settings.ablation == "few"
        width = 3 if self._uses_score_features else self._features.width
        self._read_frames: Final = None if self._uses_score_features else self._view.read_frames
        image = context.options.algorithm_config.image
        convolutions = None if self._read_frames is None or image is None else Convolutions(image)
        net_streams = [stream for _, _, stream in child_streams]
        self._nets: Final = ScoreNets(settings, width, net_streams, convolutions=convolutions)
        self._was_replayed: Final[NDArray[np.bool_]] = np.zeros((self._trials, context.capacity), np.bool_)
        """(S, capacity): whether a slot was replayed in this episode and not rewritten since; the paper's J."""

    def begin_episode(self, episode: int) -> None:
        for sampler in self._samplers:
            sampler.begin_episode(episode)

    def on_write(self, slots: Sequence[NDArray[np.int64]]) -> None:
        """Set the score of new experiences to 1.0."""
        self._features.on_write(slots)
        for sampler, was_replayed, trial_slots in zip(self._samplers, self._was_replayed, slots, strict=True):
            sampler.on_write(trial_slots)
            was_replayed[trial_slots] = False

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch for each trial, slots and weights (1, S, batch).

        Raises ValueError unless ``updates`` is 1, or if fewer experiences are stored than a minibatch needs.
        """
        if updates != 1:
            raise ValueError(f"expected 1 minibatch per draw, since each depends on the previous update, got {updates}")
        draws = [sampler.draw(self._batch) for sampler in self._samplers]
        weights = [draw.weights for draw in draws if draw.weights is not None]
        return Draw(np.stack([draw.slots for draw in draws], axis=1), np.stack(weights, axis=1))

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Rescore the experiences of an update; raise ValueError if the algorithm provides no targets."""
        if signals.target is None:
            raise ValueError("NERS needs targets, which the algorithm does not provide")
        (replayed_slots,) = slots
        self._features.on_update(replayed_slots, signals)
        scores = self._nets.scores(self._features_of(replayed_slots))
        for sampler, was_replayed, trial_slots, score in zip(
            self._samplers, self._was_replayed, replayed_slots, scores, strict=True
        ):
            sampler.prioritise(trial_slots, np.maximum(score, MIN_SCORE))
            was_replayed[trial_slots] = True

    def _features_of(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        features = (
            self._features.score_features(slots) if self._uses_score_features else self._features.all_features(slots)
        )
        if self._read_frames is None:
            return features
        experiences = self._view.gather(slots)
        frames = (
            self._read_frames(frame_numbers)
            for frame_numbers in (experiences.observation, experiences.next_observation)
        )
        images = (image_inputs(pixels, features.dtype) for pixels in frames)
        return np.concatenate((features, *images), axis=-1)

    def _learn(self, gain: NDArray[np.float64], is_eligible: NDArray[np.bool_]) -> None:
        size = self._settings.sample
        slots = np.zeros((self._trials, size), np.int64)
        is_valid = np.zeros((self._trials, size), np.bool_)
        for trial in np.flatnonzero(is_eligible).tolist():
            sampled_slots = self._permutation_streams[trial].permutation(np.flatnonzero(self._was_replayed[trial]))[
                :size
            ]
            slots[trial, : len(sampled_slots)] = sampled_slots
            is_valid[trial, : len(sampled_slots)] = True
        trials = np.flatnonzero(is_valid.any(axis=1))
        if len(trials):
            self._nets.step(self._features_of(slots), is_valid, gain, trials)

    def _begin(self, has_ended: NDArray[np.bool_]) -> None:
        self._was_replayed[has_ended] = False
        self._features.standardise(has_ended)

    def state(self) -> State:
        state = super().state() | {f"features/{k}": v for k, v in self._features.state().items()}
        state |= self.learned_state()
        for trial, sampler in enumerate(self._samplers):
            state |= {f"law{trial}/{k}": v for k, v in sampler.state().items()}
        state["replayed"] = self._was_replayed.copy()
        state["choices"] = stack_stream_words(self._permutation_streams)
        return state

    def learned_state(self) -> State:
        return {f"nets/{k}": v for k, v in self._nets.state().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        super().restore(state)
        if state["replayed"].shape != self._was_replayed.shape:
            raise ValueError(f"replays of {state['replayed'].shape} slots, expected {self._was_replayed.shape}")
        self._features.restore(sub_state(state, "features/"))
        self._nets.restore(sub_state(state, "nets/"))
        for trial, sampler in enumerate(self._samplers):
            sampler.restore(sub_state(state, f"law{trial}/"))
        self._was_replayed[...] = state["replayed"]
        restore_streams(self._permutation_streams, state["choices"])
