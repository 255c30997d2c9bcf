from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Sampler
from onrig.learner.samplers.importance import LinearSchedule
from onrig.learner.samplers.rank_per import RankPer, segment_ends
from tests.runtime.replay.chi_square import follows_distribution


def _make_sampler(n_stored: int, capacity: int | None = None, seed: int = 0, **options: object) -> RankPer:
    sampler = RankPer(capacity or n_stored, np.random.default_rng(seed), **options)  # type: ignore[arg-type]
    sampler.on_write(np.arange(n_stored))
    return sampler


def _cumulative_law(n: int, alpha: float = 0.7) -> NDArray[np.float64]:
    return np.cumsum(np.arange(1.0, n + 1) ** -alpha)


def test_segments_of_ten_thousand_match_the_paper() -> None:
    # From the paper: C = 1e4, alpha = 0.7, S = 16.
    expected = [7, 28, 75, 160, 298, 503, 791, 1177, 1679, 2315, 3103, 4062, 5211, 6570, 8159, 10_000]
    assert segment_ends(_cumulative_law(10_000), 10_000, 16).tolist() == expected


@settings(max_examples=200)
@given(n_stored=st.integers(1, 3000), fraction=st.floats(0, 1), alpha=st.floats(0, 2))
def test_segments_cover_all_ranks_and_none_is_empty(n_stored: int, fraction: float, alpha: float) -> None:
    segments = max(1, round(fraction * min(n_stored, 64)))
    boundaries = segment_ends(_cumulative_law(3000, alpha), n_stored, segments)
    assert boundaries[-1] == n_stored
    assert boundaries[0] >= 1
    assert np.all(np.diff(boundaries) >= 1)


def test_rank_per_is_a_sampler_with_feedback() -> None:
    sampler: Sampler = _make_sampler(20)
    assert sampler.required_signals
    draw = sampler.draw(16)
    assert draw.slots.shape == (1, 16)
    assert draw.slots.dtype == np.int64
    assert draw.weights is None


@pytest.mark.parametrize(("n_stored", "batch", "updates"), [(7, 3, 6000), (1000, 16, 3000), (10_000, 16, 8000)])
def test_ranks_are_drawn_uniformly_from_each_segment(n_stored: int, batch: int, updates: int) -> None:
    sampler = _make_sampler(n_stored)
    errors = np.random.default_rng(1).permutation(n_stored).astype(np.float32) + 1
    sampler.on_update(np.arange(n_stored), Signals(errors * np.where(np.arange(n_stored) % 2, -1, 1)))
    ranks = n_stored - errors[sampler.draw(batch, updates).slots].astype(np.int64)  # 0 is the largest error
    boundaries = segment_ends(_cumulative_law(n_stored), n_stored, batch)
    assert np.array_equal(np.searchsorted(boundaries, ranks, "right"), np.broadcast_to(np.arange(batch), ranks.shape))
    lengths = np.diff(boundaries, prepend=0)
    assert follows_distribution(
        np.bincount(ranks.ravel(), minlength=n_stored), np.repeat(1 / (batch * lengths), lengths)
    )


def test_the_rank_distribution_holds_up_to_the_segments() -> None:
    sampler = _make_sampler(10_000)
    slots = sampler.draw(16, 4000).slots  # unseen: rank = age
    drawn_distribution = np.bincount(slots.ravel(), minlength=10_000).cumsum() / slots.size
    expected = _cumulative_law(10_000) / _cumulative_law(10_000)[-1]
    assert np.abs(drawn_distribution - expected).max() < 1 / 16


def test_unseen_experiences_come_first_oldest_first() -> None:
    sampler = _make_sampler(6, capacity=8, alpha=60.0)
    sampler.on_update(np.array([0, 3]), Signals(np.array([1e30, -2.0])))
    sampler.on_write(np.array([7, 1]))
    # Six segments of one rank, then the rest: the first slot of each row is rank 1, and so on.
    assert sampler.draw(7).slots[0].tolist() == [2, 4, 5, 7, 1, 0, 3]


def test_a_rewritten_slot_is_unseen_again() -> None:
    sampler = _make_sampler(4, alpha=60.0)
    sampler.on_update(np.arange(4), Signals(np.array([4.0, 3.0, 2.0, 1.0])))
    sampler.on_write(np.array([3]))
    assert sampler.draw(4).slots[0].tolist() == [3, 0, 1, 2]


def test_a_batch_is_distinct_even_if_it_is_the_complete_memory() -> None:
    for n_stored in (1, 5, 16):
        assert sorted(_make_sampler(n_stored).draw(n_stored).slots[0].tolist()) == list(range(n_stored))


def test_a_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw 16 distinct experiences from the 15 stored"):
        _make_sampler(15, capacity=100).draw(16)


