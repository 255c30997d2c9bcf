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


def _per(stored: int, capacity: int | None = None, seed: int = 0, **options: object) -> RankPer:
    per = RankPer(capacity or stored, np.random.default_rng(seed), **options)  # type: ignore[arg-type]
    per.on_write(np.arange(stored))
    return per


def _cumulative(n: int, alpha: float = 0.7) -> NDArray[np.float64]:
    return np.cumsum(np.arange(1.0, n + 1) ** -alpha)


def test_segments_of_ten_thousand_are_those_of_the_paper() -> None:
    # Of the paper: C = 1e4, alpha = 0.7, S = 16.
    expected = [7, 28, 75, 160, 298, 503, 791, 1177, 1679, 2315, 3103, 4062, 5211, 6570, 8159, 10_000]
    assert segment_ends(_cumulative(10_000), 10_000, 16).tolist() == expected


@settings(max_examples=200)
@given(stored=st.integers(1, 3000), share=st.floats(0, 1), alpha=st.floats(0, 2))
def test_segments_cover_all_ranks_and_none_is_empty(stored: int, share: float, alpha: float) -> None:
    segments = max(1, round(share * min(stored, 64)))
    ends = segment_ends(_cumulative(3000, alpha), stored, segments)
    assert ends[-1] == stored
    assert ends[0] >= 1
    assert np.all(np.diff(ends) >= 1)


def test_rank_per_is_a_sampler_that_wants_feedback() -> None:
    sampler: Sampler = _per(20)
    assert sampler.required_signals
    draw = sampler.draw(16)
    assert draw.slots.shape == (1, 16)
    assert draw.slots.dtype == np.int64
    assert draw.weights is None


@pytest.mark.parametrize(("stored", "batch", "updates"), [(7, 3, 6000), (1000, 16, 3000), (10_000, 16, 8000)])
def test_ranks_are_drawn_uniformly_from_each_segment(stored: int, batch: int, updates: int) -> None:
    per = _per(stored)
    errors = np.random.default_rng(1).permutation(stored).astype(np.float32) + 1
    per.on_update(np.arange(stored), Signals(errors * np.where(np.arange(stored) % 2, -1, 1)))
    ranks = stored - errors[per.draw(batch, updates).slots].astype(np.int64)  # 0 is the largest error
    ends = segment_ends(_cumulative(stored), stored, batch)
    assert np.array_equal(np.searchsorted(ends, ranks, "right"), np.broadcast_to(np.arange(batch), ranks.shape))
    lengths = np.diff(ends, prepend=0)
    assert follows_distribution(np.bincount(ranks.ravel(), minlength=stored), np.repeat(1 / (batch * lengths), lengths))


def test_the_rank_law_is_met_up_to_the_segments() -> None:
    per = _per(10_000)
    slots = per.draw(16, 4000).slots  # unseen: rank = age
    drawn = np.bincount(slots.ravel(), minlength=10_000).cumsum() / slots.size
    law = _cumulative(10_000) / _cumulative(10_000)[-1]
    assert np.abs(drawn - law).max() < 1 / 16


def test_the_unseen_come_first_the_oldest_before_the_others() -> None:
    per = _per(6, capacity=8, alpha=60.0)
    per.on_update(np.array([0, 3]), Signals(np.array([1e30, -2.0])))
    per.on_write(np.array([7, 1]))
    # Six segments of one rank, then the rest: the first slot of each row is rank 1, and so on.
    assert per.draw(7).slots[0].tolist() == [2, 4, 5, 7, 1, 0, 3]


def test_a_rewritten_slot_is_unseen_again() -> None:
    per = _per(4, alpha=60.0)
    per.on_update(np.arange(4), Signals(np.array([4.0, 3.0, 2.0, 1.0])))
    per.on_write(np.array([3]))
    assert per.draw(4).slots[0].tolist() == [3, 0, 1, 2]


def test_a_batch_is_distinct_even_when_it_is_the_whole_memory() -> None:
    for stored in (1, 5, 16):
        assert sorted(_per(stored).draw(stored).slots[0].tolist()) == list(range(stored))


def test_too_small_a_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw 16 distinct experiences from the 15 stored"):
        _per(15, capacity=100).draw(16)


def test_errors_that_are_no_numbers_leave_the_rank_and_the_last_of_two_counts() -> None:
    per = _per(4, alpha=60.0)
    per.on_update(np.arange(4), Signals(np.array([4.0, 3.0, 2.0, 1.0])))
    per.on_update(np.array([0, 1, 1, 2]), Signals(np.array([np.nan, 9.0, 0.5, np.nan])))
    assert per.draw(4).slots[0].tolist() == [0, 2, 3, 1]


