from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, Sampler, SamplerContext, sampler_for
from onrig.runtime.memory.strategy import parse_strategy

CAPACITY, RESERVED, BATCH = 100, 30, 16
INNER_SAMPLINGS = ["Uniform", "Uniform+FIS", "PER", "PER+IS", "PER+FIS", "PropPER", "PropPER+IS"]


def _prior(inner: str, fraction: float = 0.5, seed: int = 0, **changes: Any) -> Sampler:
    context = SamplerContext(CAPACITY, BATCH, 10, reserved=RESERVED, updates=100, steps=1000)._replace(**changes)
    sampler = sampler_for(parse_strategy(f"FIFO[Prior({fraction})[{inner}]]"), np.random.default_rng(seed), context)
    sampler.begin_episode(3)
    sampler.on_write(np.arange(RESERVED))
    return sampler


def _count_prior(draw: Draw) -> list[int]:
    """Number of prior experiences in each minibatch."""
    prior_counts: list[int] = (draw.slots < RESERVED).sum(axis=1).tolist()
    return prior_counts


@pytest.mark.parametrize("inner", INNER_SAMPLINGS)
def test_each_minibatch_holds_its_share_of_prior_experiences(inner: str) -> None:
    sampler = _prior(inner, 0.25)
    sampler.on_write(np.arange(RESERVED, 70))
    for _ in range(3):
        draw = sampler.draw(BATCH)
        assert _count_prior(draw) == [4]
        assert draw.slots.shape == (1, BATCH)
        assert draw.slots.max() < 70
        assert (draw.weights is None) == ("+" not in inner)
        sampler.on_update(draw.slots[0], Signals(np.random.default_rng(1).standard_normal(BATCH)))


def test_draws_of_uniform_sampling_are_uniform_within_each_part() -> None:
    sampler = _prior("Uniform")
    sampler.on_write(np.arange(RESERVED, CAPACITY))
    counts = np.bincount(sampler.draw(BATCH, 4000).slots.reshape(-1), minlength=CAPACITY)
    for part in (counts[:RESERVED], counts[RESERVED:]):
        assert part.sum() == 4000 * 8
        expected = part.sum() / len(part)
        np.testing.assert_allclose(part, expected, atol=5 * np.sqrt(expected))


def test_a_part_with_less_than_its_share_is_filled_up_from_the_other() -> None:
    sampler = _prior("Uniform")
    assert _count_prior(sampler.draw(BATCH, 2)) == [BATCH, BATCH]
    sampler.on_write(np.arange(RESERVED, RESERVED + 3))
    assert _count_prior(sampler.draw(BATCH)) == [BATCH - 3]
    sampler.on_write(np.arange(RESERVED + 3, CAPACITY))
    assert _count_prior(sampler.draw(BATCH)) == [8]
    small_sampler = sampler_for(
        parse_strategy("FIFO[Prior(0.5)[Uniform]]"),
        np.random.default_rng(0),
        SamplerContext(CAPACITY, BATCH, 10, reserved=5),
    )
    small_sampler.on_write(np.arange(5))
    with pytest.raises(ValueError, match="cannot draw"):
        small_sampler.draw(BATCH)
    small_sampler.on_write(np.arange(5, 50))
    assert (small_sampler.draw(BATCH).slots < 5).sum() == 5


def test_priorities_and_importance_weights_refer_to_their_part() -> None:
    def separate_sampler(capacity: int, n_written: int, first_slot: int) -> Sampler:
        """The sampler of a part, as in a separate memory."""
        stream = np.random.default_rng(0).spawn(2)[first_slot > 0]
        context = SamplerContext(capacity, BATCH // 2, 10, updates=100, steps=1000)
        sampler = sampler_for(parse_strategy("FIFO[PropPER+IS]"), stream, context)
        sampler.begin_episode(3)
        sampler.on_write(np.arange(n_written))
        return sampler

    sampler = _prior("PropPER+IS")
    sampler.on_write(np.arange(RESERVED, 90))
    parts = [
        (0, separate_sampler(RESERVED, RESERVED, 0)),
        (RESERVED, separate_sampler(CAPACITY - RESERVED, 90 - RESERVED, RESERVED)),
    ]
    rng = np.random.default_rng(4)
    for _ in range(5):
        draw, td = sampler.draw(BATCH), rng.standard_normal(BATCH)
        assert draw.weights is not None
        for (first_slot, part), columns in zip(parts, (slice(0, 8), slice(8, 16)), strict=True):
            part_draw = part.draw(BATCH // 2)
            assert part_draw.weights is not None
            assert draw.slots[0, columns].tolist() == (first_slot + part_draw.slots[0]).tolist()
            assert draw.weights[0, columns].tolist() == part_draw.weights[0].tolist()
            part.on_update(part_draw.slots[0], Signals(td[columns]))
        sampler.on_update(draw.slots[0], Signals(td))


def test_rewritten_slots_of_the_run_remain_its_own() -> None:
    sampler = _prior("PropPER")
    sampler.on_write(np.arange(RESERVED, CAPACITY))
    sampler.on_update(np.arange(CAPACITY), Signals(np.full(CAPACITY, 1e-6)))
    sampler.on_write(np.array([RESERVED + 7]))
    draw = sampler.draw(BATCH, 20).slots
    assert (draw < RESERVED).sum() == 20 * 8
    assert (draw[:, 8:] == RESERVED + 7).mean() > 0.9  # a new experience has the largest priority


@pytest.mark.parametrize("inner", INNER_SAMPLINGS)
def test_a_restored_sampler_draws_the_same(inner: str) -> None:
    sampler, other = _prior(inner, seed=1), _prior(inner, seed=2)
    sampler.on_write(np.arange(RESERVED, 60))
    sampler.on_update(sampler.draw(BATCH).slots[0], Signals(np.arange(16.0)))
    other.restore({name: np.array(value) for name, value in sampler.state().items()})
    for _ in range(3):
        draw, repeated_draw = sampler.draw(BATCH), other.draw(BATCH)
        assert np.array_equal(draw.slots, repeated_draw.slots)
        assert np.array_equal(draw.weights, repeated_draw.weights)  # type: ignore[arg-type]
        for either in (sampler, other):
            either.on_update(draw.slots[0], Signals(np.arange(16.0)))


def test_without_prior_experiences_it_equals_the_inner_sampler() -> None:
    unreserved = sampler_for(
        parse_strategy("FIFO[Uniform]"), np.random.default_rng(0), SamplerContext(CAPACITY, BATCH, 10)
    )
    sampler = _prior("Uniform", reserved=0)
    unreserved.on_write(np.arange(RESERVED))
    assert np.array_equal(sampler.draw(BATCH, 3).slots, unreserved.draw(BATCH, 3).slots)
