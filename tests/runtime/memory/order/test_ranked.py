from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.memory.order import compiled, leaves, ranked
from onrig.runtime.memory.order.ranked import BYTES_PER_SLOT, INFINITY_BITS, RankedSlots, float_bits

CAPACITY = 60


@pytest.fixture(params=[0, ranked.MERGE_DIVISOR], ids=["one by one", "merged"])
def small_leaves(request: pytest.FixtureRequest) -> Iterator[None]:
    """So that splits, merges and several blocks occur within a few dozen entries, and both ways of moving them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranked, "MERGE_DIVISOR", request.param)
        for module in (ranked, leaves, compiled):
            for name, value in (("LEAF", 8), ("LEAST", 3), ("MERGED", 6), ("BLOCK", 4), ("FLAT", 16)):
                patch.setattr(module, name, value, raising=False)
        yield


KEY_BITS = st.one_of(st.sampled_from([0, 1, INFINITY_BITS]), st.integers(0, INFINITY_BITS))
CHOICES = st.integers(0, 10**6)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), CHOICES, KEY_BITS),
        st.tuples(st.just("insert"), CHOICES, KEY_BITS),
        st.tuples(st.just("pop"), CHOICES, st.just(0)),
        st.tuples(st.just("remove"), CHOICES, st.just(0)),
        st.tuples(st.just("move"), st.lists(st.tuples(CHOICES, KEY_BITS), max_size=20), st.just(0)),
        st.tuples(st.just("renew"), st.lists(st.integers(0, CAPACITY - 1), max_size=6), KEY_BITS),
        st.tuples(st.just("load"), CHOICES, st.just(0)),
    ),
    max_size=120,
)


class SortedListOrder:
    """A sorted list of (bits, sequence, slot)."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []
        self.sequence = 0

    def insert(self, slot: int, bits: int) -> None:
        self.entries = sorted([e for e in self.entries if e[2] != slot] + [(bits, self.sequence, slot)])
        self.sequence += 1

    def move(self, slot: int, bits: int) -> None:
        self.entries = sorted((bits if s == slot else b, q, s) for b, q, s in self.entries)

    def slots(self) -> list[int]:
        return [s for _, _, s in self.entries]


