"""Rank-based prioritised replay: P(i) ~ rank(i)^-alpha, in segments of equal probability.

Source: de Bruin et al. 2018, §3.3.1, eq. 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, Sampler, Setting, State
from onrig.learner.samplers.importance import Linear, Scale, importance_weights
from onrig.runtime.replay.memory.keepers.keeper import Signal
from onrig.runtime.replay.memory.order.ranked import INFINITE, RankedSlots, float_bits
from onrig.runtime.replay.memory.order.uniforms import UniformArrays


def segment_ends(cumulative: NDArray[np.float64], stored: int, segments: int) -> NDArray[np.int64]:
    """Cut ranks 1 ... ``stored`` into segments of equal probability; returns the last rank of each, (segments,).

    ``cumulative`` is the running sum of the rank law from rank 1 on.  Where rank 1 alone is likelier than a segment (a
    memory of a few hundred with a minibatch of 16), every segment still gets at least one rank, which the paper leaves
    open: no experience is then drawn twice, and the probabilities below stay exact.
    """
    k = np.arange(segments)
    ends = cumulative[:stored].searchsorted((k + 1) / segments * cumulative[stored - 1]) + 1
    ends[-1] = stored
    return np.minimum(np.maximum.accumulate(ends - k) + k, stored - segments + 1 + k)


class RankPer(Sampler):
    """One uniform draw from each segment; rank 1 is the largest |TD error|, an experience never replayed counts as inf.

    Ties are in insertion order, oldest first.  The probability of a draw is exactly 1 / (segments * ranks in its
    segment), which is what the importance weights use (in the paper, eq. 7 is "only approximate").

    For a single trial: at a capacity of 10 000 (a million) it takes 0.44 (0.65) times as long as
    ``onrig.learner.trials.sampling`` with one trial, which draws the same.
    """

    looks_at: Final = frozenset({Signal.TD_ERROR})

    def __init__(
        self,
        capacity: int,
        stream: np.random.Generator,
        *,
        alpha: float = 0.7,
        beta: Linear | None = None,
    ) -> None:
        """Sampler of a memory of ``capacity``; with ``beta``, draws carry importance weights.  ``stream`` is PCG64."""
        self._order: Final = RankedSlots(capacity)
        self._cumulative: Final = np.cumsum(np.arange(1, capacity + 1, dtype=np.float64) ** -alpha)
        self._uniforms: Final = UniformArrays(stream)
        self._beta: Final = beta
        self._episode = 1
        self._cut: tuple[int, int] = (0, 0)
        self._starts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._lengths: NDArray[np.int64] = np.zeros(0, np.int64)
        self._weights: NDArray[np.float32] | None = None

    @classmethod
    def build(cls, setting: Setting, stream: np.random.Generator, *, weighted: bool) -> RankPer:
        """Build one with the exponent of the setting."""
        return cls(setting.capacity, stream, alpha=setting.options.per_alpha, beta=setting.beta if weighted else None)

    def begin_episode(self, episode: int) -> None:
        """Set the training episode."""
        self._episode = episode
        self._cut = (0, 0)

    def written(self, slots: NDArray[np.int64]) -> None:
        """Rank new experiences first until they are replayed."""
        self._order.renew(slots, 0)

    def updated(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Rank slots by |TD error|; NaN leaves a slot where it is."""
        td = signals.priority.astype(np.float32, copy=False)
        try:
            bits = float_bits(td)
        except ValueError:
            numbers = ~np.isnan(td)
            slots, bits = slots[numbers], float_bits(td[numbers])
        if len(set(slots.tolist())) < len(slots):
            slots, last = np.unique(slots[::-1], return_index=True)
            bits = bits[::-1][last]
        # The order is ascending, and the largest error must come first.
        self._order.move(slots, np.uint32(INFINITE) - bits)

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` minibatches, distinct slots in each; weights (updates, batch) with importance sampling.

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """
        if (len(self._order), batch) != self._cut:
            self._cut_segments(batch)
        uniforms = self._uniforms.take(updates * batch)
        if updates > 1:
            uniforms = uniforms.reshape(updates, batch)
        ranks = (uniforms * self._lengths).astype(np.int64)
        ranks += self._starts
        slots = self._order.at(ranks.reshape(-1)).reshape(updates, batch)
        weights = self._weights
        return Draw(slots, weights if weights is None or updates == 1 else np.repeat(weights, updates, axis=0))

    def _cut_segments(self, batch: int) -> None:
        stored = len(self._order)
        if stored < batch:
            raise ValueError(f"cannot draw {batch} distinct experiences from the {stored} stored")
        ends = segment_ends(self._cumulative, stored, batch)
        self._starts = np.concatenate(([0], ends[:-1]))
        self._lengths = ends - self._starts
        if self._beta is not None:
            times_uniform = stored / (batch * self._lengths[None].astype(np.float64))
            least = float(times_uniform.min())
            self._weights = importance_weights(times_uniform, self._beta.at(self._episode), Scale.NONE, least)
            self._weights.flags.writeable = False
        self._cut = (stored, batch)

    def state(self) -> State:
        """Copy of the order, the position in the random stream, and the episode."""
        return {
            "keys": self._order.keys.copy(),
            "uniforms": self._uniforms.state(),
            "episode": np.array(self._episode, np.int64),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``: the next draws are the same."""
        self._order.load(state["keys"].astype(np.uint64))
        self._uniforms.restore(state["uniforms"].astype(np.uint64))
        self.begin_episode(int(state["episode"]))
