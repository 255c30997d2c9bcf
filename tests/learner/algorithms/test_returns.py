from __future__ import annotations

import numpy as np
import pytest

from onrig.learner.algorithms.returns import linear_recursion, retrace

GAMMA = 0.97


def _chains(rng: np.random.Generator, *lengths: int) -> np.ndarray:
    """Successors of chains of these lengths, their slots shuffled."""
    n = sum(lengths)
    slots, after, start = rng.permutation(n), np.full(n, -1), 0
    for length in lengths:
        chain = slots[start : start + length]
        after[chain[:-1]] = chain[1:]
        start += length
    return after


def test_doubling_equals_the_loop() -> None:
    rng = np.random.default_rng(0)
    after = _chains(rng, 1, 200, 3, 64, 65, 1)
    n = len(after)
    reward, value, end, advantage = rng.standard_normal((4, n))
    ratio = rng.uniform(0.0, 2.0, n)
    wanted = np.full(n, np.nan)
    for _ in range(200):  # each pass settles one more experience of every chain
        for i in np.flatnonzero(np.isnan(wanted)):
            j = after[i]
            beyond = end[i] if j < 0 else value[j] + min(1.0, ratio[j]) * (wanted[j] - value[j] - advantage[j])
            wanted[i] = reward[i] + GAMMA * beyond
    np.testing.assert_allclose(retrace(reward, value, ratio, end, after, GAMMA, advantage), wanted, rtol=1e-12)
    assert not np.isnan(wanted).any()


def test_with_ratios_of_one_and_more_it_is_the_discounted_return() -> None:
    rng = np.random.default_rng(1)
    reward, value, T = rng.standard_normal(30), rng.standard_normal(30), 30
    after = np.append(np.arange(1, T), -1)
    end = np.full(T, 0.7)
    got = retrace(reward, value, 1.0 + rng.random(T), end, after, GAMMA)
    for t in range(T):
        discounted = sum(GAMMA**k * r for k, r in enumerate(reward[t:]))
        assert got[t] == pytest.approx(discounted + GAMMA ** (T - t) * 0.7)


def test_with_ratios_of_zero_it_is_the_reward_and_the_next_value() -> None:
    rng = np.random.default_rng(2)
    reward, value = rng.standard_normal((2, 9))
    after = np.append(np.arange(1, 9), -1)
    got = retrace(reward, value, np.zeros(9), np.zeros(9), after, GAMMA)
    np.testing.assert_allclose(got, reward + GAMMA * np.append(value[1:], 0.0), rtol=1e-12)


def test_nothing_stored_has_no_returns_and_a_lone_experience_its_own() -> None:
    assert linear_recursion(np.zeros(0), np.zeros(0), np.zeros(0, np.int64)).shape == (0,)
    assert linear_recursion(np.array([3.0]), np.array([0.5]), np.array([-1])).tolist() == [3.0]
