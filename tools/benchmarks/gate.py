"""The correctness gate: what is drawn, put to a chi-square test against the law that the library declares.

Who draws wrongly may be quick; it is measured all the same, and marked.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.tools.benchmarks.peers import Buffer
from onrig.tools.benchmarks.transitions import BATCH, POOL, errors, td_errors, transitions

CAPACITY: Final = 1000
"""No power of two, where sum trees went wrong (TRAPS)."""
N_OBS: Final = 2
N_ACT: Final = 1
DRAWS: Final = 200_000
BOUND_SIGMAS: Final = 5.0
_LEAST_EXPECTED: Final = 10.0


class Verdict(msgspec.Struct, frozen=True):
    """How one kind of memory passed."""

    kind: str
    sigmas: float
    """Distance of Pearson's statistic from its degrees of freedom, in its own standard deviations."""
    columns_right: bool
    """Whether every column of every draw was that of the transition its reward names."""

    @property
    def passed(self) -> bool:
        """Whether draws follow the law and columns are right; too good a fit is as suspicious as too bad a one."""
        return self.columns_right and abs(self.sigmas) <= BOUND_SIGMAS


def deviation(counts: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    """Return how far Pearson's statistic of ``counts`` under ``law`` (same length, sums to 1) lies off, in sigmas.

    Cells are pooled, rarest first, until 10 draws are expected.  Stratified draws fit a little better than independent
    ones, by at most strata / sqrt(2 cells) sigmas.  Raises ValueError when there are too few draws to say anything.
    """
    pools: list[tuple[float, float]] = []
    held = expected = 0.0
    order = np.argsort(law)
    for count, expect in zip(counts[order].tolist(), (law[order] * counts.sum()).tolist(), strict=True):
        held, expected = held + count, expected + expect
        if expected >= _LEAST_EXPECTED:
            pools.append((held, expected))
            held = expected = 0.0
    freedom = len(pools) - 1
    if freedom < 1:
        raise ValueError(f"{counts.sum()} draws are too few to say anything")
    pools[-1] = (pools[-1][0] + held, pools[-1][1] + expected)
    statistic = sum((h - e) ** 2 / e for h, e in pools)
    return (statistic - freedom) / math.sqrt(2 * freedom)


def gate(kind: str, buffer: Buffer, seed: int, *, capacity: int = CAPACITY, draws: int = DRAWS) -> Verdict:
    """Fill ``buffer`` past its end one by one, give every slot an error, draw, and judge the draws."""
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
    right = True
    for _ in range(-(-draws // BATCH)):
        c = buffer.columns()
        named = c.reward.astype(np.int64)
        inside = bool(((named >= n - capacity) & (named < n)).all())
        right = right and inside and _same(c.observation, source.observation, named)
        right = right and _same(c.action, source.action, named)
        right = right and _same(c.next_observation, source.next_observation, named)
        right = right and bool((c.terminated.astype(np.bool_) == source.terminated.take(named, mode="clip")).all())
        np.add.at(counts, named % capacity, 1)
    return Verdict(kind, deviation(counts, buffer.law(td)), right)


def _same(got: NDArray[np.float32], source: NDArray[np.float32], named: NDArray[np.int64]) -> bool:
    return bool((got == source.take(named, axis=0, mode="clip")).all())
