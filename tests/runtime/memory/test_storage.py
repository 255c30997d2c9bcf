from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.memory.layout import Batch, Flag, Layout
from onrig.runtime.memory.storage import N_RECENT_WRITES, Storage, max_transitions


def _insert(storage: Storage, slot: int, value: float, flags: int = 0, policy_id: int = 0) -> int:
    n, m = storage.layout.n_obs, storage.layout.n_act
    return storage.insert(slot, [value] * n, [-value] * m, value / 2, [value + 1] * n, flags, policy_id, value / 4)


def test_inserted_experiences_are_gathered() -> None:
    storage = Storage(5, Layout(3, 2))
    storage.insert(
        2, np.array([1.0, 2.0, 3.0], np.float32), [4.0, 5.0], 6.0, (7.0, 8.0, 9.0), Flag.TERMINATED, 77, 0.25, 3, 199
    )
    batch = storage.gather(np.array([2, 0]), Batch(storage.layout, 2))
    assert batch.observation.tolist() == [[1, 2, 3], [0, 0, 0]]
    assert batch.action.tolist() == [[4, 5], [0, 0]]
    assert batch.reward.tolist() == [6, 0]
    assert batch.next_observation.tolist() == [[7, 8, 9], [0, 0, 0]]
    assert batch.exploration.tolist() == [0.25, 0]
    assert batch.terminated().tolist() == [True, False]
    assert batch.generation().tolist() == [1, 0]
    assert (batch.meta >> 16).tolist() == [77, 0]
    assert (batch.episode.tolist(), batch.step.tolist()) == ([3, 0], [199, 0])
    assert batch.behaviour.shape == (2, 0)


def test_rows_of_a_stochastic_policy_also_hold_its_distribution_and_draw() -> None:
    plain_layout, layout = Layout(2, 2), Layout(2, 2, behaviour=True)
    assert layout.width == plain_layout.width + 6
    first, other = Storage(3, layout), Storage(3, layout)
    for storage, drawn_action in ((first, 7.0), (other, 6.0)):
        storage.insert(0, [1, 2], [3, 4], 5, [6, 7], 31, 8, 9, 10, 11, [1.0, 2.0, 3.0, 4.0, 5.0, drawn_action])
    batch = first.gather(np.array([0]), Batch(layout, 1))
    assert batch.behaviour.tolist() == [[1, 2, 3, 4, 5, 7]]
    assert (batch.reward[0], batch.exploration[0], batch.episode[0], batch.step[0]) == (5, 9, 10, 11)
    assert int(batch.meta[0]) == 8 << 16 | 1 << 5 | 31
    assert first.digest() != other.digest()


@pytest.mark.parametrize(("n_obs", "n_act"), [(2, 1), (17, 6)])
def test_cyclic_storage_takes_the_raw_floats_and_three_words(n_obs: int, n_act: int) -> None:
    storage = Storage(1000, Layout(n_obs, n_act))
    assert storage.nbytes == 1000 * 4 * (2 * n_obs + n_act + 2 + 3)


def test_other_storage_takes_eight_more_bytes_and_a_fixed_ring() -> None:
    storage = Storage(10_000, Layout(2, 1), cyclic=False)
    assert storage.nbytes == 10_000 * (Layout(2, 1).row_bytes + 8) + 8 * N_RECENT_WRITES


def test_capacity_fits_the_budget() -> None:
    assert max_transitions(40 * 100 + 39, Layout(2, 1)) == 100
    assert max_transitions(1000, Layout(2, 1), overhead_bytes=10) == 20
    with pytest.raises(ValueError, match="hold no transition"):
        max_transitions(39, Layout(2, 1))


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_empty_shapes_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot store"):
        Storage(shape[0], Layout(*shape[1:]))


def test_errors_of_rewritten_slots_are_recognised() -> None:
    storage = Storage(3, Layout(1, 1))
    for i in range(5):
        _insert(storage, i % 3, i)
    slots = np.array([0, 0, 1, 2, 2, 3, -1])
    generations = np.array([2, 1, 2, 1, 2, 0, 1], np.uint32)
    assert storage.is_current(slots, generations).tolist() == [True, False, True, True, False, False, False]


def test_the_generation_wraps_at_2048_without_side_effects() -> None:
    storage = Storage(1, Layout(1, 1))
    for i in range(2049):
        _insert(storage, 0, i, policy_id=i, flags=i)
    meta = int(storage.meta[0])
    assert (meta & 0x1F, meta >> 5 & 0x7FF, meta >> 16) == (0, 1, 2048)
    _insert(storage, 0, 0.0, policy_id=65537, flags=int(Flag.SYNTHETIC))
    meta = int(storage.meta[0])
    assert (meta & 0x1F, meta >> 5 & 0x7FF, meta >> 16) == (8, 2, 1)


