"""Fills a memory with a byte budget and prints the growth of the process: ``python -m tests.runtime.replay.filling``.

Arguments: RETENTION BUDGET_BYTES.  Output: resident bytes before the memory is created, and once it is full and worn.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import msgspec
import numpy as np

from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.settings import Selection
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from tests.runtime.samples import PENDULUM

BATCH = 500


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def batch(rng: np.random.Generator) -> Transitions:
    pairs = rng.random((BATCH, 2), np.float32)
    zeros = np.zeros(BATCH, np.uint32)
    exploration = rng.random(BATCH, np.float32)
    return Transitions(pairs, pairs[:, :1], pairs[:, 1], pairs, zeros, zeros, exploration, zeros, zeros, pairs[:, :0])


def churn_memory(memory: Memory, rng: np.random.Generator, n_offers: int) -> None:
    """Offer experiences, with TD errors of the stored ones in between."""
    for _ in range(0, n_offers, BATCH):
        memory.insert(batch(rng))
        slots = rng.integers(0, memory.storage.stored, 64)
        memory.take_feedback(Signal.TD_ERROR, slots, memory.storage.generation(slots), rng.random(64, np.float32))


def config_with_budget(retention: str, budget_bytes: int) -> RunConfig:
    selection = Selection(strategy=f"{retention}[Uniform]", capacity_bytes=budget_bytes)
    return msgspec.structs.replace(PENDULUM, episodes=10_000, selection=selection)


def main(retention: str, budget_bytes: int) -> None:
    rng = np.random.default_rng(0)
    churn_memory(Memory(config_with_budget(retention, 200_000)), rng, 4 * BATCH)  # one-time cost of any memory
    bytes_before = resident_bytes()
    memory = Memory(config_with_budget(retention, budget_bytes))
    churn_memory(memory, rng, memory.storage.capacity * 5 // 4 + BATCH)
    assert memory.storage.stored == memory.storage.capacity
    print(bytes_before, resident_bytes())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
