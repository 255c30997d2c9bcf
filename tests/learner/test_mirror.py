from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.mirror import Mirror
from onrig.learner.samplers import Draw
from onrig.runtime.memory.layout import Flag, Layout
from onrig.runtime.memory.storage import Storage

CAPACITY, N, M = 16, 2, 1


def insert(storage: Storage, count: int, rng: np.random.Generator) -> None:
    """Write ``count`` experiences: in turn, or anywhere once the buffer is full."""
    for _ in range(count):
        slot = storage.inserted % CAPACITY
        if not storage.cyclic and storage.inserted >= CAPACITY:
            slot = int(rng.integers(CAPACITY))
        x = rng.standard_normal(2 * N + M + 2).tolist()
        flag = Flag(int(rng.integers(4)))
        storage.insert(slot, x[:N], x[N : N + M], x[-1], x[N + M : -2], flag, storage.inserted, abs(x[-2]))


def payload(storage: Storage, since_number: int, limit: int | None = None) -> tuple[bytes, int]:
    slots = storage.changed_since(since_number, limit)
    newest = int(storage.number(slots[-1:])[0]) if len(slots) else storage.inserted
    return storage.rows(slots).astype("<u4").tobytes(), newest


@pytest.mark.parametrize("cyclic", [True, False])
@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=5), st.integers(0, 99))
def test_the_mirror_becomes_the_rigs_memory_however_far_behind_it_is(
    cyclic: bool, steps: list[tuple[int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rig, mirror = Storage(CAPACITY, Layout(N, M), cyclic=cyclic), Mirror(CAPACITY, Layout(N, M), cyclic=cyclic)
    for count, limit in steps:
        insert(rig, count, rng)
        while mirror.storage.inserted < rig.inserted:
            mirror.apply(*payload(rig, mirror.storage.inserted, limit))
        assert mirror.storage.digest() == rig.digest()


def test_written_slots_are_reported_in_order() -> None:
    rig, mirror = Storage(CAPACITY, Layout(N, M)), Mirror(CAPACITY, Layout(N, M), cyclic=True)
    insert(rig, 20, np.random.default_rng(0))
    assert mirror.apply(*payload(rig, 0)).tolist() == [*range(4, 16), *range(4)]
    assert mirror.apply(b"", 20).tolist() == []


def test_rows_that_do_not_continue_the_mirror_are_refused_and_change_nothing() -> None:
    rig, mirror = Storage(CAPACITY, Layout(N, M)), Mirror(CAPACITY, Layout(N, M), cyclic=True)
    insert(rig, 5, np.random.default_rng(0))
    rows, newest = payload(rig, 0)
    mirror.apply(rows, newest)
    digest_before = mirror.storage.digest()
    for bad_rows in (rows, rows[:-4], rows[:-3], rows + rows):
        with pytest.raises(ValueError, match=r"continue|multiple of the row width|buffer size"):
            mirror.apply(bad_rows, newest)
        assert mirror.storage.digest() == digest_before


def test_rows_that_do_not_end_where_the_rig_says_are_refused() -> None:
    rig, mirror = Storage(CAPACITY, Layout(N, M)), Mirror(CAPACITY, Layout(N, M), cyclic=True)
    insert(rig, 5, np.random.default_rng(0))
    with pytest.raises(ValueError, match="end at write 5, but the rig reports 6"):
        mirror.apply(payload(rig, 0)[0], 6)


def test_gathering_for_view_does_not_change_earlier_minibatches() -> None:
    rig, mirror = Storage(CAPACITY, Layout(N, M)), Mirror(CAPACITY, Layout(N, M), cyclic=True)
    insert(rig, CAPACITY, np.random.default_rng(0))
    mirror.apply(*payload(rig, 0))
    minibatches, _ = mirror.gather(Draw(np.arange(6).reshape(2, 3), None))
    observation_before = minibatches.observation.copy()
    mirror.gather(Draw(np.arange(6, 12).reshape(1, 6), None), for_view=True)
    assert np.array_equal(minibatches.observation, observation_before)


def test_gathering_for_view_returns_the_next_observation_for_any_length_of_returns() -> None:
    layout = Layout(1, 1)
    rig, mirror = Storage(CAPACITY, layout), Mirror(CAPACITY, layout, cyclic=True, successors=3)
    for i in range(5):
        rig.insert(i, [i], [0.0], 1.0, [i + 1], episode=1, step=i)
    mirror.apply(*payload(rig, 0))
    draw = Draw(np.array([[0, 2]]), None)
    assert mirror.gather(draw)[0].next_observation.ravel().tolist() == [3, 5]
    view_minibatches, _ = mirror.gather(draw, for_view=True)
    assert view_minibatches.next_observation.ravel().tolist() == [1, 3]
    assert view_minibatches.rewards is None


def test_minibatches_hold_the_drawn_experiences_and_the_generations_of_their_slots() -> None:
    rig, mirror = Storage(CAPACITY, Layout(N, M)), Mirror(CAPACITY, Layout(N, M), cyclic=True)
    insert(rig, 20, np.random.default_rng(3))
    mirror.apply(*payload(rig, 0))
    slots = np.array([[0, 5, 3], [15, 4, 0]])
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    batches, generations = mirror.gather(Draw(slots, weights))
    assert batches.observation.shape == batches.next_observation.shape == (2, 1, 3, N)
    assert batches.action.shape == (2, 1, 3, M)
    np.testing.assert_array_equal(batches.observation[:, 0], rig.observation[slots])
    np.testing.assert_array_equal(batches.action[:, 0], rig.action[slots])
    np.testing.assert_array_equal(batches.next_observation[:, 0], rig.next_observation[slots])
    np.testing.assert_array_equal(batches.reward[:, 0], rig.reward[slots])
    np.testing.assert_array_equal(batches.terminated[:, 0], (rig.meta[slots] & Flag.TERMINATED) != 0)
    assert batches.weights is not None
    np.testing.assert_array_equal(batches.weights[:, 0], weights)
    assert generations.tolist() == [2, 1, 2, 1, 1, 2]
    assert mirror.gather(Draw(slots, None))[0].weights is None


def test_a_truncated_episode_is_not_terminated() -> None:
    mirror = Mirror(4, Layout(1, 1), cyclic=True)
    for flag in (0, Flag.TRUNCATED, Flag.TERMINATED, Flag.INTERVENED):
        mirror.storage.insert(mirror.storage.inserted, [0.0], [0.0], 0.0, [0.0], flag)
    batches, _ = mirror.gather(Draw(np.arange(4).reshape(1, 4), None))
    assert batches.terminated.tolist() == [[[False, False, True, False]]]


@pytest.mark.parametrize("sampling", [None, [0.5, 2.0, 1.0]])
def test_experiences_with_a_shield_intervention_have_their_configured_weight(sampling: list[float] | None) -> None:
    mirror = Mirror(4, Layout(1, 1), cyclic=True, intervened_weight=0.25)
    for slot, flag in enumerate((Flag.INTERVENED, Flag(0), Flag.INTERVENED | Flag.TERMINATED)):
        mirror.storage.insert(slot, [0.0], [0.0], 0.0, [0.0], flag, 1, 0.0)
    weights = None if sampling is None else np.array([sampling])
    minibatches, _ = mirror.gather(Draw(np.array([[0, 1, 2]]), weights))
    assert minibatches.weights is not None
    expected = np.array([0.25, 1.0, 0.25]) * (1.0 if sampling is None else np.array(sampling))
    np.testing.assert_allclose(minibatches.weights, expected[None, None])


def test_without_a_configured_weight_nothing_is_weighted() -> None:
    mirror = Mirror(4, Layout(1, 1), cyclic=True)
    mirror.storage.insert(0, [0.0], [0.0], 0.0, [0.0], Flag.INTERVENED, 1, 0.0)
    minibatches, _ = mirror.gather(Draw(np.array([[0]]), None))
    assert minibatches.weights is None


def test_windows_consist_of_successive_experiences_and_end_at_a_missing_one() -> None:
    rig, mirror = Storage(8, Layout(1, 1)), Mirror(8, Layout(1, 1), cyclic=True, successors=3)
    flags = {3: Flag.TERMINATED, 5: Flag.SYNTHETIC}
    for slot, step in enumerate((0, 1, 2, 3, 0, 1, 2)):
        episode = 1 if slot < 4 else 2
        value = 10.0 * episode + step
        rig.insert(slot, [value], [0.0], value, [value + 1], flags.get(slot, Flag(0)), 1, 0.0, episode, step)
    mirror.apply(*payload(rig, 0))
    slots = np.array([[0, 2, 3], [4, 5, 6]])
    mirror_with_window = Mirror(8, Layout(1, 1), cyclic=True, window=3)
    mirror_with_window.apply(*payload(rig, 0))
    window = mirror_with_window.gather(Draw(slots, None))[0].window
    assert window is not None
    assert window.observation[0, 0, ..., 0].tolist() == [[10, 10, 10], [12, 11, 10], [13, 12, 11]]
    assert window.is_present[0, 0].sum(axis=-1).tolist() == [1, 3, 3]
    assert window.is_present[1, 0].sum(axis=-1).tolist() == [1, 1, 1]
    minibatches, _ = mirror.gather(Draw(slots, None))
    assert minibatches.rewards is not None
    assert minibatches.lengths is not None
    assert minibatches.rewards[0, 0].tolist() == [[10, 11, 12], [12, 13, 0], [13, 0, 0]]
    assert minibatches.rewards[1, 0].tolist() == [[20, 0, 0], [21, 0, 0], [22, 0, 0]]
    assert minibatches.lengths[:, 0].tolist() == [[3, 2, 1], [1, 1, 1]]
    assert minibatches.next_observation[:, 0, :, 0].tolist() == [[13, 14, 14], [21, 22, 23]]
    assert minibatches.terminated[:, 0].tolist() == [[False, True, True], [False] * 3]
