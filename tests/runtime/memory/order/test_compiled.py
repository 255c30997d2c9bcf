"""The compiled orders against their reference: every key, slot and rank, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.runtime.memory.order import compiled, leaves, ranked
from onrig.runtime.memory.order.compiled import CompiledOrders, CompiledRankedSlots
from onrig.runtime.memory.order.ranked import BYTES_PER_SLOT, INFINITY_BITS, SEQUENCE_END, Orders, RankedSlots

pytestmark = pytest.mark.skipif(compiled._load_functions() is None, reason="the C library is not built")
CAPACITY = 60


def _make_order(capacity: int) -> CompiledRankedSlots:
    functions = compiled._load_functions()
    assert functions is not None
    return CompiledRankedSlots(capacity, functions)


def _make_orders(capacity: int, memories: int) -> CompiledOrders:
    functions = compiled._load_functions()
    assert functions is not None
    return CompiledOrders([_make_order(capacity) for _ in range(memories)], functions)


@pytest.fixture
def small_leaves() -> Iterator[None]:
    """So that leaves are split, merged and balanced within a few dozen entries."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (ranked, leaves, compiled):
            for name, value in (("LEAF", 8), ("LEAST", 3), ("MERGED", 6), ("FLAT", 16)):
                patch.setattr(module, name, value, raising=False)
        yield


