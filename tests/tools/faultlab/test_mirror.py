from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.replay.memory.storage import Storage
from onrig.tools.faultlab.mirror import differing

CAPACITY = 16


def storages(writes: int, seen: int, *, cyclic: bool, seed: int) -> tuple[Storage, Storage]:
    """A memory after ``writes`` writes, and a mirror of it that stopped at ``seen``."""
    rng = np.random.default_rng(seed)
    memory, mirror = (Storage(CAPACITY, 2, 1, cyclic=cyclic) for _ in range(2))
    for n in range(writes):
        slot = n % CAPACITY if cyclic or n < CAPACITY else int(rng.integers(CAPACITY))
        memory.insert(slot, rng.normal(size=2), rng.normal(size=1), float(rng.normal()), rng.normal(size=2), 0, 1, 0.5)
        if n + 1 == seen:
            mirror.write_rows(memory.rows(memory.changed_since(0)))
    return memory, mirror


@given(st.integers(1, 60), st.integers(0, 60), st.booleans(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_mirror_and_a_memory_agree_however_far_each_has_come(writes: int, seen: int, cyclic: bool, seed: int) -> None:
    memory, mirror = storages(writes, min(seen, writes), cyclic=cyclic, seed=seed)
    assert differing(mirror, memory) == 0
    assert differing(memory, mirror) == 0


@given(st.integers(0, CAPACITY - 1), st.integers(0, 6), st.integers(0, 31), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_single_bit_is_found(slot: int, word: int, bit: int, cyclic: bool) -> None:
    memory, mirror = storages(40, 40, cyclic=cyclic, seed=1)
    mirror.words[slot, word % mirror.words.shape[1]] ^= np.uint32(1 << bit)
    assert differing(mirror, memory) == 1


@pytest.mark.parametrize("cyclic", [True, False])
def test_a_write_that_went_to_another_slot_is_found(cyclic: bool) -> None:
    memory, mirror = storages(CAPACITY, CAPACITY, cyclic=cyclic, seed=2)
    mirror.words[[0, 1]] = mirror.words[[1, 0]]
    assert differing(mirror, memory) == 2


def test_slots_that_only_one_has_seen_written_again_are_left() -> None:
    memory, mirror = storages(CAPACITY + 5, CAPACITY, cyclic=True, seed=3)
    assert (mirror.words != memory.words).any(axis=1).sum() == 5
    assert differing(mirror, memory) == 0
