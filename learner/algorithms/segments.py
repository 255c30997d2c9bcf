"""Concatenated segments of stored episodes, and the records that pass them to programs chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms.returns import retrace
from onrig.learner.algorithms.traced import Values
from onrig.learner.tape.spaces import Layout, allocate_rows
from onrig.learner.trajectories import Chain
from onrig.runtime.memory.layout import Slots


class Steps(NamedTuple):
    """Concatenated segments, N steps per trial, padded at the end."""

    slots: Slots
    """(S, N)"""
    is_present: NDArray[np.bool_]
    """(S, N)"""
    step_weight: NDArray[np.floating]
    """(S, N): weight of the segment divided by its length and by the number of segments; 0 in the padding.  The
    probability of drawing a segment is proportional to its length, so all stored experiences have equal weight, however
    long their episodes are."""
    last_indices: NDArray[np.int64]
    """(S, B): indices of the segments' last steps."""
    drawn_indices: NDArray[np.int64]
    """(S, B): indices of the drawn experiences, around which the segments extend."""

    def retrace(
        self, reward: Values, value: Values, advantage: Values, ratio: Values, end_value: Values, gamma: float
    ) -> Values:
        """Compute Q^ret or Q^opc of all steps from their ratios, (S, N) each, 0 in the padding; ``end_value`` is
        (S, B)."""
        S, N = self.slots.shape
        trial = np.arange(S)[:, None]
        next_index, all_end_values = np.arange(1, S * N + 1).reshape(S, N), np.zeros((S, N))
        next_index[trial, self.last_indices], all_end_values[trial, self.last_indices] = -1, end_value
        next_index[~self.is_present] = -1
        r, v, rho, end_values = (
            np.where(self.is_present, column, 0.0).reshape(-1) for column in (reward, value, ratio, all_end_values)
        )
        q = retrace(r, v, rho, end_values, next_index.reshape(-1), gamma, advantage.reshape(-1))
        return q.reshape(S, N)


def lay_out(segments: Chain, slots: Slots, weight: NDArray[np.floating], chunk_steps: int) -> Steps:
    """Concatenate the segments (S, B, T) around experiences in ``slots`` (S, B); N is a multiple of ``chunk_steps``."""
    S = len(slots)
    lengths = segments.is_present.sum(axis=-1)
    n_steps = lengths.sum(axis=1)
    N = -(-int(n_steps.max()) // chunk_steps) * chunk_steps
    is_present = np.arange(N) < n_steps[:, None]
    concatenated_slots, step_weights = np.zeros((S, N), np.int64), np.zeros((S, N))
    for s, n in enumerate(n_steps.tolist()):
        concatenated_slots[s, :n] = segments.slots[s][segments.is_present[s]]
        step_weights[s, :n] = np.repeat(weight[s] / (len(weight[s]) * lengths[s]), lengths[s])
    first_indices = np.cumsum(lengths, axis=1) - lengths
    offset = (segments.slots == slots[..., None]).argmax(axis=-1)
    return Steps(concatenated_slots, is_present, step_weights, first_indices + lengths - 1, first_indices + offset)


class ChunkRecords:
    """Records for chunks of R steps each, which several programs share; columns are accessed by name."""

    def __init__(self, chunk_steps: int, columns: Mapping[str, int]) -> None:
        """``columns``: number of columns in each field (R, cols)."""
        self.layout: Final = Layout()
        self.fields: Final = {name: self.layout.add(name, chunk_steps, cols) for name, cols in columns.items()}
        self._chunk_steps = chunk_steps
        self._buffer: Values = np.zeros((0, self.layout.size))
        self.rows: Values = self._buffer.reshape(0, 0, self.layout.size)
        """(S, chunks, size)"""

    def begin(self, trials: int, steps: int, dtype: np.dtype[np.floating]) -> None:
        """Allocate records for N steps per trial, where N is a multiple of R."""
        n_chunks = trials * (steps // self._chunk_steps)
        if len(self._buffer) < n_chunks:
            self._buffer = allocate_rows(n_chunks, self.layout, dtype)
        self.rows = self._buffer[:n_chunks].reshape(trials, -1, self.layout.size)

    def write(self, **values: Values) -> None:
        """Write columns, (S, N, ...) each."""
        for name, column in values.items():
            self.rows[:, :, self.fields[name].slice] = column.reshape(*self.rows.shape[:2], -1)

    def read(self, name: str) -> Values:
        """Copy out a single column, (S, N)."""
        return self.rows[:, :, self.fields[name].slice].reshape(len(self.rows), -1)
