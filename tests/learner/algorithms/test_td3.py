from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithm_settings import Td3Config
from onrig.learner.algorithms.td3 import Td3
from onrig.runtime.memory.order.uniforms import restore_stream
from tests.learner.numpy_nets import minibatch_data, td3_update, trial_state
from tests.learner.reference import minibatches, numpy_policy, replace_vectors, select_minibatch, select_trial, vectors

SMALL_CONFIG = Td3Config(hidden=(24, 17), batch=6, reward_scale=0.1, tau=0.05)


def _td3(
    config: Td3Config, n: int = 3, m: int = 2, seeds: tuple[int, ...] = (0,), dtype: type[np.floating] = np.float32
) -> Td3:
    return Td3(config, n, m, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


@pytest.mark.parametrize(
    ("changes", "weighted"), [({}, True), ({"targets": "every"}, False), ({"delay": 1, "hidden": (9,)}, True)]
)
def test_updates_equal_numpys_in_losses_gradients_and_steps(changes: dict[str, object], weighted: bool) -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, **changes)
    td3 = _td3(config, seeds=(3, 4), dtype=np.float64)
    # First some steps, so that targets differ from the online networks.
    td3.update(minibatches(np.random.default_rng(5), (21, 2, 6), 3, 2))
    state_before = td3.state()
    # Adam divides by a tiny number at small gradients, so all parameters get a gradient large enough to compare.
    data = minibatches(np.random.default_rng(6), (2, 2, 6), 3, 2, weighted=weighted)
    signals, state_after = td3.update(data), td3.state()
    for trial in range(2):
        stream = np.random.default_rng()
        restore_stream(stream, state_before["streams"][trial])
        expected = trial_state(state_before, trial)
        errors = [
            td3_update(expected, config, minibatch_data(data, k, trial), stream.standard_normal((6, 2)))
            for k in range(2)
        ]
        np.testing.assert_allclose(signals.td[:, trial], np.mean(errors, axis=1), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(signals.priority[:, trial], np.abs(errors).max(axis=1), rtol=1e-9, atol=1e-12)
        for key, values in trial_state(state_after, trial).items():
            np.testing.assert_allclose(values, expected[key], rtol=1e-6, atol=1e-10, err_msg=key)
    assert state_after["updates"] == 23


def test_the_actor_ascends_the_first_critic_by_finite_differences() -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, delay=1, hidden=(7,), batch=4, lr=1e-9)
    td3 = _td3(config, dtype=np.float64)
    data = minibatches(np.random.default_rng(0), (1, 1, 4), 3, 2)
    state = td3.state()
    td3.update(data)  # by a tiny number: Adam's first moment is a tenth of the gradient
    gradient = 10.0 * trial_state(td3.state(), 0)["adam_mean_actor"][0]
    critic = vectors(td3.state(), "critic1")[0]

    def loss(actor: np.ndarray) -> float:
        td3.restore(replace_vectors(state, "actor", actor[None]))
        a = td3.policy(data.observation[0])
        x = np.concatenate((data.observation[0, 0], a[0]), axis=1)
        weight, bias = critic[: 6 * 7].reshape(6, 7)[:5], critic[5 * 7 : 6 * 7]
        return -float((np.maximum(x @ weight + bias, 0.0) @ critic[42:49] + critic[49]).mean())

    actor_vector = vectors(state, "actor")[0]
    step = 1e-6
    for i in range(0, len(actor_vector), 3):
        losses = [loss(actor_vector + sign * step * (np.arange(len(actor_vector)) == i)) for sign in (1, -1)]
        assert gradient[i] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5, abs=1e-8)
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize(("batch", "m"), [(16, 1), (5, 3), (13, 4)])
def test_a_trial_is_bit_identical_among_others_and_alone(batch: int, m: int) -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, batch=batch)
    data = minibatches(np.random.default_rng(0), (40, 5, batch), 3, m)
    joint = _td3(config, 3, m, (10, 11, 12, 13, 14))
    observation = np.random.default_rng(1).uniform(-1, 1, (5, 2, 3))
    signals, policy, state = joint.update(data), joint.policy(observation), joint.state()
    for trial in (0, 3):
        single = _td3(config, 3, m, (10 + trial,))
        assert np.array_equal(single.update(select_trial(data, trial)).td[:, 0], signals.td[:, trial])
        assert np.array_equal(single.policy(observation[trial : trial + 1])[0], policy[trial])
        for name, values in single.state().items():
            pair = (values[0], state[name][trial]) if values.ndim else (values, state[name])
            assert np.array_equal(*pair), name


