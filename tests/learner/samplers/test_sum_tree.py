from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.samplers import sum_tree
from onrig.learner.samplers.sum_tree import CompiledSumTree, SumTree


@settings(max_examples=80)
@given(
    capacity=st.integers(1, 5000),
    root=st.sampled_from([2, 1024]),
    writes=st.lists(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, 1e-9, 1.0, 3.7])), min_size=1)),
    seed=st.integers(0, 99),
)
def test_any_puts_find_the_same_as_a_running_sum(
    capacity: int, root: int, writes: list[list[tuple[int, float]]], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sum_tree, "MAX_ROOT_CHILDREN", root)
        tree = SumTree(capacity)
    values = np.zeros(capacity)
    for write in writes:
        slots = np.array([s % capacity for s, _ in write])
        for slot, (_, value) in zip(slots.tolist(), write, strict=True):
            values[slot] = value
        tree.put(slots, np.array([v for _, v in write]))
    assert np.array_equal(tree.values, values)
    running = values.cumsum()
    assert tree.total == pytest.approx(running[-1], rel=1e-12, abs=0.0)
    if running[-1] == 0.0:
        with pytest.raises(ValueError, match="all values are 0"):
            tree.find(np.array([0.0]))
        return
    targets = np.concatenate(([0.0, tree.total, 2 * tree.total], np.random.default_rng(seed).random(50) * tree.total))
    slots_found = tree.find(targets)
    assert np.all(values[slots_found] > 0)
    # Sums in another order differ by rounding: the share found ends at or after the target, and begins before it.
    tolerance = 1e-9 * tree.total
    is_inside = targets <= tree.total
    assert np.all(running[slots_found] >= targets - tolerance, where=is_inside)
    assert np.all(running[slots_found] - values[slots_found] <= targets + tolerance)


@pytest.mark.parametrize("capacity", [1, 7, 32, 33, 1000, 10_000, 40_000])
def test_equal_values_split_the_total_exactly(capacity: int) -> None:
    tree = SumTree(capacity)
    tree.put(np.arange(capacity), np.ones(capacity))
    assert tree.total == capacity
    assert np.array_equal(tree.find(np.arange(capacity, dtype=np.float64)), np.arange(capacity))
    assert np.array_equal(tree.find(np.arange(capacity, dtype=np.float64) + 0.999), np.arange(capacity))


def test_sums_depend_on_the_values_only_and_not_on_their_history() -> None:
    rng = np.random.default_rng(0)
    tree, rebuilt = SumTree(3001), SumTree(3001)
    for _ in range(2000):
        slots = rng.integers(3001, size=16)
        tree.put(slots, rng.exponential(size=16) ** 8)
    rebuilt.load(tree.values.copy())
    assert rebuilt.total == tree.total
    targets = rng.random(1000) * tree.total
    assert np.array_equal(rebuilt.find(targets), tree.find(targets))
    tree.put(np.arange(3001), np.zeros(3001))
    assert tree.total == 0.0


def test_a_target_just_below_the_end_of_a_node_finds_its_last_value() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        tree = SumTree(10_000)
        values = 1.0 + rng.exponential(size=10_000)
        values[31::32] = 0.0
        tree.load(values)
        block_ends = values[: 32 * (10_000 // 32)].reshape(-1, 32).cumsum(axis=1)[:, -1].cumsum()
        slots_found = tree.find(np.nextafter(block_ends, 0.0))
        assert np.array_equal(slots_found, 32 * np.arange(len(block_ends)) + 30)


@pytest.mark.skipif(sum_tree._functions() is None, reason="the C library is not built")
@settings(max_examples=80)
@given(
    capacity=st.integers(1, 5000),
    root=st.sampled_from([2, 1024]),
    writes=st.lists(
        st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.0, 1e9) | st.sampled_from([np.nan, np.inf])))
    ),
    seed=st.integers(0, 99),
)
def test_the_compiled_form_has_the_bits_of_the_reference(
    capacity: int, root: int, writes: list[list[tuple[int, float]]], seed: int
) -> None:
    functions = sum_tree._functions()
    assert functions is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sum_tree, "MAX_ROOT_CHILDREN", root)
        compiled, reference = CompiledSumTree(capacity, functions), SumTree(capacity)
    uniforms = np.random.default_rng(seed).random(30)
    for write in writes:
        slots, values = (
            np.array([s % capacity for s, _ in write], np.int64),
            np.array([v for _, v in write], np.float64),
        )
        assert compiled.put(slots, values) == reference.put(slots, values)
        assert np.array_equal(compiled._running_root, reference._running_root)
        for compiled_level, reference_level in zip(compiled._levels, reference._levels, strict=True):
            assert np.array_equal(compiled_level.values, reference_level.values)
            assert np.array_equal(compiled_level.running_sums, reference_level.running_sums)
        if not reference.total:
            with pytest.raises(ValueError, match="all values are 0"):
                compiled.draw(uniforms, 3)
            continue
        targets = np.concatenate(([0.0, reference.total, 2 * reference.total], uniforms * reference.total))
        assert np.array_equal(compiled.find(targets), reference.find(targets))
        for actual, expected in zip(compiled.draw(uniforms, 3), reference.draw(uniforms, 3), strict=True):
            assert np.array_equal(actual, expected)


@pytest.mark.skipif(sum_tree._functions() is None, reason="the C library is not built")
def test_out_of_range_slots_and_non_finite_targets_are_refused() -> None:
    tree = sum_tree.sum_tree(5)
    slots = np.arange(500) % 5
    tree.put(slots, (slots + 1).astype(np.float64))
    assert tree.values.tolist() == [1, 2, 3, 4, 5]
    for slot in (-1, 5):
        with pytest.raises(IndexError, match="expected slots below 5"):
            tree.put(np.array([slot]), np.ones(1))
    with pytest.raises(ValueError, match="negative or NaN"):
        tree.find(np.array([np.nan]))
