"""Rank-based prioritised replay: P(i) ~ rank(i)^-alpha, in segments of equal probability.

Source: de Bruin et al. 2018, §3.3.1, eq. 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, Sampler, SamplerContext, State
from onrig.learner.samplers.importance import LinearSchedule, Scale, importance_weights
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.order.compiled import ranked_orders
from onrig.runtime.memory.order.uniforms import UniformRows


def segment_ends(cumulative_weights: NDArray[np.float64], n_stored: int, segments: int) -> NDArray[np.int64]:
    """Cut ranks 1 ... ``n_stored`` into segments of equal probability, and return the last rank of each, (segments,).

    ``cumulative_weights`` is the running sum of the unnormalised rank probabilities, from rank 1.  If rank 1 alone is
    more likely than a segment (a memory of a few hundred with a minibatch of 16), every segment still gets at least one
    rank (the paper leaves this case open), so that no experience is drawn twice and the probabilities below remain
    exact.
    """
    k = np.arange(segments)
    ends = cumulative_weights[:n_stored].searchsorted((k + 1) / segments * cumulative_weights[n_stored - 1]) + 1
    ends[-1] = n_stored
    return np.minimum(np.maximum.accumulate(ends - k) + k, n_stored - segments + 1 + k)


class RankDraws:
    """One uniform draw from each segment; rank 1 has the largest |TD error|, and a new experience's counts as infinite.

    Ties are broken by insertion order, oldest first.  The probability of a draw is exactly 1 / (segments * ranks in its
    segment), and the importance weights use this value (in the paper, eq. 7 is "only approximate").

    Minibatches of equal size are drawn from S memories in lockstep; the draws from a memory do not depend on the
    others.
    """

    def __init__(
        self, capacity: int, streams: Sequence[np.random.Generator], *, alpha: float, beta: LinearSchedule | None
    ) -> None:
        """Draw from memories of ``capacity``, one per stream (PCG64); ``beta`` adds importance weights."""
        self.orders: Final = ranked_orders(capacity, len(streams))
        self.uniforms: Final = UniformRows(streams)
        self._cumulative_weights: Final = np.cumsum(np.arange(1, capacity + 1, dtype=np.float64) ** -alpha)
        self._beta: Final = beta
        self.episode = 1
        self._segments_are_valid = False
        self._segments_key: tuple[list[int], int, int] = ([], 0, 0)
        """Number of stored experiences, batch size and episode for which the segments were computed."""
        self._segment_starts: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._segment_lengths: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._weights: NDArray[np.float32] | None = None

    def begin_episode(self, episode: int) -> None:
        self.episode = episode
        self._segments_are_valid = False

    def on_write(self, memory: int, slots: NDArray[np.int64]) -> None:
        """Rank a memory's new experiences first until they are replayed."""
        self.orders.orders_by_memory[memory].renew(slots, 0)
        self._segments_are_valid = False

    def on_update(self, slots: NDArray[np.int64], td: NDArray[np.floating]) -> None:
        """Rank slots (updates, S, n) by |TD error|; NaN leaves the rank of a slot unchanged."""
        self.orders.rank(slots, td)

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` minibatches of distinct slots from each memory; slots and weights are (updates, S, batch).

        Raises ValueError if a memory contains fewer than ``batch`` experiences.
        """
        if not self._segments_are_valid or batch != self._segments_key[1]:
            self._cut_segments(batch)
        slots = self.orders.draw(
            self.uniforms.take(updates * batch), self._segment_starts, self._segment_lengths, updates
        )
        weights = self._weights
        return Draw(slots, weights if weights is None or updates == 1 else np.repeat(weights, updates, axis=0))

    def _cut_segments(self, batch: int) -> None:
        stored_counts = [len(order) for order in self.orders.orders_by_memory]
        segments_key = (stored_counts, batch, self.episode)
        if segments_key != self._segments_key:
            if min(stored_counts) < batch:
                raise ValueError(f"cannot draw {batch} distinct experiences from the {min(stored_counts)} stored")
            self._segment_starts = np.zeros((len(stored_counts), batch), np.int64)
            self._segment_lengths = np.zeros((len(stored_counts), batch), np.int64)
            weights = np.zeros((1, len(stored_counts), batch), np.float32)
            for n in set(stored_counts):
                has_size = [n_stored == n for n_stored in stored_counts]
                ends = segment_ends(self._cumulative_weights, n, batch)
                starts = np.concatenate(([0], ends[:-1]))
                self._segment_starts[has_size], self._segment_lengths[has_size] = starts, ends - starts
                if self._beta is not None:
                    relative_probability = n / (batch * (ends - starts)[None].astype(np.float64))
                    min_probability = float(relative_probability.min())
                    weights[:, has_size] = importance_weights(
                        relative_probability, self._beta.value_at(self.episode), Scale.NONE, min_probability
                    )
            weights.flags.writeable = False
            self._weights = None if self._beta is None else weights
            self._segments_key = segments_key
        self._segments_are_valid = True


class RankPer(Sampler):
    """``RankDraws`` from the memory of one trial."""

    required_signals: Final = frozenset({Signal.TD_ERROR})

    def __init__(
        self,
        capacity: int,
        stream: np.random.Generator,
        *,
        alpha: float = 0.7,
        beta: LinearSchedule | None = None,
    ) -> None:
        """Build the sampler for a memory of ``capacity``; with ``beta``, draws have importance weights.  ``stream`` is
        PCG64."""
        self._draws: Final = RankDraws(capacity, [stream], alpha=alpha, beta=beta)
        self._order: Final = self._draws.orders.orders_by_memory[0]

    @classmethod
    def build(cls, context: SamplerContext, stream: np.random.Generator, *, weighted: bool) -> RankPer:
        return cls(context.capacity, stream, alpha=context.options.per_alpha, beta=context.beta if weighted else None)

    def begin_episode(self, episode: int) -> None:
        self._draws.begin_episode(episode)

    def on_write(self, slots: NDArray[np.int64]) -> None:
        """Rank new experiences first until they are replayed."""
        self._draws.on_write(0, slots)

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Rank slots by |TD error|; NaN leaves the rank of a slot unchanged."""
        self._order.rank(slots, signals.priority, largest_first=True, keep_nan_rank=True)

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` minibatches of distinct slots; with importance sampling, they have weights (updates, batch).

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """
        slots, weights = self._draws.draw(batch, updates)
        return Draw(slots[:, 0], None if weights is None else weights[:, 0])

    def state(self) -> State:
        return {
            "keys": self._order.keys.copy(),
            "uniforms": self._draws.uniforms.state(),
            "episode": np.array(self._draws.episode, np.int64),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._order.load(state["keys"].astype(np.uint64))
        self._draws.uniforms.restore(state["uniforms"].astype(np.uint64))
        self.begin_episode(int(state["episode"]))