def test_non_finite_errors_leave_the_rank_and_the_last_of_two_counts() -> None:
    sampler = _make_sampler(4, alpha=60.0)
    sampler.on_update(np.arange(4), Signals(np.array([4.0, 3.0, 2.0, 1.0])))
    sampler.on_update(np.array([0, 1, 1, 2]), Signals(np.array([np.nan, 9.0, 0.5, np.nan])))
    assert sampler.draw(4).slots[0].tolist() == [0, 2, 3, 1]


def test_weights_compensate_the_segments_exactly() -> None:
    n_stored, batch = 1000, 16
    sampler = _make_sampler(n_stored, capacity=4000, beta=LinearSchedule(0.5, 1.0, 10))
    lengths = np.diff(segment_ends(_cumulative_law(4000), n_stored, batch), prepend=0)
    for episode, beta in ((1, 0.5), (10, 1.0), (99, 1.0)):
        sampler.begin_episode(episode)
        weights = sampler.draw(batch, 3).weights
        assert weights is not None
        assert weights.dtype == np.float32
        # Stored count instead of capacity, exact marginal 1 / (S * length).
        assert np.allclose(weights, (batch * lengths / n_stored) ** beta, rtol=1e-6)
    # At beta = 1 the expectation is 1: one draw per segment, so the mean over a row is exactly that.
    assert weights is not None
    assert weights.mean(axis=1) == pytest.approx([1.0] * 3, rel=1e-6)


def test_beta_is_linear_over_the_episodes() -> None:
    beta = LinearSchedule(0.5, 1.0, 5)
    assert [beta.value_at(e) for e in (0, 1, 2, 3, 5, 6)] == [0.5, 0.5, 0.625, 0.75, 1.0, 1.0]
    assert LinearSchedule(0.5, 1.0, 1).value_at(1) == 1.0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("written"), st.lists(st.integers(0, 39), max_size=8)),
        st.tuples(st.just("updated"), st.lists(st.integers(0, 39), max_size=8)),
        st.tuples(st.just("draw"), st.just([0])),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(events=EVENTS, n_initial=st.integers(4, 40), seed=st.integers(0, 1000))
def test_any_stream_draws_like_a_sorted_list(events: list[tuple[str, list[int]]], n_initial: int, seed: int) -> None:
    """Reference: everything sorted by (-|td|, age) at each draw, with the same uniform numbers."""
    sampler = _make_sampler(n_initial, capacity=40, seed=seed)
    uniforms = np.random.default_rng(seed)
    errors = np.random.default_rng(seed + 1)
    memory = {slot: (-np.inf, slot) for slot in range(n_initial)}
    clock = n_initial
    for kind, event_slots in events:
        if kind == "written":
            for slot in event_slots:
                memory[slot] = (-np.inf, clock)
                clock += 1
            sampler.on_write(np.array(event_slots, np.int64))
        elif kind == "updated":
            slots = [s for s in event_slots if s in memory]
            values = errors.integers(-3, 4, size=len(slots)).astype(np.float64)
            for slot, value in zip(slots, values.tolist(), strict=True):
                memory[slot] = (-abs(value), memory[slot][1])
            sampler.on_update(np.array(slots, np.int64), Signals(values))
        else:
            order = sorted(memory, key=memory.__getitem__)
            boundaries = segment_ends(_cumulative_law(40), len(order), 4)
            starts = np.concatenate(([0], boundaries[:-1]))
            ranks = starts + (uniforms.random(4) * (boundaries - starts)).astype(np.int64)
            assert sampler.draw(4).slots[0].tolist() == [order[r] for r in ranks]


def test_batched_draws_equal_single_draws() -> None:
    first, second = (
        _make_sampler(3000, beta=LinearSchedule(0.5, 1.0, 3)),
        _make_sampler(3000, beta=LinearSchedule(0.5, 1.0, 3)),
    )
    batched, single_draws = first.draw(24, 300), [second.draw(24) for _ in range(300)]
    assert np.array_equal(batched.slots, np.concatenate([d.slots for d in single_draws]))
    assert batched.weights is not None
    assert np.array_equal(batched.weights, np.concatenate([d.weights for d in single_draws if d.weights is not None]))


def test_a_restored_sampler_makes_the_same_next_thousand_draws() -> None:
    original = _make_sampler(700, capacity=1000, seed=1, beta=LinearSchedule(0.5, 1.0, 9))
    restored = _make_sampler(20, capacity=1000, seed=2, beta=LinearSchedule(0.5, 1.0, 9))
    rng = np.random.default_rng(3)
    original.begin_episode(4)
    for _ in range(50):
        original.on_update(original.draw(16).slots[0], Signals(rng.standard_normal(16)))
    restored.restore({name: array.copy() for name, array in original.state().items()})
    for i in range(1000):
        a, b = original.draw(16), restored.draw(16)
        assert np.array_equal(a.slots, b.slots)
        assert a.weights is not None
        assert b.weights is not None
        assert np.array_equal(a.weights, b.weights)
        td = rng.standard_normal(16)
        for sampler in (original, restored):
            sampler.on_update(a.slots[0], Signals(td))
            sampler.on_write(np.array([i % 1000]))
