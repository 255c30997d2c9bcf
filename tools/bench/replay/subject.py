"""Test, size and timing of one library's memories, in a separate process.

A chi-square test first compares the draws with the documented distribution. A library that fails the test is still
timed, but its times are marked.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.tools.bench.replay.buffers import (
    BATCH_SIZE,
    POOL_SIZE,
    Buffer,
    random_errors,
    random_td_errors,
    random_transitions,
)
from onrig.tools.bench.replay.cases import Case, Operation, Shape
from onrig.tools.bench.replay.peers import BufferFactory, load_factory
from onrig.tools.bench.timing import Call, Timings, disable_collector, measure, measure_with_stalls
from onrig.tools.workers import Channel

TESTED_CAPACITY: Final = 1000
"""Capacity of the tested memories. It is not a power of two, because some sum trees are wrong only for such sizes."""
N_OBS: Final = 2
N_ACT: Final = 1
BOUND_SIGMAS: Final = 5.0
_MIN_EXPECTED_COUNT: Final = 10.0


class Verdict(msgspec.Struct, frozen=True):
    """Test result for one kind of memory."""

    kind: str
    sigmas: float
    """Deviation of Pearson's statistic from its expectation, in its own standard deviations."""
    columns_match: bool
    """Whether every column of every draw matched the transition identified by its reward."""

    @property
    def passed(self) -> bool:
        """Whether the draws follow the distribution and the columns match; too good a fit also fails."""
        return self.columns_match and abs(self.sigmas) <= BOUND_SIGMAS


