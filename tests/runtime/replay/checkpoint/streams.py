"""A memory fed by a stream of events that depends only on the step number."""

from __future__ import annotations

from typing import Final

import numpy as np

from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.storage import Storage
from onrig.runtime.memory.strategy import build_keeper, parse_strategy
from onrig.runtime.replay.checkpoint import CheckpointWriter, Identity, RestoredCheckpoint, identity_of

RETENTIONS: Final = ("FIFO", "FULL", "Resv", "TDE(1.0)", "Expl(0.7)", "MinError")
SEED: Final = 5


class FedMemory:
    """The checkpointed memory, and its continuation."""

    def __init__(self, retention: str, capacity: int, *, per_step: int = 20, write_probability: float = 1.0) -> None:
        self.strategy = parse_strategy(f"{retention}[PER]")
        rng = np.random.default_rng(SEED)
        self.keeper = build_keeper(self.strategy, capacity, rng, write_probability=write_probability)
        self.storage = Storage(capacity, Layout(2, 1), cyclic=self.keeper.cyclic)
        self.offered = 0
        self.stale_errors = 0
        self.steps = 0
        self._per_step = per_step

    @property
    def identity(self) -> Identity:
        return identity_of(self, SEED)

    def resume(self, steps: int = 1) -> list[int]:
        """Process this number of steps; returns the chosen slots (-1 if refused)."""
        slots_chosen = []
        for _ in range(steps):
            self.steps += 1
            rng = np.random.default_rng(self.steps)
            values = rng.random((self._per_step, 5), np.float32)
            for i, v in enumerate(values):
                slot = self.keeper.place()
                slots_chosen.append(slot)
                if slot >= 0:
                    exploration = round(float(v[0]), 2)  # ties happen
                    self.storage.insert(slot, v[:2], v[2:3], float(v[3]), v[3:], 1, self.steps, exploration)
                    self.keeper.on_write(slot, exploration, (self.steps * self._per_step + i) // 7)
            self.offered += self._per_step
            if self.storage.stored:
                slots = rng.integers(0, self.storage.stored, 16)
                errors = rng.random(16, np.float32)
                for signal in Signal:
                    self.keeper.on_feedback(signal, slots, errors.round() if signal is Signal.FAR else errors)
                self.stale_errors += 1
        return slots_chosen

    def write(self, writer: CheckpointWriter) -> None:
        """Write a checkpoint and wait until it is on disk."""
        assert writer.write(self, {"steps": self.steps})
        writer.wait()

    def continue_from(self, restored: RestoredCheckpoint | None) -> FedMemory:
        """Continue counting from the state that this one was restored from."""
        assert restored is not None
        self.steps = restored.extra["steps"]
        return self


def assert_same(memory: FedMemory, other: FedMemory, n_decisions: int = 1000) -> None:
    """Check that two memories are equal and remain so; both have advanced afterwards."""
    assert memory.storage.digest() == other.storage.digest()
    assert (memory.steps, memory.offered, memory.stale_errors) == (other.steps, other.offered, other.stale_errors)
    all_slots = np.arange(memory.storage.stored)
    assert memory.storage.number(all_slots).tolist() == other.storage.number(all_slots).tolist()
    per_step = len(memory.resume())
    steps = n_decisions // per_step + 1
    other.resume()
    assert memory.resume(steps) == other.resume(steps)
    assert memory.keeper.n_rejected == other.keeper.n_rejected
    assert memory.storage.digest() == other.storage.digest()
    midpoint = memory.storage.inserted // 2
    assert memory.storage.changed_since(midpoint).tolist() == other.storage.changed_since(midpoint).tolist()
