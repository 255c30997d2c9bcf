"""Test, size and timing of one library's memories, in a separate process.

A chi-square test first compares the draws with the library's declared distribution.  A library that fails is still
timed, but marked.
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

from onrig.tools.bench.replay.buffers import BATCH, POOL, Buffer, errors, td_errors, transitions
from onrig.tools.bench.replay.cases import Case, Operation, Shape
from onrig.tools.bench.replay.peers import Build, build_of
from onrig.tools.bench.timing import Call, Timings, disable_collector, measure, measure_with_stalls
from onrig.tools.workers import Channel

GATE_CAPACITY: Final = 1000
"""Capacity of tested memories: not a power of two, for which some sum trees are wrong."""
N_OBS: Final = 2
N_ACT: Final = 1
BOUND_SIGMAS: Final = 5.0
_MIN_EXPECTED: Final = 10.0


class Verdict(msgspec.Struct, frozen=True):
    """Test result of one kind of memory."""

    kind: str
    sigmas: float
    """Distance of Pearson's statistic from its degrees of freedom, in its own standard deviations."""
    columns_right: bool
    """Whether every column of every draw matched the transition identified by its reward."""

    @property
    def passed(self) -> bool:
        """Whether the draws follow the distribution and the columns match; too good a fit also fails."""
        return self.columns_right and abs(self.sigmas) <= BOUND_SIGMAS


