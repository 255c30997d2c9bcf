from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.storage import Storage
from onrig.runtime.memory.strategy import build_keeper, capacity_within, fixed_bytes, parse_strategy
from onrig.runtime.replay.experiences import Memory
from tests.runtime.replay.filling import churn_memory, config_with_budget

RETENTIONS = ("FIFO", "FULL", "Resv", "TDE(1.0)", "Expl(1.2)", "MinError")
SLACK_BYTES = 64 * 1024
"""Pages only partly ours, and objects of the interpreter, when the process is measured."""


@settings(max_examples=40)
@given(
    st.sampled_from(RETENTIONS),
    st.integers(90_000, 600_000),
    st.integers(1, 17),
    st.integers(1, 6),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_storage_and_keeper_never_hold_more_than_the_budget(
    retention: str, budget_bytes: int, n_obs: int, n_act: int, seed: int, is_thinned: bool
) -> None:
    strategy = parse_strategy(f"{retention}[Uniform]")
    capacity = capacity_within(strategy, budget_bytes, Layout(n_obs, n_act), is_thinned=is_thinned)
    rng = np.random.default_rng(seed)
    probability = 0.9 if is_thinned else 1.0
    keeper = build_keeper(strategy, capacity, np.random.default_rng(seed), write_probability=probability)
    storage = Storage(capacity, Layout(n_obs, n_act), cyclic=keeper.cyclic)
    assert storage.nbytes + keeper.nbytes <= budget_bytes
    for _ in range(2):
        for i, exploration in enumerate(rng.random(capacity // 2 + 1).tolist()):
            slot = keeper.place()
            if slot >= 0:
                keeper.on_write(slot, exploration, i // 3)
        slots = rng.permutation(min(capacity // 3, 500))
        for signal in Signal:
            keeper.on_feedback(signal, slots, rng.random(len(slots), np.float32) ** 8)
        assert storage.nbytes + keeper.nbytes <= budget_bytes


@pytest.mark.parametrize("retention", ["FIFO", "FULL"])
def test_a_keeper_without_an_order_spends_the_complete_budget_on_rows(retention: str) -> None:
    strategy = parse_strategy(f"{retention}[Uniform]")
    assert capacity_within(strategy, 40 * 1000 + 39, Layout(2, 1)) == 1000


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_budget_is_well_used(retention: str) -> None:
    strategy = parse_strategy(f"{retention}[Uniform]")
    capacity = capacity_within(strategy, 10_000_000, Layout(17, 6))
    assert capacity * Layout(17, 6).row_bytes > 0.7 * 10_000_000


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_budget_too_small_for_one_experience_is_refused(retention: str) -> None:
    strategy = parse_strategy(f"{retention}[Uniform]")
    with pytest.raises(ValueError, match="bytes"):
        capacity_within(strategy, fixed_bytes(strategy) + 39, Layout(2, 1))
    with pytest.raises(ValueError, match="bytes"):
        capacity_within(strategy, fixed_bytes(strategy), Layout(2, 1))


@pytest.mark.parametrize("retention", ["TDE(1.0)", "Expl(1.0)", "MinError"])
def test_the_memory_of_a_configured_budget_stays_within_it(retention: str) -> None:
    memory = Memory(config_with_budget(retention, 600_000))
    churn_memory(memory, np.random.default_rng(1), 2 * memory.storage.capacity)
    assert memory.storage.stored == memory.storage.capacity > 5000
    assert memory.storage.nbytes + memory.keeper.nbytes <= 600_000


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc/self/statm")
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_process_grows_by_no_more_than_the_budget_when_its_memory_fills(retention: str) -> None:
    budget_bytes = 4 << 20
    command = [sys.executable, "-m", "tests.runtime.replay.filling", retention, str(budget_bytes)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    before, after = map(int, process.stdout.split())
    assert after - before <= budget_bytes + SLACK_BYTES
    assert after - before >= 0.55 * budget_bytes, "the memory itself was measured (checkpoints hold the rest)"