def test_weights_undo_the_segments_exactly() -> None:
    stored, batch = 1000, 16
    per = _per(stored, capacity=4000, beta=LinearSchedule(0.5, 1.0, 10))
    lengths = np.diff(segment_ends(_cumulative(4000), stored, batch), prepend=0)
    for episode, beta in ((1, 0.5), (10, 1.0), (99, 1.0)):
        per.begin_episode(episode)
        weights = per.draw(batch, 3).weights
        assert weights is not None
        assert weights.dtype == np.float32
        # Stored count instead of capacity, exact marginal 1 / (S * length).
        assert np.allclose(weights, (batch * lengths / stored) ** beta, rtol=1e-6)
    # At beta = 1 the expectation is 1: one draw per segment, so the mean over a row is exactly that.
    assert weights is not None
    assert weights.mean(axis=1) == pytest.approx([1.0] * 3, rel=1e-6)


def test_beta_goes_linearly_over_the_episodes() -> None:
    beta = LinearSchedule(0.5, 1.0, 5)
    assert [beta.value_at(e) for e in (0, 1, 2, 3, 5, 6)] == [0.5, 0.5, 0.625, 0.75, 1.0, 1.0]
    assert LinearSchedule(0.5, 1.0, 1).value_at(1) == 1.0


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("written"), st.lists(st.integers(0, 39), max_size=8)),
        st.tuples(st.just("updated"), st.lists(st.integers(0, 39), max_size=8)),
        st.tuples(st.just("draw"), st.just([0])),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(events=_EVENTS, first=st.integers(4, 40), seed=st.integers(0, 1000))
def test_any_stream_draws_what_a_sorted_list_draws(events: list[tuple[str, list[int]]], first: int, seed: int) -> None:
    """Reference: everything sorted by (-|td|, age) at each draw, the same uniform numbers."""
    per = _per(first, capacity=40, seed=seed)
    uniforms = np.random.default_rng(seed)
    errors = np.random.default_rng(seed + 1)
    memory = {slot: (-np.inf, slot) for slot in range(first)}
    clock = first
    for kind, which in events:
        if kind == "written":
            for slot in which:
                memory[slot] = (-np.inf, clock)
                clock += 1
            per.on_write(np.array(which, np.int64))
        elif kind == "updated":
            slots = [s for s in which if s in memory]
            values = errors.integers(-3, 4, size=len(slots)).astype(np.float64)
            for slot, value in zip(slots, values.tolist(), strict=True):
                memory[slot] = (-abs(value), memory[slot][1])
            per.on_update(np.array(slots, np.int64), Signals(values))
        else:
            order = sorted(memory, key=memory.__getitem__)
            ends = segment_ends(_cumulative(40), len(order), 4)
            starts = np.concatenate(([0], ends[:-1]))
            ranks = starts + (uniforms.random(4) * (ends - starts)).astype(np.int64)
            assert per.draw(4).slots[0].tolist() == [order[r] for r in ranks]


def test_draws_at_once_are_as_many_single_draws() -> None:
    one, other = _per(3000, beta=LinearSchedule(0.5, 1.0, 3)), _per(3000, beta=LinearSchedule(0.5, 1.0, 3))
    at_once, singly = one.draw(24, 300), [other.draw(24) for _ in range(300)]
    assert np.array_equal(at_once.slots, np.concatenate([d.slots for d in singly]))
    assert at_once.weights is not None
    assert np.array_equal(at_once.weights, np.concatenate([d.weights for d in singly if d.weights is not None]))


def test_a_restored_sampler_makes_the_same_next_thousand_draws() -> None:
    one = _per(700, capacity=1000, seed=1, beta=LinearSchedule(0.5, 1.0, 9))
    other = _per(20, capacity=1000, seed=2, beta=LinearSchedule(0.5, 1.0, 9))
    rng = np.random.default_rng(3)
    one.begin_episode(4)
    for _ in range(50):
        one.on_update(one.draw(16).slots[0], Signals(rng.standard_normal(16)))
    other.restore({name: array.copy() for name, array in one.state().items()})
    for i in range(1000):
        a, b = one.draw(16), other.draw(16)
        assert np.array_equal(a.slots, b.slots)
        assert a.weights is not None
        assert b.weights is not None
        assert np.array_equal(a.weights, b.weights)
        td = rng.standard_normal(16)
        for sampler in (one, other):
            sampler.on_update(a.slots[0], Signals(td))
            sampler.on_write(np.array([i % 1000]))
