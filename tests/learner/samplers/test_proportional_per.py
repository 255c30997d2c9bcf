from __future__ import annotations

import numpy as np
import pytest

from onrig.learner.algorithms import Signals
from onrig.learner.sampler_settings import ProportionalSettings
from onrig.learner.samplers import Sampler, SamplerContext, sampler_for
from onrig.learner.samplers.importance import LinearSchedule, Scale
from onrig.learner.samplers.proportional_per import ProportionalPer
from onrig.learner.settings import LearnerSettings
from onrig.runtime.memory.strategy import Strategy
from tests.runtime.replay.chi_square import follows_distribution

FULL_CORRECTION = LinearSchedule(1.0, 1.0, 1)


def _make_sampler(n_stored: int, capacity: int | None = None, seed: int = 0, **options: object) -> ProportionalPer:
    sampler = ProportionalPer(capacity or n_stored, np.random.default_rng(seed), **options)  # type: ignore[arg-type]
    sampler.on_write(np.arange(n_stored))
    return sampler


def test_it_is_a_sampler_with_feedback() -> None:
    sampler: Sampler = _make_sampler(20)
    assert sampler.required_signals
    draw = sampler.draw(16, 2)
    assert draw.slots.shape == (2, 16)
    assert draw.slots.dtype == np.int64
    assert draw.weights is None


@pytest.mark.parametrize(("n_stored", "batch", "updates"), [(7, 4, 5000), (1000, 16, 3000), (10_000, 16, 8000)])
def test_draws_follow_the_priorities(n_stored: int, batch: int, updates: int) -> None:
    sampler = _make_sampler(n_stored, alpha=0.6, epsilon=0.01)
    td = np.random.default_rng(1).standard_normal(n_stored)
    sampler.on_update(np.arange(n_stored), Signals(td))
    counts = np.bincount(sampler.draw(batch, updates).slots.ravel(), minlength=n_stored)
    distribution = (np.abs(td) + 0.01) ** 0.6
    # One draw per share: the counts vary less than independent ones, especially if few slots share much.
    if n_stored > 100:
        assert follows_distribution(counts, distribution)
    else:
        assert np.abs(counts / counts.sum() - distribution / distribution.sum()).max() < 4 / np.sqrt(counts.sum())


def test_the_distribution_of_oh_et_al_has_its_own_exponents_no_largest_weight_and_beta_over_updates() -> None:
    options = LearnerSettings(prop_per=ProportionalSettings("oh2021"))
    context = SamplerContext(50, 10, 4, updates=40, learner=options)
    sampler = sampler_for(Strategy("FIFO", "PropPER+IS"), np.random.default_rng(0), context)
    sampler.on_write(np.arange(50))
    td = np.random.default_rng(1).standard_normal(50)
    sampler.on_update(np.arange(50), Signals(td))
    priorities = np.abs(td) + 1e-6
    priorities = priorities**0.5 / (priorities**0.5).sum()
    for k in range(40):
        if k == 10:
            sampler.begin_episode(3)  # the updates of episode 2 were dropped
        draw = sampler.draw(10)
        assert draw.weights is not None
        n_updates = k if k < 10 else k + 10
        beta = 0.4 + 0.6 * min(n_updates / 39, 1.0)
        np.testing.assert_allclose(draw.weights[0], (50 * priorities[draw.slots[0]]) ** -beta, rtol=1e-5)
    expected_weights = (50 * priorities) ** -1.0
    assert (priorities * expected_weights).sum() == pytest.approx(1.0, abs=1e-12)


def test_options_override_those_of_the_paper_individually() -> None:
    resolved = ProportionalSettings("oh2021", alpha=0.7, over="episodes").resolved_options
    assert resolved == (0.7, 0.4, "none", "episodes")
    assert ProportionalSettings().resolved_options == (0.6, 0.4, "batch_max", "episodes")


def test_each_share_of_the_total_gives_one_draw() -> None:
    sampler = _make_sampler(64)
    assert np.array_equal(sampler.draw(16, 50).slots // 4, np.broadcast_to(np.arange(16), (50, 16)))


def test_new_experiences_get_the_largest_priority_so_far() -> None:
    sampler = _make_sampler(4, capacity=6, alpha=1.0, epsilon=0.0)
    assert sampler.state()["priorities"].tolist() == [1, 1, 1, 1, 0, 0]
    sampler.on_update(np.array([0, 1]), Signals(np.array([-5.0, 0.5])))
    sampler.on_write(np.array([4]))
    sampler.on_update(np.array([0]), Signals(np.array([0.25])))
    sampler.on_write(np.array([1]))
    assert sampler.state()["priorities"].tolist() == [0.25, 5, 1, 1, 5, 0]


def test_unwritten_slots_are_never_drawn() -> None:
    assert set(_make_sampler(5, capacity=1000).draw(5, 400).slots.ravel().tolist()) == set(range(5))


def test_non_finite_errors_leave_the_priority_unchanged() -> None:
    sampler = _make_sampler(3, alpha=1.0, epsilon=0.0)
    sampler.on_update(np.arange(3), Signals(np.array([np.nan, 0.5, np.inf])))
    assert sampler.state()["priorities"].tolist() == [1.0, 0.5, 1.0]


def test_a_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw 16 experiences from the 15 stored"):
        _make_sampler(15, capacity=100).draw(16)


@pytest.mark.parametrize("scale", list(Scale))
def test_weights_compensate_the_distribution(scale: Scale) -> None:
    sampler = _make_sampler(1000, capacity=3000, beta=FULL_CORRECTION, scale=scale, alpha=1.0, epsilon=0.1)
    td = np.random.default_rng(2).exponential(size=1000)
    sampler.on_update(np.arange(1000), Signals(td))
    draw = sampler.draw(16, 5)
    assert draw.weights is not None
    distribution = (td + 0.1) / (td + 0.1).sum()
    weights = 1 / (1000 * distribution)
    expected = weights[draw.slots]
    if scale is Scale.BATCH_MAX:
        expected /= expected.max(axis=1, keepdims=True)
    elif scale is Scale.GLOBAL_MAX:
        expected /= weights.max()
    assert np.allclose(draw.weights, expected, rtol=1e-5)


def test_beta_follows_its_schedule() -> None:
    sampler = _make_sampler(100, beta=LinearSchedule(0.4, 1.0, 4), scale=Scale.NONE)
    sampler.on_update(np.arange(100), Signals(np.arange(100.0)))
    states = sampler.state()
    betas_by_episode = []
    for episode in (1, 4):
        sampler.restore(states)
        sampler.begin_episode(episode)
        betas_by_episode.append(sampler.draw(16).weights)
    first_beta, last_beta = betas_by_episode
    assert first_beta is not None
    assert last_beta is not None
    assert np.allclose(first_beta, last_beta**0.4, rtol=1e-5)


def test_a_restored_sampler_makes_the_same_next_thousand_draws() -> None:
    original, restored = (
        _make_sampler(700, 1000, 1, beta=FULL_CORRECTION),
        _make_sampler(20, 1000, 2, beta=FULL_CORRECTION),
    )
    rng = np.random.default_rng(3)
    for _ in range(50):
        original.on_update(original.draw(16).slots[0], Signals(5 * rng.standard_normal(16)))
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


def test_a_state_of_another_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="10 slots, expected 20"):
        _make_sampler(5, 20).restore(_make_sampler(5, 10).state())