def test_the_mirror_keeps_every_bit_even_of_a_signalling_nan() -> None:
    storage, mirror = Storage(2, Layout(1, 1)), Storage(2, Layout(1, 1))
    _insert(storage, 0, 1.0)
    storage.words[0, 0] = 0x7F800001
    mirror.write_rows(storage.rows(np.array([0])))
    assert mirror.words[0, 0] == 0x7F800001
    assert mirror.digest() == storage.digest()


@st.composite
def _streams(draw: st.DrawFn) -> tuple[int, bool, list[int]]:
    capacity = draw(st.integers(1, 12))
    cyclic = draw(st.booleans())
    length = draw(st.integers(1, 60))
    slots = [i % capacity if cyclic or i < capacity else draw(st.integers(0, capacity - 1)) for i in range(length)]
    return capacity, cyclic, slots


@settings(max_examples=150)
@given(stream=_streams(), sync_points=st.sets(st.integers(0, 60)), limit=st.integers(1, 15), ring=st.integers(1, 8))
def test_a_mirror_that_catches_up_occasionally_is_equal(
    stream: tuple[int, bool, list[int]], sync_points: set[int], limit: int, ring: int
) -> None:
    capacity, cyclic, slots = stream
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onrig.runtime.memory.storage.N_RECENT_WRITES", ring)
        storage = Storage(capacity, Layout(2, 1), cyclic=cyclic)
        mirror = Storage(capacity, Layout(2, 1), cyclic=cyclic)
        second_mirror = Storage(capacity, Layout(2, 1), cyclic=cyclic)
    last_number: dict[int, int] = {}
    for i, slot in enumerate(slots):
        assert _insert(storage, slot, float(i), policy_id=i) == i + 1
        last_number[slot] = i + 1
        assert storage.stored == len(last_number)
        if i in sync_points:
            n_mirrored = mirror.inserted
            changed = storage.changed_since(n_mirrored)
            assert changed.tolist() == [s for n, s in sorted((n, s) for s, n in last_number.items()) if n > n_mirrored]
            assert mirror.write_rows(storage.rows(changed)).tolist() == changed.tolist()
            assert mirror.digest() == storage.digest()
            assert np.array_equal(mirror.number(np.arange(capacity)), storage.number(np.arange(capacity)))
            # A mirror of the mirror, piece by piece.
            while second_mirror.inserted < mirror.inserted:
                changed_slots = mirror.changed_since(second_mirror.inserted, limit)
                assert 0 < len(changed_slots) <= limit
                second_mirror.write_rows(mirror.rows(changed_slots))
            assert second_mirror.digest() == storage.digest()


def test_a_late_mirror_of_a_long_run_takes_each_slot_once() -> None:
    rng = np.random.default_rng(0)
    storage = Storage(3000, Layout(1, 1), cyclic=False)
    for i in range(10_000):
        _insert(storage, i if i < 3000 else int(rng.integers(3000)), i)
    order = storage.changed_since(0)
    assert sorted(order.tolist()) == list(range(3000))
    assert np.all(np.diff(storage.observation[order, 0]) > 0)
    assert np.array_equal(storage.changed_since(0, 100), order[:100])
    assert np.array_equal(storage.changed_since(9000), storage.changed_since(0)[storage.number(order) > 9000])


def test_the_digest_covers_contents_and_count() -> None:
    first, other = Storage(4, Layout(1, 1)), Storage(4, Layout(1, 1))
    assert first.digest() == other.digest()
    _insert(first, 0, 1.0)
    _insert(other, 0, 1.0)
    assert first.digest() == other.digest()
    other.words[0, 2] ^= 1
    assert first.digest() != other.digest()
    other.words[0, 2] ^= 1
    _insert(other, 1, 1.0)
    assert first.digest() != other.digest()


def test_misplaced_or_out_of_order_rows_are_refused_without_a_change() -> None:
    storage, mirror = Storage(4, Layout(1, 1)), Storage(4, Layout(1, 1))
    for i in range(4):
        _insert(storage, i, i)
    rows = storage.rows(np.arange(4))
    mirror.write_rows(rows[:2])
    before = mirror.digest()
    misplaced = rows[2:].copy()
    misplaced[:, 0] = [9, 10]
    out_of_order = rows[2:].copy()
    out_of_order[:, 0] = [3, 2]
    for bad_rows in (rows[:2], rows[:1], rows[[3, 2]], rows[[2, 2]], rows[2:, 1:], misplaced, out_of_order):
        with pytest.raises(ValueError, match=r"row"):
            mirror.write_rows(bad_rows)
    assert mirror.digest() == before
    mirror.write_rows(rows[2:])
    assert mirror.digest() == storage.digest()


def test_a_mirror_ahead_of_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="has 1 writes, but the storage only 0"):
        Storage(4, Layout(1, 1)).changed_since(1)
