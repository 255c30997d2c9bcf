from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.learner.algorithm_settings import DqnConfig
from onrig.learner.algorithms import Minibatches
from onrig.learner.algorithms.dqn import Dqn, nearest_level
from tests.learner.reference import (
    gradients,
    minibatches,
    reference_dqn_update,
    replace_vectors,
    select_minibatch,
    select_trial,
    vectors,
)


def _dqn(config: DqnConfig, n: int = 2, seeds: tuple[int, ...] = (0,), dtype: type[np.floating] = np.float32) -> Dqn:
    return Dqn(config, n, 1, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _minibatches(seed: int, shape: tuple[int, int, int], n: int = 2, *, weighted: bool = True) -> Minibatches:
    return minibatches(np.random.default_rng(seed), shape, n, 1, weighted=weighted)


@pytest.mark.parametrize(
    ("network", "n", "levels", "batch", "weighted"),
    [
        ("small", 2, 15, 16, True),
        ("small", 2, 15, 16, False),
        ("small", 3, 16, 5, True),
        ("small", 7, 2, 1, True),
        ("ddpg_original", 2, 15, 6, True),
    ],
)
def test_gradients_and_td_errors_equal_autograd(network: str, n: int, levels: int, batch: int, weighted: bool) -> None:
    settings = {"network": network, "levels": levels, "batch": batch, "reward_scale": 0.1, "target_every": 25}
    dqn = _dqn(msgspec.convert(settings, DqnConfig), n, (3, 4), np.float64)
    # First some steps, so that targets differ from the online networks and outputs are no longer tiny.
    dqn.update(_minibatches(5, (40, 2, batch), n))
    data = _minibatches(6, (1, 2, batch), n, weighted=weighted)
    gradient = gradients(dqn, data)["network"]
    expected = [reference_dqn_update(dqn, n, data, trial) for trial in range(2)]
    np.testing.assert_allclose(gradient, [g for _, g in expected], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dqn.update(data).td[0], [td for td, _ in expected], rtol=1e-9, atol=1e-12)
    assert all(np.abs(g).max() > 1e-6 for _, g in expected)


@pytest.mark.parametrize(("network", "updates"), [("small", 250), ("ddpg_original", 15)])
@pytest.mark.parametrize("batch", [16, 5])
def test_a_trial_is_bit_identical_among_others_and_alone(network: str, updates: int, batch: int) -> None:
    config = msgspec.convert({"network": network, "batch": batch}, DqnConfig)
    data = _minibatches(0, (updates, 3, batch))
    joint = _dqn(config, seeds=(10, 11, 12))
    observation, observations = (np.random.default_rng(1).uniform(-1, 1, (3, states, 2)) for states in (2, 201))
    td, policy, policies = joint.update(data).td, joint.policy(observation), joint.policy(observations)
    for trial, seed in enumerate((10, 11, 12)):
        single = _dqn(config, seeds=(seed,))
        assert np.array_equal(single.update(select_trial(data, trial)).td[:, 0], td[:, trial])
        assert np.array_equal(single.policy(observation[trial : trial + 1])[0], policy[trial])
        assert np.array_equal(single.policy(observations[trial : trial + 1])[0], policies[trial])
        for name, values in single.state().items():
            expected = joint.state()[name]
            assert np.array_equal(
                values if values.ndim == 0 else values[0], expected if values.ndim == 0 else expected[trial]
            )


def test_batched_updates_equal_single_updates() -> None:
    data = _minibatches(0, (20, 2, 16))
    batched, sequential = (_dqn(DqnConfig(target_every=7), seeds=(1, 2)) for _ in range(2))
    td = batched.update(data).td
    for k in range(20):
        assert np.array_equal(sequential.update(select_minibatch(data, k)).td[0], td[k])
    assert batched.updates == sequential.updates == 20
    assert np.array_equal(batched.rows, sequential.rows)


def test_importance_weights_scale_the_gradient() -> None:
    dqn = _dqn(DqnConfig())
    data = _minibatches(0, (1, 1, 16), weighted=False)
    double_gradients = gradients(dqn, replace(data, weights=np.full((1, 1, 16), 2.0)))
    assert np.array_equal(2.0 * gradients(dqn, data)["network"], double_gradients["network"])


def test_termination_removes_the_bootstrap() -> None:
    config = DqnConfig(reward_scale=1.0)
    data = _minibatches(0, (1, 1, 16))
    terminated, not_terminated = (replace(data, terminated=np.full((1, 1, 16), end)) for end in (True, False))
    other_successor, bootstrapped_elsewhere = (
        replace(x, next_observation=-data.next_observation) for x in (terminated, not_terminated)
    )
    td = [_dqn(config).update(x).td for x in (terminated, other_successor, not_terminated, bootstrapped_elsewhere)]
    assert np.array_equal(td[0], td[1])
    assert not np.array_equal(td[2], td[3])


def test_targets_are_constant_until_they_are_copied() -> None:
    dqn = _dqn(DqnConfig(target_every=20))
    initial_vectors = vectors(dqn.state(), "network")
    dqn.update(_minibatches(0, (19, 1, 16)))
    assert np.array_equal(vectors(dqn.state(), "target_network"), initial_vectors)
    assert not np.array_equal(vectors(dqn.state(), "network"), initial_vectors)
    dqn.update(_minibatches(1, (1, 1, 16)))
    target_vectors = vectors(dqn.state(), "target_network")
    assert np.array_equal(target_vectors, vectors(dqn.state(), "network"))
    dqn.update(_minibatches(2, (19, 1, 16)))
    assert np.array_equal(vectors(dqn.state(), "target_network"), target_vectors)


def test_decoupled_decay_shrinks_weights_without_gradient() -> None:
    # Rewards of 0 on a network of zeros except one weight without effect: only decay changes it.
    dqn = _dqn(DqnConfig(weight_decay=0.5, lr=0.1), dtype=np.float64)
    state = dqn.state()
    vector = np.zeros_like(vectors(state, "network"))
    vector[0, 0] = 1.0
    dqn.restore(replace_vectors(replace_vectors(state, "network", vector), "target_network", vector))
    dqn.update(replace(_minibatches(0, (3, 1, 16)), reward=np.zeros((3, 1, 16))))
    vectors_after = vectors(dqn.state(), "network")
    assert float(vectors_after[0, 0]) == pytest.approx(0.95**3)
    assert np.count_nonzero(vectors_after) == 1


def test_a_restored_learner_continues_bit_for_bit() -> None:
    config = DqnConfig(target_every=25)
    data = _minibatches(0, (30, 2, 16))
    dqn = _dqn(config, seeds=(1, 2))
    dqn.update(data)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **dqn.state())
    other = _dqn(config, seeds=(8, 9))
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        other.restore(state)
    assert np.array_equal(dqn.update(data).td, other.update(data).td)
    assert other.updates == 60
    assert all(np.array_equal(value, other.state()[name]) for name, value in dqn.state().items())


