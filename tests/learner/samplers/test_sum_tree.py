from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.samplers import sum_tree
from onrig.learner.samplers.sum_tree import SumTree


@settings(max_examples=80)
@given(
    capacity=st.integers(1, 5000),
    root=st.sampled_from([2, 1024]),
    puts=st.lists(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, 1e-9, 1.0, 3.7])), min_size=1)),
    seed=st.integers(0, 99),
)
def test_any_puts_find_what_a_running_sum_finds(
    capacity: int, root: int, puts: list[list[tuple[int, float]]], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sum_tree, "ROOT", root)
        tree = SumTree(capacity)
    values = np.zeros(capacity)
    for put in puts:
        slots = np.array([s % capacity for s, _ in put])
        for slot, (_, value) in zip(slots.tolist(), put, strict=True):
            values[slot] = value
        tree.put(slots, np.array([v for _, v in put]))
    assert np.array_equal(tree.values, values)
    running = values.cumsum()
    assert tree.total == pytest.approx(running[-1], rel=1e-12, abs=0.0)
    if running[-1] == 0.0:
        with pytest.raises(ValueError, match="all values are 0"):
            tree.find(np.array([0.0]))
        return
    targets = np.concatenate(([0.0, tree.total, 2 * tree.total], np.random.default_rng(seed).random(50) * tree.total))
    found = tree.find(targets)
    assert np.all(values[found] > 0)
    # Sums in another order differ by roundings: the share found ends at or after the target, and begins before it.
    slack = 1e-9 * tree.total
    inside = targets <= tree.total
    assert np.all(running[found] >= targets - slack, where=inside)
    assert np.all(running[found] - values[found] <= targets + slack)


@pytest.mark.parametrize("capacity", [1, 7, 32, 33, 1000, 10_000, 40_000])
def test_equal_values_split_the_total_exactly(capacity: int) -> None:
    tree = SumTree(capacity)
    tree.put(np.arange(capacity), np.ones(capacity))
    assert tree.total == capacity
    assert np.array_equal(tree.find(np.arange(capacity, dtype=np.float64)), np.arange(capacity))
    assert np.array_equal(tree.find(np.arange(capacity, dtype=np.float64) + 0.999), np.arange(capacity))


def test_sums_depend_on_the_values_and_not_on_the_history() -> None:
    rng = np.random.default_rng(0)
    tree, fresh = SumTree(3001), SumTree(3001)
    for _ in range(2000):
        slots = rng.integers(3001, size=16)
        tree.put(slots, rng.exponential(size=16) ** 8)
    fresh.load(tree.values.copy())
    assert fresh.total == tree.total
    targets = rng.random(1000) * tree.total
    assert np.array_equal(fresh.find(targets), tree.find(targets))
    tree.put(np.arange(3001), np.zeros(3001))
    assert tree.total == 0.0


def test_a_target_just_below_the_end_of_a_node_finds_its_last_value() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        tree = SumTree(10_000)
        values = 1.0 + rng.exponential(size=10_000)
        values[31::32] = 0.0
        tree.load(values)
        ends = values[: 32 * (10_000 // 32)].reshape(-1, 32).cumsum(axis=1)[:, -1].cumsum()
        found = tree.find(np.nextafter(ends, 0.0))
        assert np.array_equal(found, 32 * np.arange(len(ends)) + 30)
