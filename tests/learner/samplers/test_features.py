from __future__ import annotations

import numpy as np

from onrig.learner.algorithms import Signals
from onrig.learner.samplers.features import Features
from tests.learner.samplers.looks import random_view

RNG = np.random.default_rng


def test_experiences_are_standardised_by_the_memory_and_the_learners_columns_are_squashed_once() -> None:
    view = random_view(RNG(0).uniform(-1, 1, (2, 300, 2)), observations=3)
    features = Features(view, 2, 300)
    features.on_write([np.arange(300), np.arange(40)])
    slots = np.array([[4, 9, 2], [3, 1, 7]])
    td, target = RNG(2).standard_normal((2, 1, 2, 2))
    features.on_update(slots[:, :2], Signals(td, target=target))
    features.standardise(np.array([True, False]))  # the other trial's, when they are first needed

    stored = view.gather(slots)
    for trial, count in enumerate((300, 40)):
        x = features.all_features(slots)[trial]
        assert x.shape == (3, features.width) == (3, 2 * 3 + 2 + 4)
        normalising_sample = view.gather((np.linspace(0, 1, 1024) * (count - 1)).astype(np.int64)[None].repeat(2, 0))
        observations, rewards = normalising_sample.observation[trial], normalising_sample.reward[trial]
        mean, std = observations.mean(0), observations.std(0)
        np.testing.assert_allclose(x[:, :3], (stored.observation[trial] - mean) / std, rtol=1e-5)
        np.testing.assert_allclose(x[:, 3:5], stored.action[trial], rtol=1e-6)
        np.testing.assert_allclose(x[:, 5], (stored.reward[trial] - rewards.mean()) / rewards.std(), rtol=1e-5)
        np.testing.assert_allclose(x[:, 6:9], (stored.next_observation[trial] - mean) / std, rtol=1e-5)
        np.testing.assert_allclose(x[:, 9], slots[trial] / 300, rtol=1e-6)
        np.testing.assert_allclose(x[:, 10], np.tanh([*td[0, trial], 1.0]), rtol=1e-6)
        np.testing.assert_allclose(x[:, 11], np.tanh([*target[0, trial], 1.0]), rtol=1e-6)
        np.testing.assert_array_equal(features.score_features(slots)[trial], x[:, [5, 9, 10]])

    features_before = features.all_features(slots)
    features.on_write([np.array([4]), np.arange(40, 300)])
    features_after = features.all_features(slots)
    assert features_after[0, 0, 10] == features_after[0, 0, 11] == np.float32(np.tanh(np.float32(1.0)))
    np.testing.assert_array_equal(features_after[1], features_before[1])  # until the episode ends
    features.standardise(np.array([False, True]))
    assert (features.all_features(slots)[1, :, :3] != features_before[1, :, :3]).all()


def test_constant_features_cause_no_division_by_zero() -> None:
    view = random_view(np.zeros((1, 20, 1)))
    constant_view = view._replace(gather=lambda slots: view.gather(np.zeros_like(slots)))
    features = Features(constant_view, 1, 20)
    features.on_write([np.arange(10)])
    x = features.all_features(np.arange(5)[None])
    assert np.abs(x[..., :4]).max() < 1e-6
