from __future__ import annotations

import math

import numpy as np
import pytest

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Sampler
from onrig.learner.samplers.fis import Fis, fis_weights, replay_tail
from onrig.learner.samplers.importance import LinearSchedule
from onrig.learner.samplers.rank_per import RankPer
from onrig.learner.samplers.uniform import Uniform

FULL_CORRECTION = LinearSchedule(1.0, 1.0, 1)


def _fis(
    n_stored: int, capacity: int, seed: int = 0, beta: LinearSchedule = FULL_CORRECTION, uses_per: bool = False
) -> Fis:
    stream = np.random.default_rng(seed)
    inner_sampler: Sampler = RankPer(capacity, stream) if uses_per else Uniform(stream)
    sampler = Fis(inner_sampler, capacity, beta=beta, replays=8.0)
    sampler.on_write(np.arange(n_stored))
    return sampler


def test_weights_match_those_worked_out_for_the_paper() -> None:
    # §7.2: C = 1e4, S = 16 -> n = 5000, p = 0.0016.
    expected = {1: 1.1617, 4: 1.1130, 8: 0.6358, 10: 0.3292, 16: 0.0095}
    weights = fis_weights(5000, 0.0016, 1.0)
    assert {k: round(float(weights[k]), 4) for k in expected} == expected
    assert weights[1:9].sum() == pytest.approx(8.0, abs=1e-9)


@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (3, 1.0), (10, 0.5), (400, 0.02), (50_000, 0.01)])
def test_the_tail_is_that_of_the_binomial_distribution(n: int, p: float) -> None:
    tail = replay_tail(n, p)
    assert tail[0] == pytest.approx(1.0, abs=1e-9)
    assert tail[-1] == 0.0
    for k in (1, 2, 3, round(n * p)):
        if k < len(tail) and n <= 400:
            exact = math.fsum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
            assert tail[k] == pytest.approx(exact, rel=1e-9, abs=1e-300)
    # E[X] = sum of Pr(X >= k).
    assert tail[1:].sum() == pytest.approx(n * p, rel=1e-9)


def test_weights_of_the_expected_replays_sum_to_their_number() -> None:
    for n, p in ((1, 0.08), (40, 0.08), (5000, 0.0016), (700, 0.03)):
        weights = fis_weights(n, p, 1.0)
        assert weights[1 : math.ceil(n * p - 1e-9) + 1].sum() == pytest.approx(n * p)
    draw = _fis(200, 1000).draw(16)
    assert draw.weights is not None
    assert draw.weights.dtype == np.float32
    assert draw.weights == pytest.approx(np.full((1, 16), 16 / 200), rel=1e-6)


@pytest.mark.parametrize("uses_per", [False, True])
def test_weights_follow_the_replays_of_each_experience(uses_per: bool) -> None:
    n_stored, capacity, batch, updates = 50, 80, 16, 60
    sampler = _fis(n_stored, capacity, beta=LinearSchedule(0.5, 1.0, 3), uses_per=uses_per)
    sampler.begin_episode(2)
    draw = sampler.draw(batch, updates)
    assert draw.weights is not None
    replays = np.zeros(n_stored, np.int64)
    expected_replays = capacity * 8 // batch
    for update, (slots, weights) in enumerate(zip(draw.slots, draw.weights, strict=True), start=1):
        replays[slots] += 1
        table = np.append(fis_weights(min(update, expected_replays), batch / n_stored, 0.75), 0.0)
        assert weights == pytest.approx(table[np.minimum(replays[slots], len(table) - 1)], rel=1e-5, abs=1e-12)


def test_a_rewritten_slot_counts_from_zero() -> None:
    sampler = _fis(16, 16)
    for _ in range(40):
        replayed_draw = sampler.draw(16)
    sampler.on_write(np.array([3]))
    fresh_draw = sampler.draw(16)
    assert replayed_draw.weights is not None
    assert fresh_draw.weights is not None
    assert float(fresh_draw.weights[0][fresh_draw.slots[0] == 3][0]) > 0.9
    assert float(fresh_draw.weights[0][fresh_draw.slots[0] != 3].max()) == pytest.approx(0.0, abs=1e-6)


def test_slots_come_from_the_inner_sampler() -> None:
    uniform_sampler = Uniform(np.random.default_rng(4))
    uniform_sampler.on_write(np.arange(300))
    assert np.array_equal(_fis(300, 300, seed=4).draw(16, 20).slots, uniform_sampler.draw(16, 20).slots)


def test_feedback_goes_to_the_inner_sampler() -> None:
    assert not _fis(20, 20).required_signals
    assert _fis(20, 20, uses_per=True).required_signals


@pytest.mark.parametrize("uses_per", [False, True])
def test_a_restored_sampler_makes_the_same_next_draws(uses_per: bool) -> None:
    original, restored = (
        _fis(400, 500, 1, LinearSchedule(0.5, 1.0, 5), uses_per),
        _fis(20, 500, 2, LinearSchedule(0.5, 1.0, 5), uses_per),
    )
    original.begin_episode(3)
    original.on_update(original.draw(16, 30).slots[0], Signals(np.arange(16.0)))
    restored.restore({name: array.copy() for name, array in original.state().items()})
    for i in range(200):
        a, b = original.draw(16), restored.draw(16)
        assert np.array_equal(a.slots, b.slots)
        assert a.weights is not None
        assert b.weights is not None
        assert np.array_equal(a.weights, b.weights)
        for sampler in (original, restored):
            sampler.on_update(a.slots[0], Signals(a.slots[0] - 100.0))
            sampler.on_write(np.array([i]))


def test_a_state_of_another_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="10 slots, expected 20"):
        _fis(5, 20).restore(_fis(5, 10).state())