def deviation(counts: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    """Return the deviation in sigmas of Pearson's statistic of ``counts`` under ``law`` (same length, sums to 1).

    Cells are pooled, rarest first, until 10 draws are expected.  Stratified draws fit a little better than independent
    ones, by at most strata / sqrt(2 cells) sigmas.  Raises ValueError if there are too few draws.
    """
    pools: list[tuple[float, float]] = []
    counted = expected = 0.0
    order = np.argsort(law)
    for count, expected_here in zip(counts[order].tolist(), (law[order] * counts.sum()).tolist(), strict=True):
        counted, expected = counted + count, expected + expected_here
        if expected >= _MIN_EXPECTED:
            pools.append((counted, expected))
            counted = expected = 0.0
    freedom = len(pools) - 1
    if freedom < 1:
        raise ValueError(f"{counts.sum()} draws are too few for a test")
    pools[-1] = (pools[-1][0] + counted, pools[-1][1] + expected)
    statistic = sum((h - e) ** 2 / e for h, e in pools)
    return (statistic - freedom) / math.sqrt(2 * freedom)


def gate(kind: str, buffer: Buffer, seed: int, *, capacity: int = GATE_CAPACITY, draws: int) -> Verdict:
    """Fill ``buffer`` beyond capacity one by one, give every slot an error, draw, and test the draws."""
    n = capacity + capacity // 2
    source = transitions(n, N_OBS, N_ACT, seed)
    for first in range(0, n, POOL):
        part = source.part(first, POOL)
        buffer.prepare(part, errors(1, capacity, seed))
        for i in range(len(part.reward)):
            buffer.insert_drawable(i)
    td = td_errors(capacity, seed)
    buffer.assign(np.arange(capacity), td)
    counts = np.zeros(capacity, np.int64)
    columns_right = True
    for _ in range(-(-draws // BATCH)):
        c = buffer.columns()
        indices = c.reward.astype(np.int64)
        inside = bool(((indices >= n - capacity) & (indices < n)).all())
        columns_right = columns_right and inside and _columns_match(c.observation, source.observation, indices)
        columns_right = columns_right and _columns_match(c.action, source.action, indices)
        columns_right = columns_right and _columns_match(c.next_observation, source.next_observation, indices)
        columns_right = columns_right and bool(
            (c.terminated.astype(np.bool_) == source.terminated.take(indices, mode="clip")).all()
        )
        np.add.at(counts, indices % capacity, 1)
    return Verdict(kind, deviation(counts, buffer.law(td)), columns_right)


def _columns_match(columns: NDArray[np.float32], source: NDArray[np.float32], indices: NDArray[np.int64]) -> bool:
    return bool((columns == source.take(indices, axis=0, mode="clip")).all())


class MeasuredSize(msgspec.Struct, frozen=True):
    """Memory use of a full replay memory."""

    resident: int | None
    """Bytes by which the process grew; None if unknown."""
    arrays: int | None
    """Bytes of the arrays; None if the library does not report them."""


_STATM: Final = Path("/proc/self/statm")
_TRIGGER_CAPACITY: Final = 64
"""Capacity of a memory that triggers a library's one-time allocations."""


class Memories:
    """The memories of one library; each method raises ``Unavailable`` if the library does not support it."""

    def __init__(self, build: Build) -> None:
        self._build: Final = build
        self._buffers: Final[dict[str, Buffer]] = {}
        self._next: Final[dict[str, int]] = {}

    def judge(self, kind: str, draws: int, seed: int) -> Verdict:
        """Test the draws of one kind of memory."""
        return gate(kind, self._build(kind, N_OBS, N_ACT, GATE_CAPACITY, seed), seed, draws=draws)

    def measure_size(self, kind: str, shape: Shape, capacity: int, seed: int) -> MeasuredSize:
        """Fill a memory and measure the growth of the process."""
        self._full(kind, shape, _TRIGGER_CAPACITY, seed)
        _settle()
        before_bytes = _resident_bytes()
        buffer = self._full(kind, shape, capacity, seed)
        _settle()
        after_bytes = _resident_bytes()
        return MeasuredSize(
            None if before_bytes is None or after_bytes is None else after_bytes - before_bytes, buffer.array_bytes()
        )

    def fill(self, kind: str, shape: Shape, capacity: int, seed: int) -> None:
        """Prepare a full memory."""
        buffer = self._full(kind, shape, capacity, seed)
        pool = transitions(POOL, shape.n_obs, shape.n_act, seed)
        buffer.prepare(pool, errors(POOL, capacity, seed))
        self._buffers[kind] = buffer
        disable_collector()

    def time(self, case: Case, kind: str, calls: int, limit_ns: int, beside_stalls: bool) -> Timings:
        """Time calls of one case on the memory of ``kind`` until ``calls`` or ``limit_ns`` are exhausted."""
        buffer = self._buffers[kind]
        first = self._next.get(case.name, 0)
        self._next[case.name] = first + calls
        indices = [i % POOL for i in range(first, first + calls)]
        buffer.begin_round()
        gc.collect()
        if beside_stalls:
            return measure_with_stalls(_operation(case, buffer), indices, limit_ns)
        # In the duty cycle every draw follows an update, which may defer work to the draw.
        before = buffer.update if case.after_update else None
        return Timings(measure(_operation(case, buffer), indices, limit_ns, before))

    def drop(self) -> None:
        """Release all memories."""
        self._buffers.clear()
        _settle()

    def _full(self, kind: str, shape: Shape, capacity: int, seed: int) -> Buffer:
        buffer = self._build(kind, shape.n_obs, shape.n_act, capacity, seed)
        pool = transitions(POOL, shape.n_obs, shape.n_act, seed)
        td = td_errors(POOL, seed)
        for first in range(0, capacity, POOL):
            buffer.extend(pool.part(0, capacity - first))
        for first in range(0, capacity, POOL):
            slots = np.arange(first, min(first + POOL, capacity))
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


def _settle() -> None:
    """Collect garbage, and return free memory to the system if the C library supports it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def start_up(package: str) -> Memories:
    """Import the library; raises ``Unavailable`` if that fails."""
    if package != "onrig":
        return Memories(build_of(package))
    from onrig.tools.bench.replay.onrig import build

    return Memories(build)


if __name__ == "__main__":
    Channel().serve(lambda: start_up(sys.argv[1]))
