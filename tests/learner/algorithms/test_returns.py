from __future__ import annotations

import numpy as np
import pytest

from onrig.hw.native import library
from onrig.learner.algorithms import returns
from onrig.learner.algorithms.returns import generalised_advantages, retrace

GAMMA = 0.97


def _chains(rng: np.random.Generator, *lengths: int) -> np.ndarray:
    """Successors of chains of these lengths, with shuffled slots."""
    n = sum(lengths)
    slots, successors, start = rng.permutation(n), np.full(n, -1), 0
    for length in lengths:
        chain = slots[start : start + length]
        successors[chain[:-1]] = chain[1:]
        start += length
    return successors


def test_chains_in_any_order_equal_the_loop() -> None:
    rng = np.random.default_rng(0)
    successors = _chains(rng, 1, 200, 3, 64, 65, 1)
    n = len(successors)
    reward, value, end, advantage = rng.standard_normal((4, n))
    ratio = rng.uniform(0.0, 2.0, n)
    expected = np.full(n, np.nan)
    for _ in range(200):  # each pass settles one more experience of every chain
        for i in np.flatnonzero(np.isnan(expected)):
            j = successors[i]
            successor_return = (
                end[i] if j < 0 else value[j] + min(1.0, ratio[j]) * (expected[j] - value[j] - advantage[j])
            )
            expected[i] = reward[i] + GAMMA * successor_return
    np.testing.assert_allclose(retrace(reward, value, ratio, end, successors, GAMMA, advantage), expected, rtol=1e-12)
    assert not np.isnan(expected).any()


def test_with_ratios_of_at_least_one_it_is_the_discounted_return() -> None:
    rng = np.random.default_rng(1)
    reward, value, T = rng.standard_normal(30), rng.standard_normal(30), 30
    successors = np.append(np.arange(1, T), -1)
    end = np.full(T, 0.7)
    actual = retrace(reward, value, 1.0 + rng.random(T), end, successors, GAMMA)
    for t in range(T):
        discounted_sum = sum(GAMMA**k * r for k, r in enumerate(reward[t:]))
        assert actual[t] == pytest.approx(discounted_sum + GAMMA ** (T - t) * 0.7)


def test_with_ratios_of_zero_it_is_the_reward_and_the_next_value() -> None:
    rng = np.random.default_rng(2)
    reward, value = rng.standard_normal((2, 9))
    successors = np.append(np.arange(1, 9), -1)
    actual = retrace(reward, value, np.zeros(9), np.zeros(9), successors, GAMMA)
    np.testing.assert_allclose(actual, reward + GAMMA * np.append(value[1:], 0.0), rtol=1e-12)


def test_an_empty_memory_has_no_returns_and_a_single_experience_its_own() -> None:
    empty = np.zeros(0)
    assert retrace(empty, empty, empty, empty, np.zeros(0, np.int64), GAMMA).shape == (0,)
    three, seven, two = (np.array([number]) for number in (3.0, 7.0, 2.0))
    assert retrace(three, seven, np.ones(1), two, np.array([-1]), 0.5).tolist() == [4.0]


@pytest.mark.skipif(library() is None, reason="the C library is not built")
def test_the_library_equals_numpy_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    successors = _chains(rng, *rng.integers(1, 90, 60))
    reward, value, end, advantage = rng.standard_normal((4, len(successors)))
    ratio = rng.uniform(0.0, 2.0, len(successors)).astype(np.float32)
    compiled = retrace(reward, value, ratio, end, successors, GAMMA, advantage)
    monkeypatch.setattr(returns, "_native", lambda: None)
    assert np.array_equal(retrace(reward, value, ratio, end, successors, GAMMA, advantage), compiled)


def test_advantages_are_the_double_sum_within_episodes() -> None:
    rng = np.random.default_rng(4)
    reward, value, successors = rng.standard_normal((3, 2, 20))
    terminated, truncated = rng.random((2, 2, 20)) < 0.15
    has_ended = terminated | truncated
    gamma, lam = 0.9, 0.7
    error = reward + gamma * np.where(terminated, 0.0, successors) - value
    advantage = generalised_advantages(error, has_ended, gamma, lam)
    for k in range(2):
        for t in range(20):
            total, n_ahead = 0.0, 0
            while True:
                total += (gamma * lam) ** n_ahead * error[k, t + n_ahead]
                if has_ended[k, t + n_ahead] or t + n_ahead == 19:
                    break
                n_ahead += 1
            assert advantage[k, t] == pytest.approx(total, rel=1e-12)


def test_with_lambda_one_an_advantage_is_the_return_minus_the_value() -> None:
    rng = np.random.default_rng(5)
    reward, value = rng.standard_normal((2, 12))
    successors, has_ended = np.append(value[1:], 0.3), np.arange(12) == 6
    error = reward + 0.8 * np.where(has_ended, 0.0, successors) - value
    advantage = generalised_advantages(error, has_ended, 0.8, 1.0)
    assert advantage[2] + value[2] == pytest.approx(sum(0.8**k * reward[2 + k] for k in range(5)))
    assert advantage[8] + value[8] == pytest.approx(sum(0.8**k * reward[8 + k] for k in range(4)) + 0.8**4 * 0.3)