def test_a_state_of_other_networks_is_refused() -> None:
    with pytest.raises(ValueError, match="of shape"):
        _dqn(DqnConfig()).restore(_dqn(DqnConfig(levels=7)).state())
    with pytest.raises(KeyError):
        _dqn(DqnConfig()).restore({})


def test_minibatches_of_another_shape_are_refused() -> None:
    dqn = _dqn(DqnConfig())
    for shape, m in (((1, 2, 16), 1), ((1, 1, 15), 1), ((1, 1, 16), 2)):
        with pytest.raises(ValueError, match="expected"):
            dqn.update(minibatches(np.random.default_rng(0), shape, 2, m))
    assert dqn.updates == 0


def test_the_policy_takes_the_best_level_and_the_lowest_of_equals() -> None:
    dqn = _dqn(DqnConfig(levels=5), dtype=np.float64)
    state = dqn.state()
    for best, action in (((), -1.0), ((3,), 0.5), ((2, 4), 0.0), ((0, 1, 2, 3, 4), -1.0)):
        vector = np.zeros_like(vectors(state, "network"))
        for level in best:
            vector[0, -5 + level] = 1.0  # the biases of the output layer are at the end of the vector
        dqn.restore(replace_vectors(state, "network", vector))
        assert np.array_equal(dqn.policy(np.ones((1, 3, 2))), np.full((1, 3, 1), action))