KEY_BITS = st.one_of(st.sampled_from([0, 1, INFINITY_BITS]), st.integers(0, INFINITY_BITS))
ERROR_VALUES = st.one_of(st.sampled_from([0.0, -1.0, 1.0, 1e-45, np.inf, np.nan]), st.floats(-4, 4))
CHOICES = st.integers(0, 10**6)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), CHOICES, KEY_BITS),
        st.tuples(st.just("pop"), CHOICES, st.just(0)),
        st.tuples(st.just("remove"), CHOICES, st.just(0)),
        st.tuples(st.just("rank"), st.lists(st.tuples(CHOICES, ERROR_VALUES), max_size=20), st.integers(0, 3)),
        st.tuples(st.just("renew"), st.lists(st.integers(0, CAPACITY - 1), max_size=9), KEY_BITS),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
        st.tuples(st.just("exchange"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.usefixtures("small_leaves")
@settings(max_examples=150)
@given(events=EVENTS, initial_bits=st.lists(KEY_BITS, max_size=CAPACITY))
def test_any_stream_of_events_leaves_the_same_keys_and_order_as_the_reference(
    events: list[tuple[str, object, int]], initial_bits: list[int]
) -> None:
    compiled_order, reference = _make_order(CAPACITY), RankedSlots(CAPACITY)
    for slot, bits in enumerate(initial_bits):
        compiled_order.insert(slot, bits)
        reference.insert(slot, bits)
    for kind, argument, option in events:
        held_slots = reference.sorted_slots().tolist()
        free_slots = sorted(set(range(CAPACITY)) - set(held_slots))
        if kind == "insert" and isinstance(argument, int) and free_slots:
            slot = free_slots[argument % len(free_slots)]
            compiled_order.insert(slot, option)
            reference.insert(slot, option)
        elif kind == "pop" and isinstance(argument, int) and held_slots:
            assert compiled_order.pop(argument % len(held_slots)) == reference.pop(argument % len(held_slots))
        elif kind == "remove" and isinstance(argument, int) and held_slots:
            compiled_order.remove(held_slots[argument % len(held_slots)])
            reference.remove(held_slots[argument % len(held_slots)])
        elif kind == "rank" and isinstance(argument, list) and held_slots:
            slots = np.array([held_slots[choice % len(held_slots)] for choice, _ in argument], np.int64)
            values = np.array([value for _, value in argument], np.float32)
            was_refused = [_rank_raises(order, slots, values, option) for order in (compiled_order, reference)]
            assert was_refused[0] == was_refused[1]
        elif kind == "renew" and isinstance(argument, list):
            compiled_order.renew(np.array(argument, np.int64), option)
            reference.renew(np.array(argument, np.int64), option)
        elif kind == "clear":
            compiled_order.load(np.zeros(CAPACITY, np.uint64))
            reference.load(np.zeros(CAPACITY, np.uint64))
        elif kind == "exchange":
            # Each restores the state of the other.
            compiled_keys, reference_keys = compiled_order.keys.copy(), reference.keys.copy()
            compiled_order, reference = _make_order(CAPACITY), RankedSlots(CAPACITY)
            compiled_order.load(reference_keys)
            reference.load(compiled_keys)
        assert np.array_equal(compiled_order.keys, reference.keys)
        assert len(compiled_order) == len(reference)
        assert np.array_equal(compiled_order.sorted_slots(), reference.sorted_slots())
        ranks = np.arange(len(reference))[::-1]
        assert np.array_equal(compiled_order.slots_at(ranks), reference.sorted_slots()[ranks])


def _rank_raises(
    order: CompiledRankedSlots | RankedSlots, slots: NDArray[np.int64], values: NDArray[np.float32], option: int
) -> bool:
    try:
        order.rank(slots, values, largest_first=bool(option & 1), keep_nan_rank=bool(option & 2))
    except ValueError:
        return True
    return False


def test_a_large_order_equals_the_reference_after_much_churn() -> None:
    n = 20_000
    rng = np.random.default_rng(0)
    compiled_order, reference = _make_order(n), RankedSlots(n)
    for order in (compiled_order, reference):
        order.renew(np.arange(n), 7)
    for step in range(3000):
        rank, bits = int(n * rng.random() ** 4), int(rng.integers(INFINITY_BITS)) if step % 2 else INFINITY_BITS
        slots, values = rng.integers(n, size=8), rng.exponential(size=8) ** 3
        for order in (compiled_order, reference):
            order.insert(order.pop(rank), bits)
            order.rank(slots, values)
    # More at once than fit into the arrays of a minibatch.
    slots, values = rng.integers(n, size=3000), rng.exponential(size=3000)
    for order in (compiled_order, reference):
        order.rank(slots, values)
        order.renew(slots[:1500], 3)
    assert np.array_equal(compiled_order.keys, reference.keys)
    assert np.array_equal(compiled_order.sorted_slots(), reference.sorted_slots())
    assert compiled_order.nbytes <= BYTES_PER_SLOT * n + 16_384


@pytest.mark.usefixtures("small_leaves")
def test_ranks_are_found_across_blocks_of_leaves() -> None:
    rng = np.random.default_rng(1)
    compiled_order, reference = _make_order(2000), RankedSlots(2000)
    for order in (compiled_order, reference):
        order.renew(np.arange(2000), 0)
    for _ in range(500):
        slots, values, rank = rng.integers(2000, size=5), rng.exponential(size=5), int(rng.integers(1990))
        for order in (compiled_order, reference):
            order.rank(slots, values, largest_first=True)
            order.insert(order.pop(rank), 3)
        ranks = rng.integers(2000, size=9)
        assert np.array_equal(compiled_order.slots_at(ranks), reference.sorted_slots()[ranks])
    assert np.array_equal(compiled_order.keys, reference.keys)


@settings(max_examples=60)
@given(memories=st.integers(1, 5), batch=st.integers(1, 7), updates=st.integers(1, 3), seed=st.integers(0, 1000))
def test_minibatches_of_several_memories_equal_those_of_the_reference(
    memories: int, batch: int, updates: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    compiled_order, reference = _make_orders(200, memories), Orders([RankedSlots(200) for _ in range(memories)])
    lengths = rng.integers(1, 9, (memories, batch))
    starts = np.cumsum(lengths, axis=1) - lengths
    for memory in range(memories):
        slots = rng.permutation(200)[: int(lengths[memory].sum()) + int(rng.integers(50))]
        compiled_order.orders_by_memory[memory].renew(slots, 0)
        reference.orders_by_memory[memory].renew(slots, 0)
    for _ in range(4):
        uniforms = rng.random((memories, updates * batch))
        drawn_slots = compiled_order.draw(uniforms, starts, lengths, updates)
        assert np.array_equal(drawn_slots, reference.draw(uniforms, starts, lengths, updates))
        td = rng.choice([rng.standard_normal(), 1.0, np.nan, np.inf], drawn_slots.shape)
        compiled_order.rank(drawn_slots, td)
        reference.rank(drawn_slots, td)
        for compiled_single, other in zip(compiled_order.orders_by_memory, reference.orders_by_memory, strict=True):
            assert np.array_equal(compiled_single.keys, other.keys)


def test_sequence_numbers_start_over_without_a_change_of_order() -> None:
    order = _make_order(10)
    order.renew(np.arange(10)[::-1], 5)
    order._struct.sequence = SEQUENCE_END
    slot = order.pop(0)
    order.insert(slot, 5)
    assert order.sorted_slots().tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0, 9]
    order._struct.sequence = SEQUENCE_END - 1
    order.renew(np.array([7, 6]), 5)
    assert order.sorted_slots().tolist() == [8, 5, 4, 3, 2, 1, 0, 9, 7, 6]


def test_out_of_range_values_are_refused_without_a_change() -> None:
    order = _make_order(4)
    order.insert(1, 5)
    keys_before = order.keys.copy()
    for slot, bits in ((-1, 0), (4, 0), (1, 0), (0, -1), (0, INFINITY_BITS + 1)):
        with pytest.raises(ValueError, match="outside"):
            order.insert(slot, bits)
    for rank in (-1, 1):
        with pytest.raises(ValueError, match="outside"):
            order.pop(rank)
        with pytest.raises(ValueError, match="outside"):
            order.slots_at(np.array([0, rank]))
    with pytest.raises(ValueError, match="a slot to move is not in the order"):
        order.remove(2)
    with pytest.raises(ValueError, match="a slot to move is not in the order"):
        order.rank(np.array([1, 2]), np.array([9.0, 9.0]))
    with pytest.raises(ValueError, match="outside"):
        order.renew(np.array([0, 4]), 0)
    assert np.array_equal(order.keys, keys_before)


def test_a_draw_beyond_the_ranks_is_refused() -> None:
    orders = _make_orders(9, 1)
    orders.orders_by_memory[0].renew(np.arange(3), 0)
    with pytest.raises(ValueError, match="outside"):
        orders.draw(np.array([[0.9]]), np.array([[0]]), np.array([[4]]), 1)
    with pytest.raises(ValueError, match="outside"):
        orders.draw(np.array([[np.nan]]), np.array([[0]]), np.array([[3]]), 1)
