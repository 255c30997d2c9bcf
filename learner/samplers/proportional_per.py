"""Proportional prioritised replay: P(i) ~ (|TD error| + eps)^alpha (Schaul et al. 2016).

Oh et al. 2021 use it with other options (``onrig.learner.sampler_settings``), and with network scores in place of
errors (``onrig.learner.samplers.ners``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.sampler_settings import ProportionalSettings
from onrig.learner.samplers import Draw, Sampler, SamplerContext, State
from onrig.learner.samplers.importance import LinearSchedule, Scale, importance_weights
from onrig.learner.samplers.sum_tree import sum_tree
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.order.uniforms import UniformArrays


class ProportionalPer(Sampler):
    """Sampler with stratified draws, one from each of ``batch`` equal shares of the total priority; a slot may be drawn
    twice.

    A new experience receives the largest priority so far, initially 1 (as in the code of Oh et al. 2021; the 1.0 of
    their paper is equivalent for scores below 1).
    """

    required_signals: Final = frozenset({Signal.TD_ERROR})

    def __init__(
        self,
        capacity: int,
        stream: np.random.Generator,
        *,
        alpha: float = 0.6,
        epsilon: float = 1e-6,
        beta: LinearSchedule | None = None,
        scale: Scale = Scale.BATCH_MAX,
        updates_per_episode: int = 0,
    ) -> None:
        """Build the sampler for a memory of ``capacity``; with ``beta``, draws have importance weights.  ``stream`` is
        PCG64.

        ``beta`` is a schedule over episodes, or over updates if ``updates_per_episode`` is set; updates that an episode
        has skipped count as done.  ``epsilon`` gives an error of 0 a non-zero probability; published implementations
        use 1e-8 to 1e-2.
        """
        self._tree: Final = sum_tree(capacity)
        self._uniforms: Final = UniformArrays(stream)
        self._alpha: Final = alpha
        self._epsilon: Final = epsilon
        self._beta: Final = beta
        self._scale: Final = scale
        self._updates_per_episode: Final = updates_per_episode
        self._episode = 1
        self._n_drawn = 0
        self._largest_priority = 1.0
        self._n_stored = 0

    @classmethod
    def build(cls, context: SamplerContext, stream: np.random.Generator, *, weighted: bool) -> ProportionalPer:
        options = context.options.sampler_section(ProportionalSettings).resolved_options
        return cls.with_beta(
            context,
            stream,
            options.beta if weighted else None,
            grows_over_updates=options.over == "updates",
            alpha=options.alpha,
            scale=Scale(options.scale),
        )

    @classmethod
    def with_beta(
        cls,
        context: SamplerContext,
        stream: np.random.Generator,
        beta: float | None,
        *,
        grows_over_updates: bool,
        alpha: float,
        epsilon: float = 1e-6,
        scale: Scale = Scale.NONE,
    ) -> ProportionalPer:
        """Build a sampler whose importance exponent grows from ``beta`` to 1 over the run (None: no weights)."""
        updates_per_episode = context.updates // context.episodes if grows_over_updates else 0
        schedule = (
            None
            if beta is None
            else LinearSchedule(beta, 1.0, context.updates if updates_per_episode else context.episodes)
        )
        return cls(
            context.capacity,
            stream,
            alpha=alpha,
            epsilon=epsilon,
            beta=schedule,
            scale=scale,
            updates_per_episode=updates_per_episode,
        )

    def begin_episode(self, episode: int) -> None:
        self._episode = episode
        self._n_drawn = max(self._n_drawn, (episode - 1) * self._updates_per_episode)

    def on_write(self, slots: NDArray[np.int64]) -> None:
        """Give new experiences the largest priority so far."""
        if len(slots):
            self._tree.put(slots, np.full(len(slots), self._largest_priority))
            self._n_stored = max(self._n_stored, int(slots.max()) + 1)

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Set priorities from |TD errors|; a non-finite one leaves its slot unchanged."""
        self.prioritise(slots, signals.priority)

    def prioritise(self, slots: NDArray[np.int64], magnitudes: NDArray[np.floating]) -> None:
        """Set priorities from magnitudes (errors or scores); a non-finite one leaves its slot unchanged."""
        priorities = (magnitudes.astype(np.float64) + self._epsilon) ** self._alpha
        self._largest_priority = max(self._largest_priority, self._tree.put(slots, priorities))

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` minibatches; with importance sampling, they have weights (updates, batch).

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """
        if self._n_stored < batch:
            raise ValueError(f"cannot draw {batch} experiences from the {self._n_stored} stored")
        slots, priorities = self._tree.draw(self._uniforms.take(updates * batch), updates)
        if self._beta is None:
            return Draw(slots, None)
        scale = self._n_stored / self._tree.total
        relative_probability = priorities * scale
        min_probability = 0.0
        if self._scale is Scale.GLOBAL_MAX:
            min_probability = float(self._tree.values[: self._n_stored].min()) * scale
        beta: float | NDArray[np.float64] = self._beta.value_at(self._episode)
        if self._updates_per_episode:
            beta = np.array([[self._beta.value_at(self._n_drawn + k)] for k in range(1, updates + 1)])
            self._n_drawn += updates
        return Draw(slots, importance_weights(relative_probability, beta, self._scale, min_probability))

    def state(self) -> State:
        return {
            "priorities": self._tree.values.copy(),
            "largest": np.array(self._largest_priority),
            "stored": np.array(self._n_stored, np.int64),
            "uniforms": self._uniforms.state(),
            "episode": np.array(self._episode, np.int64),
            "drawn": np.array(self._n_drawn, np.int64),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``; the next draws are then the same.

        Raises ValueError if the capacity differs.
        """
        priorities = state["priorities"].astype(np.float64)
        if priorities.shape != (self._tree.capacity,):
            raise ValueError(f"priorities of {priorities.shape[0]} slots, expected {self._tree.capacity}")
        self._tree.load(priorities)
        self._largest_priority, self._n_stored = float(state["largest"]), int(state["stored"])
        self._uniforms.restore(state["uniforms"].astype(np.uint64))
        self._episode, self._n_drawn = int(state["episode"]), int(state["drawn"])