@pytest.mark.usefixtures("small_leaves")
@settings(max_examples=120)
@given(events=EVENTS)
def test_any_stream_of_events_leaves_the_order_of_a_sorted_list(events: list[tuple[str, object, int]]) -> None:
    order, expected = RankedSlots(CAPACITY), SortedListOrder()
    for kind, argument, bits in events:
        slots = expected.slots()
        if kind == "insert" and isinstance(argument, int) and len(slots) < CAPACITY:
            slot = sorted(set(range(CAPACITY)) - set(slots))[argument % (CAPACITY - len(slots))]
            order.insert(slot, bits)
            expected.insert(slot, bits)
        elif kind in ("pop", "remove") and isinstance(argument, int) and slots:
            rank = argument % len(slots)
            if kind == "pop":
                assert order.pop(rank) == slots[rank]
            else:
                order.remove(slots[rank])
            del expected.entries[rank]
        elif kind == "move" and isinstance(argument, list) and slots:
            new_bits = {slots[choice % len(slots)]: b for choice, b in argument}
            order.move(np.array(list(new_bits), np.int64), np.array(list(new_bits.values()), np.uint32))
            for slot, b in new_bits.items():
                expected.move(slot, b)
        elif kind == "renew" and isinstance(argument, list):
            order.renew(np.array(argument, np.int64), bits)
            for slot in argument:
                expected.insert(slot, bits)
        elif kind == "load":
            order.load(order.keys.copy())
        slots = expected.slots()
        assert len(order) == len(slots)
        if slots:
            probed_ranks = np.array([0, len(slots) // 2, len(slots) - 1])
            assert order.slots_at(probed_ranks[:1]).tolist() == slots[:1]
            assert order.slots_at(probed_ranks).tolist() == [slots[i] for i in probed_ranks]
        assert order.sorted_slots().tolist() == slots


def test_a_large_order_equals_a_sort_after_much_churn() -> None:
    n = 20_000
    rng = np.random.default_rng(0)
    order = RankedSlots(n)
    keys = np.empty(n, np.float32)
    age = np.empty(n, np.int64)
    clock = 0

    def insert(slot: int, value: float) -> None:
        nonlocal clock
        keys[slot], age[slot], clock = value, clock, clock + 1
        order.insert(slot, int(float_bits(keys[slot : slot + 1])[0]))

    for slot in range(n):
        insert(slot, float(rng.integers(50)) if slot % 3 else rng.random())
    for step in range(3000):
        # The low ranks empty and the high ones fill up, as in a keeper.
        insert(order.pop(int(n * rng.random() ** 4)), np.inf if step % 2 else rng.random() * 50)
        moved_slots = np.unique(rng.integers(n, size=8))
        keys[moved_slots] = rng.exponential(size=len(moved_slots)) ** 3
        order.move(moved_slots, float_bits(keys[moved_slots]))
    assert np.array_equal(order.sorted_slots(), np.lexsort((age, keys)))
    order._flat_slots = None
    ranks = rng.integers(n, size=16)
    assert np.array_equal(order.slots_at(ranks), order.sorted_slots()[ranks])
    assert order.nbytes <= BYTES_PER_SLOT * n + 65_536
    assert max(map(len, order._keys)) <= leaves.MAX_LEAF_ENTRIES
    assert min(map(len, order._keys)) >= leaves.MIN_LEAF_ENTRIES


@pytest.mark.usefixtures("small_leaves")
def test_every_rank_is_found_after_every_removal() -> None:
    full_order = RankedSlots(CAPACITY)
    for slot in range(CAPACITY):
        full_order.insert(slot, slot)
    keys = full_order.keys.copy()
    order = RankedSlots(CAPACITY)
    for first_rank in range(CAPACITY):
        order.load(keys)
        assert order.pop(first_rank) == first_rank
        left = [slot for slot in range(CAPACITY) if slot != first_rank]
        for second_rank in sorted(
            {0, max(first_rank - 1, 0), min(first_rank, CAPACITY - 2), CAPACITY // 2}, reverse=True
        ):
            assert order.pop(second_rank) == left.pop(second_rank)


def test_ties_are_in_insertion_order_and_a_moved_key_keeps_its_age() -> None:
    order = RankedSlots(5)
    for slot in (3, 1, 4, 0, 2):
        order.insert(slot, 7)
    order.move(np.array([3]), np.array([9], np.uint32))
    assert order.sorted_slots().tolist() == [1, 4, 0, 2, 3]
    order.move(np.array([3]), np.array([7], np.uint32))
    assert order.sorted_slots().tolist() == [3, 1, 4, 0, 2]


def test_sequence_numbers_start_over_without_a_change_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "SEQUENCE_END", 40)
    order, reference = RankedSlots(10), list(range(10))
    for slot in range(10):
        order.insert(slot, 0)
    for _ in range(200):
        slot = order.pop(0)
        assert slot == reference.pop(0)
        order.insert(slot, 0)
        reference.append(slot)
    assert order.sorted_slots().tolist() == reference


def test_the_order_of_bits_is_that_of_the_values_and_denormals_are_distinct() -> None:
    values = np.array([0.0, 1e-45, -3e-45, 1e-38, 0.1, -0.10000001, 1.0, 3.4e38, np.inf], np.float32)
    bits = float_bits(values)
    assert np.all(np.diff(bits.astype(np.int64)) > 0)
    assert bits[-1] == INFINITY_BITS
    order = RankedSlots(9)
    for slot in (4, 0, 8, 2, 6, 1, 3, 7, 5):
        order.insert(slot, int(bits[slot]))
    assert order.sorted_slots().tolist() == list(range(9))


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="a value is NaN"):
        float_bits(np.array([1.0, np.nan], np.float32))


def test_moving_a_missing_key_is_refused_without_a_change() -> None:
    order = RankedSlots(4)
    order.insert(1, 5)
    with pytest.raises(ValueError, match="a slot to move is not in the order"):
        order.move(np.array([1, 2]), np.array([9, 9], np.uint32))
    assert order.keys.tolist() == [0, (5 + 0x00100000) << 32, 0, 0]


def test_foreign_keys_are_refused() -> None:
    order = RankedSlots(4)
    with pytest.raises(ValueError, match="shape"):
        order.load(np.zeros(5, np.uint64))
    with pytest.raises(ValueError, match="same sequence number"):
        order.load(np.full(4, 1 << 60, np.uint64))