def test_batched_updates_equal_single_updates() -> None:
    data = minibatches(np.random.default_rng(0), (7, 2, 6), 3, 2)
    batched, sequential = (_td3(SMALL_CONFIG, seeds=(1, 2)) for _ in range(2))
    td = batched.update(data).td
    for k in range(7):
        assert np.array_equal(sequential.update(select_minibatch(data, k)).td[0], td[k])
    assert all(np.array_equal(value, sequential.state()[name]) for name, value in batched.state().items())


def test_a_restored_learner_continues_bit_for_bit_including_noise() -> None:
    data = minibatches(np.random.default_rng(0), (11, 2, 6), 3, 2)
    td3 = _td3(SMALL_CONFIG, seeds=(1, 2))
    td3.update(data)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **td3.state())
    other = _td3(SMALL_CONFIG, seeds=(8, 9))
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        other.restore(state)
    assert np.array_equal(td3.update(data).td, other.update(data).td)
    assert other.updates == 22
    assert all(np.array_equal(value, other.state()[name]) for name, value in td3.state().items())


def test_a_state_of_other_networks_or_trials_is_refused() -> None:
    for other in (_td3(SMALL_CONFIG, m=4), _td3(SMALL_CONFIG, seeds=(0, 1))):
        with pytest.raises(ValueError, match="of shape"):
            _td3(SMALL_CONFIG).restore(other.state())
    with pytest.raises(KeyError):
        _td3(SMALL_CONFIG).restore({})


def test_unsupported_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        _td3(SMALL_CONFIG).update(minibatches(np.random.default_rng(0), (1, 1, 7), 3, 2))


def test_termination_removes_the_bootstrap() -> None:
    data = minibatches(np.random.default_rng(0), (1, 1, 6), 3, 2)
    terminated, not_terminated = (replace(data, terminated=np.full((1, 1, 6), end)) for end in (True, False))
    other_successor, bootstrapped_elsewhere = (
        replace(x, next_observation=-data.next_observation) for x in (terminated, not_terminated)
    )
    td = [
        _td3(SMALL_CONFIG).update(x).td for x in (terminated, other_successor, not_terminated, bootstrapped_elsewhere)
    ]
    assert np.array_equal(td[0], td[1])
    assert not np.array_equal(td[2], td[3])


def test_a_diverged_trial_does_not_disturb_the_others() -> None:
    data = minibatches(np.random.default_rng(0), (5, 3, 6), 3, 2)
    undisturbed, diverged = (_td3(SMALL_CONFIG, seeds=(1, 2, 3)) for _ in range(2))
    state = diverged.state()
    state["actor/weight0"][1] = np.nan
    diverged.restore(state)
    expected, actual = undisturbed.update(data).td, diverged.update(data).td
    assert np.array_equal(expected[:, [0, 2]], actual[:, [0, 2]])
    assert np.isnan(actual[-1, 1]).all()


def test_the_policy_is_the_exported_actor() -> None:
    td3 = _td3(SMALL_CONFIG, seeds=(1, 2))
    td3.update(minibatches(np.random.default_rng(0), (30, 2, 6), 3, 2))
    observation = np.random.default_rng(1).uniform(-2, 2, (2, 3, 3))
    for trial in range(2):
        expected = numpy_policy(td3.actor_layers(trial), observation[trial])
        np.testing.assert_allclose(td3.policy(observation)[trial], expected, atol=1e-6)


def test_the_policy_climbs_to_the_best_action_of_a_bandit() -> None:
    config = Td3Config(hidden=(24, 24), batch=32, gamma=0.0, lr=5e-3, reward_scale=1.0)
    td3 = _td3(config, 1, 1, (0, 1))
    data = minibatches(np.random.default_rng(0), (400, 2, 32), 1, 1, weighted=False)
    td3.update(replace(data, reward=-((data.action - 0.5 * data.observation)[..., 0] ** 2)))
    observation = np.broadcast_to(np.array([[-0.8], [0.0], [0.8]]), (2, 3, 1))
    np.testing.assert_allclose(td3.policy(observation), 0.5 * observation, atol=0.2)


@pytest.mark.parametrize(
    "section",
    [{"hidden": []}, {"hidden": [0]}, {"delay": 0}, {"targets": "never"}, {"target_noise": -0.1}, {"network": "small"}],
)
def test_impossible_settings_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, Td3Config)