def chi_square_deviation(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """Return by how many sigmas Pearson's statistic for ``counts`` deviates from its expectation.

    ``probabilities`` has the same length and sums to 1. Cells are pooled, rarest first, until each has at least 10
    expected draws. Stratified draws fit slightly better than independent ones, by at most strata / sqrt(2 cells)
    sigmas. Raises ValueError if there are too few draws.
    """
    pools: list[tuple[float, float]] = []
    n_counted = n_expected = 0.0
    order = np.argsort(probabilities)
    for count, cell_expected in zip(
        counts[order].tolist(), (probabilities[order] * counts.sum()).tolist(), strict=True
    ):
        n_counted, n_expected = n_counted + count, n_expected + cell_expected
        if n_expected >= _MIN_EXPECTED_COUNT:
            pools.append((n_counted, n_expected))
            n_counted = n_expected = 0.0
    degrees_of_freedom = len(pools) - 1
    if degrees_of_freedom < 1:
        raise ValueError(f"{counts.sum()} draws are too few for a test")
    pools[-1] = (pools[-1][0] + n_counted, pools[-1][1] + n_expected)
    statistic = sum((h - e) ** 2 / e for h, e in pools)
    return (statistic - degrees_of_freedom) / math.sqrt(2 * degrees_of_freedom)


def check_draws(kind: str, buffer: Buffer, seed: int, *, capacity: int = TESTED_CAPACITY, draws: int) -> Verdict:
    """Overfill ``buffer`` one transition at a time, assign an error to each slot, and test the draws."""
    n = capacity + capacity // 2
    source = random_transitions(n, N_OBS, N_ACT, seed)
    for start in range(0, n, POOL_SIZE):
        chunk = source.select(start, POOL_SIZE)
        buffer.prepare(chunk, random_errors(1, capacity, seed))
        for i in range(len(chunk.reward)):
            buffer.insert_drawable(i)
    td = random_td_errors(capacity, seed)
    buffer.assign(np.arange(capacity), td)
    counts = np.zeros(capacity, np.int64)
    columns_match = True
    for _ in range(-(-draws // BATCH_SIZE)):
        c = buffer.columns()
        indices = c.reward.astype(np.int64)
        is_in_range = bool(((indices >= n - capacity) & (indices < n)).all())
        columns_match = columns_match and is_in_range and _columns_match(c.observation, source.observation, indices)
        columns_match = columns_match and _columns_match(c.action, source.action, indices)
        columns_match = columns_match and _columns_match(c.next_observation, source.next_observation, indices)
        columns_match = columns_match and bool(
            (c.terminated.astype(np.bool_) == source.terminated.take(indices, mode="clip")).all()
        )
        np.add.at(counts, indices % capacity, 1)
    return Verdict(kind, chi_square_deviation(counts, buffer.probabilities(td)), columns_match)


def _columns_match(columns: NDArray[np.float32], source: NDArray[np.float32], indices: NDArray[np.int64]) -> bool:
    return bool((columns == source.take(indices, axis=0, mode="clip")).all())


class MeasuredSize(msgspec.Struct, frozen=True):
    """Size of a full replay memory."""

    resident: int | None
    """Bytes by which the process grew; None if unknown."""
    arrays: int | None
    """Bytes of the arrays; None if the library does not report them."""


_STATM: Final = Path("/proc/self/statm")
_TRIGGER_CAPACITY: Final = 64
"""Capacity of a small memory that is built first to trigger the library's one-time allocations."""


class Memories:
    """Memories of one library; each method raises ``Unavailable`` if the library does not support it."""

    def __init__(self, build: BufferFactory) -> None:
        self._build: Final = build
        self._buffers: Final[dict[str, Buffer]] = {}
        self._next_call: Final[dict[str, int]] = {}

    def check_draws_of_kind(self, kind: str, draws: int, seed: int) -> Verdict:
        """Test the draws of one kind of memory."""
        return check_draws(kind, self._build(kind, N_OBS, N_ACT, TESTED_CAPACITY, seed), seed, draws=draws)

    def measure_size(self, kind: str, shape: Shape, capacity: int, seed: int) -> MeasuredSize:
        """Fill a memory and measure by how much the process grows."""
        self._build_full(kind, shape, _TRIGGER_CAPACITY, seed)
        _release_free_memory()
        before_bytes = _resident_bytes()
        buffer = self._build_full(kind, shape, capacity, seed)
        _release_free_memory()
        after_bytes = _resident_bytes()
        return MeasuredSize(
            None if before_bytes is None or after_bytes is None else after_bytes - before_bytes, buffer.array_bytes()
        )

    def fill(self, kind: str, shape: Shape, capacity: int, seed: int) -> None:
        """Prepare a full memory."""
        buffer = self._build_full(kind, shape, capacity, seed)
        pool = random_transitions(POOL_SIZE, shape.n_obs, shape.n_act, seed)
        buffer.prepare(pool, random_errors(POOL_SIZE, capacity, seed))
        self._buffers[kind] = buffer
        disable_collector()

    def time(self, case: Case, kind: str, calls: int, limit_ns: int, with_stalls: bool) -> Timings:
        """Time at most ``calls`` calls of one case on the memory of ``kind``, for at most ``limit_ns``."""
        buffer = self._buffers[kind]
        first = self._next_call.get(case.name, 0)
        self._next_call[case.name] = first + calls
        indices = [i % POOL_SIZE for i in range(first, first + calls)]
        buffer.begin_round()
        gc.collect()
        if with_stalls:
            return measure_with_stalls(_operation(case, buffer), indices, limit_ns)
        # As in the duty cycle, an update precedes each draw, because it may defer work to the draw.
        untimed_call = buffer.update if case.after_update else None
        return Timings(measure(_operation(case, buffer), indices, limit_ns, untimed_call))

    def drop(self) -> None:
        """Release all memories."""
        self._buffers.clear()
        _release_free_memory()

    def _build_full(self, kind: str, shape: Shape, capacity: int, seed: int) -> Buffer:
        buffer = self._build(kind, shape.n_obs, shape.n_act, capacity, seed)
        pool = random_transitions(POOL_SIZE, shape.n_obs, shape.n_act, seed)
        td = random_td_errors(POOL_SIZE, seed)
        for first in range(0, capacity, POOL_SIZE):
            buffer.extend(pool.select(0, capacity - first))
        for first in range(0, capacity, POOL_SIZE):
            slots = np.arange(first, min(first + POOL_SIZE, capacity))
            buffer.assign(slots, td[: len(slots)])
        return buffer


def _operation(case: Case, buffer: Buffer) -> Call:
    match case.operation:
        case Operation.INSERT:
            return buffer.insert
        case Operation.INSERT_DRAWABLE:
            return buffer.insert_drawable
        case Operation.UPDATE:
            return buffer.update
        case Operation.CYCLE:
            return buffer.cycle
        case Operation.SAMPLE:
            sample, size = buffer.sample, case.size
            return lambda _: sample(size)


def _resident_bytes() -> int | None:
    if not _STATM.is_file():
        return None
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _release_free_memory() -> None:
    """Collect garbage and, if the C library supports it, return free memory to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def load_library(package: str) -> Memories:
    """Import a library and return its memories. Raises ``Unavailable`` if the import fails."""
    if package != "onrig":
        return Memories(load_factory(package))
    from onrig.tools.bench.replay.onrig import build

    return Memories(build)


if __name__ == "__main__":
    Channel().serve(lambda: load_library(sys.argv[1]))
