from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Sampler, uniform
from onrig.learner.samplers.uniform import Uniform


def _uniform(n_stored: int, seed: int = 0) -> Uniform:
    sampler = Uniform(np.random.default_rng(seed))
    sampler.on_write(np.arange(n_stored))
    return sampler


def _is_uniform(counts: NDArray[np.int64]) -> bool:
    """Within five standard deviations of the statistic's mean, for equal expected counts."""
    expected = counts.sum() / len(counts)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    degrees_of_freedom = len(counts) - 1
    return abs(statistic - degrees_of_freedom) < 5 * math.sqrt(2 * degrees_of_freedom)


def test_uniform_is_a_sampler() -> None:
    sampler: Sampler = _uniform(20)
    assert not sampler.required_signals
    assert sampler.draw(16).weights is None


@pytest.mark.parametrize(("n_stored", "batch", "updates"), [(7, 4, 4000), (1000, 16, 4000), (10_000, 16, 8000)])
def test_every_slot_is_drawn_equally_often(n_stored: int, batch: int, updates: int) -> None:
    slots = _uniform(n_stored).draw(batch, updates).slots
    # Without replacement the variance of the counts is (1 - batch / stored) times that of a multinomial.
    counts = np.bincount(slots.ravel(), minlength=n_stored).astype(np.float64)
    expected = counts.mean()
    statistic = float(((counts - expected) ** 2 / expected).sum()) / (1 - batch / n_stored)
    assert abs(statistic - n_stored) < 5 * np.sqrt(2 * n_stored)


@pytest.mark.parametrize(("n_stored", "batch"), [(9, 4), (5, 4)])
def test_every_distinct_pair_is_drawn_equally_often(n_stored: int, batch: int) -> None:
    slots = _uniform(n_stored).draw(batch, 20_000).slots
    # Two fixed positions of each row, one pair per row: independent trials.
    for i, j in ((0, 1), (0, batch - 1), (batch - 2, batch - 1)):
        counts = np.bincount(slots[:, i] * n_stored + slots[:, j], minlength=n_stored * n_stored).reshape(
            n_stored, n_stored
        )
        assert not counts.diagonal().any()
        assert _is_uniform(counts[~np.eye(n_stored, dtype=bool)])


@settings(max_examples=40)
@given(
    n_stored=st.integers(1, 400),
    fraction=st.floats(0.01, 1.0),
    block_sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_batched_draws_equal_single_draws_and_are_distinct(
    n_stored: int, fraction: float, block_sizes: list[int]
) -> None:
    batch = max(1, int(fraction * n_stored))
    batched, single_draws = _uniform(n_stored), _uniform(n_stored)
    for updates in block_sizes:
        slots = batched.draw(batch, updates).slots
        assert np.array_equal(slots, np.concatenate([single_draws.draw(batch).slots for _ in range(updates)]))
        assert slots.min() >= 0
        assert slots.max() < n_stored
        assert all(len(set(row)) == batch for row in slots.tolist())


def test_new_slots_are_drawn_once_written() -> None:
    sampler = _uniform(16)
    sampler.on_write(np.array([16, 17]))
    sampler.on_write(np.array([3]))
    sampler.on_write(np.array([], dtype=np.int64))
    assert set(sampler.draw(16, 50).slots.ravel().tolist()) == set(range(18))


def test_td_errors_have_no_effect() -> None:
    with_errors, without_errors = _uniform(100), _uniform(100)
    without_errors.on_update(np.array([1, 2]), Signals(np.array([9.0, 9.0])))
    assert np.array_equal(with_errors.draw(16).slots, without_errors.draw(16).slots)


@pytest.mark.parametrize("n_drawn", [0, 3, 1000])
def test_a_restored_sampler_makes_the_same_next_thousand_draws(n_drawn: int) -> None:
    sampler = _uniform(90, seed=1)
    for _ in range(n_drawn):
        sampler.draw(16)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **sampler.state())
    without_errors = Uniform(np.random.default_rng(2))
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        without_errors.restore(state)
    assert np.array_equal(sampler.draw(16, 1000).slots, without_errors.draw(16, 1000).slots)


def test_more_than_the_memory_holds_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="16 experiences without replacement from the 15 stored"):
        _uniform(15).draw(16)
    assert sorted(_uniform(16).draw(16).slots[0].tolist()) == list(range(16))


def test_different_streams_draw_differently() -> None:
    assert not np.array_equal(_uniform(1000, 1).draw(16).slots, _uniform(1000, 2).draw(16).slots)


@pytest.mark.skipif(uniform._native_function() is None, reason="the C library is not built")
@settings(max_examples=60)
@given(
    draws=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=12),
    n_stored=st.integers(40, 200),
    seed=st.integers(0, 1000),
)
def test_the_library_draws_and_repairs_like_the_reference(
    draws: list[tuple[int, int]], n_stored: int, seed: int
) -> None:
    compiled = Uniform(np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uniform, "_native_function", lambda: None)
        reference = Uniform(np.random.default_rng(seed))
    for sampler in (compiled, reference):
        sampler.on_write(np.arange(n_stored))
    for i, (batch, updates) in enumerate(draws):
        assert np.array_equal(compiled.draw(batch, updates).slots, reference.draw(batch, updates).slots)
        for name, value in compiled.state().items():
            assert np.array_equal(value, reference.state()[name])
        if i % 3 == 2:
            compiled.restore(reference.state())