def test_a_diverged_network_has_no_best_level() -> None:
    dqn = _dqn(DqnConfig(levels=5), dtype=np.float64)
    state = dqn.state()
    dqn.restore(replace_vectors(state, "network", np.full_like(vectors(state, "network"), np.nan)))
    assert np.isnan(dqn.policy(np.ones((1, 3, 2)))).all()


def test_negative_values_of_all_levels_are_compared_correctly() -> None:
    dqn = _dqn(DqnConfig(levels=5, reward_scale=1.0, gamma=0.5), dtype=np.float64)
    state = dqn.state()
    vector = np.zeros_like(vectors(state, "network"))
    vector[0, -5:] = (-4.0, -3.0, -2.0, -3.0, -4.0)
    dqn.restore(replace_vectors(replace_vectors(state, "network", vector), "target_network", vector))
    assert np.array_equal(dqn.policy(np.ones((1, 1, 2))), [[[0.0]]])
    zeros = np.zeros((1, 1, 16))
    data = replace(_minibatches(0, (1, 1, 16)), reward=zeros, action=zeros[..., None], terminated=zeros > 0)
    np.testing.assert_allclose(dqn.update(data).td, 0.5 * -2.0 - -2.0)


@given(levels=st.integers(2, 40), data=st.data())
def test_every_action_maps_to_its_nearest_level(levels: int, data: st.DataObject) -> None:
    values = np.linspace(-1, 1, levels)
    assert np.array_equal(nearest_level(values.astype(np.float32), levels), np.arange(levels))
    action = data.draw(st.floats(-1.5, 1.5))
    distance = np.abs(values - action)
    assert distance[nearest_level(np.array([action]), levels)[0]] == pytest.approx(distance.min(), abs=1e-12)


def test_an_action_half_way_maps_to_the_lower_level() -> None:
    assert nearest_level(np.array([-0.5, 0.5]), 3).tolist() == [0, 1]


def test_a_trial_draws_only_from_its_own_stream() -> None:
    state = _dqn(DqnConfig(), seeds=(5, 6)).state()
    assert vectors(state, "network").shape == (2, 4035)
    single = _dqn(DqnConfig(), seeds=(6,)).state()
    assert np.array_equal(vectors(single, "network")[0], vectors(state, "network")[1])
    assert np.array_equal(vectors(state, "network"), vectors(state, "target_network"))


def test_the_policy_finds_the_best_action_of_a_bandit() -> None:
    config = DqnConfig(gamma=0.0, lr=1e-2, reward_scale=5.0, batch=32, levels=5)
    dqn = _dqn(config, 1, (0, 1))
    data = _minibatches(0, (600, 2, 32), 1, weighted=False)
    data = replace(data, action=dqn.levels[np.random.default_rng(1).integers(5, size=data.action.shape)])
    dqn.update(replace(data, reward=-((data.action - 0.5 * data.observation)[..., 0] ** 2)))
    observation = np.broadcast_to(np.array([[-0.95], [0.0], [0.95]]), (2, 3, 1))
    assert np.array_equal(dqn.policy(observation), np.broadcast_to(np.array([[-0.5], [0.0], [0.5]]), (2, 3, 1)))


def test_the_levels_are_uniform_from_end_to_end() -> None:
    levels = _dqn(DqnConfig()).levels
    assert levels.dtype == np.float32
    np.testing.assert_allclose(levels, np.arange(-7, 8) / 7, atol=1e-7)


def test_the_defaults_are_those_of_the_paper() -> None:
    c = DqnConfig()
    assert (c.levels, c.target_every, c.epsilon) == (15, 200, ((1, 0.7), (500, 0.01)))
    assert (c.gamma, c.batch, c.lr, c.weight_decay, c.decay, c.network) == (0.95, 16, 1e-3, 5e-3, "decoupled", "small")


@pytest.mark.parametrize(
    "section", [{"tau": 0.1}, {"gamma": 1.0}, {"levels": 1}, {"batch": 0}, {"target_every": 0}, {"lr": -1.0}]
)
def test_impossible_settings_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, DqnConfig)
