from __future__ import annotations

import numpy as np
import pytest

from onrig.learner.algorithms import Signals
from onrig.learner.samplers.features import Features
from tests.learner.samplers.looks import looking_at

RNG = np.random.default_rng


def test_experiences_are_standardised_by_all_that_was_written_and_the_learner_s_columns_squashed_once() -> None:
    actions = RNG(0).uniform(-1, 1, (2, 300, 2))
    look = looking_at(actions, observations=3)
    features = Features(look, 2, 300, steps=1000)
    written = RNG(1).permutation(300)
    features.written([written[:150], written[:0]])
    features.written([written[150:], np.arange(40)])
    slots = np.array([[4, 9, 2], [3, 1, 7]])
    td, target = RNG(2).standard_normal((2, 1, 2, 2))
    features.updated(slots[:, :2], Signals(td, target=target))

    stored = look.gather(slots)
    known = look.gather(np.arange(300)[None].repeat(2, 0))
    for trial, count in enumerate((300, 40)):
        x = features.of(slots)[trial]
        assert x.shape == (3, features.width) == (3, 2 * 3 + 2 + 4)
        seen, rewards = known.observation[trial, :count], known.reward[trial, :count]
        mean, std = seen.mean(0), seen.std(0)
        np.testing.assert_allclose(x[:, :3], (stored.observation[trial] - mean) / std, rtol=1e-5)
        np.testing.assert_allclose(x[:, 3:5], stored.action[trial], rtol=1e-6)
        np.testing.assert_allclose(x[:, 5], (stored.reward[trial] - rewards.mean()) / rewards.std(), rtol=1e-5)
        np.testing.assert_allclose(x[:, 6:9], (stored.next_observation[trial] - mean) / std, rtol=1e-5)
        numbers = [1 + written.tolist().index(slot) for slot in slots[0]] if trial == 0 else slots[1] + 1
        np.testing.assert_allclose(x[:, 9], np.array(numbers) / 1000, rtol=1e-6)
        np.testing.assert_allclose(x[:, 10], np.tanh([*td[0, trial], 1.0]), rtol=1e-6)
        np.testing.assert_allclose(x[:, 11], np.tanh([*target[0, trial], 1.0]), rtol=1e-6)
        np.testing.assert_array_equal(features.few(slots)[trial], x[:, [5, 9, 10]])


def test_what_never_varies_is_no_division_by_zero() -> None:
    look = looking_at(np.zeros((1, 20, 1)))
    constant = look._replace(gather=lambda slots: look.gather(np.zeros_like(slots)))
    features = Features(constant, 1, 20, steps=0)
    features.written([np.arange(10)])
    x = features.of(np.arange(5)[None])
    assert np.abs(x[..., :4]).max() < 1e-6
    assert x[0, :, 4].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
