from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithm_settings import DdpgConfig
from onrig.learner.algorithms.ddpg import Ddpg
from tests.learner.reference import (
    gradients,
    layouts,
    minibatches,
    numpy_policy,
    reference_update,
    select_minibatch,
    select_trial,
    vectors,
)


def _ddpg(
    config: DdpgConfig, n: int, m: int, seeds: tuple[int, ...] = (0,), dtype: type[np.floating] = np.float32
) -> Ddpg:
    return Ddpg(config, n, m, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


@pytest.mark.parametrize(
    ("network", "n", "m", "batch", "weighted"),
    [
        ("small", 2, 1, 16, True),
        ("small", 2, 4, 16, False),
        ("small", 3, 2, 5, True),
        ("small", 7, 5, 1, True),
        ("ddpg_original", 2, 4, 6, True),
    ],
)
def test_gradients_and_td_errors_equal_autograd(network: str, n: int, m: int, batch: int, weighted: bool) -> None:
    config = msgspec.convert({"network": network, "batch": batch, "reward_scale": 0.1}, DdpgConfig)
    ddpg = _ddpg(config, n, m, (3, 4), np.float64)
    rng = np.random.default_rng(5)
    # First some steps, so that targets differ from the online networks and outputs are no longer tiny.
    ddpg.update(minibatches(rng, (40, 2, batch), n, m))
    data = minibatches(rng, (1, 2, batch), n, m, weighted=weighted)
    actual = gradients(ddpg, data)
    actor, critic = actual["actor"], actual["critic"]
    expected = [reference_update(ddpg, config, n, m, data, trial) for trial in range(2)]
    np.testing.assert_allclose(actor, [w.actor_gradient for w in expected], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(critic, [w.critic_gradient for w in expected], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ddpg.update(data).td[0], [w.td for w in expected], rtol=1e-9, atol=1e-12)
    assert all(np.abs(w.actor_gradient).max() > 1e-6 for w in expected)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("batch", [16, 5])
def test_a_trial_is_bit_identical_among_others_and_alone(m: int, batch: int) -> None:
    config = DdpgConfig(batch=batch)
    data = minibatches(np.random.default_rng(0), (200, 3, batch), 2, m)
    joint = _ddpg(config, 2, m, (10, 11, 12))
    observation = np.random.default_rng(1).uniform(-1, 1, (3, 2, 2))
    td, policy = joint.update(data).td, joint.policy(observation)
    for trial, seed in enumerate((10, 11, 12)):
        single = _ddpg(config, 2, m, (seed,))
        assert np.array_equal(single.update(select_trial(data, trial)).td[:, 0], td[:, trial])
        assert np.array_equal(single.policy(observation[trial : trial + 1])[0], policy[trial])
        for name, values in single.state().items():
            expected = joint.state()[name]
            assert np.array_equal(
                values if values.ndim == 0 else values[0], expected if values.ndim == 0 else expected[trial]
            )


def test_batched_updates_equal_single_updates() -> None:
    data = minibatches(np.random.default_rng(0), (20, 2, 16), 2, 1)
    batched, sequential = (_ddpg(DdpgConfig(), 2, 1, (1, 2)) for _ in range(2))
    td = batched.update(data).td
    for k in range(20):
        minibatch = select_minibatch(data, k)
        assert np.array_equal(sequential.update(minibatch).td[0], td[k])
    assert batched.updates == sequential.updates == 20
    assert np.array_equal(batched.rows, sequential.rows)


def test_importance_weights_change_the_critic_gradient_only() -> None:
    ddpg = _ddpg(DdpgConfig(), 2, 1)
    data = minibatches(np.random.default_rng(0), (1, 1, 16), 2, 1, weighted=False)
    single_gradients, double_gradients = (
        gradients(ddpg, data),
        gradients(ddpg, replace(data, weights=np.full((1, 1, 16), 2.0))),
    )
    assert np.array_equal(single_gradients["actor"], double_gradients["actor"])
    assert np.array_equal(2.0 * single_gradients["critic"], double_gradients["critic"])


def test_termination_removes_the_bootstrap() -> None:
    config = DdpgConfig(reward_scale=1.0)
    ddpg = _ddpg(config, 2, 1)
    data = minibatches(np.random.default_rng(0), (1, 1, 16), 2, 1)
    terminated, not_terminated = (replace(data, terminated=np.full((1, 1, 16), end)) for end in (True, False))
    other_successor = replace(terminated, next_observation=-data.next_observation)
    bootstrapped_elsewhere = replace(not_terminated, next_observation=-data.next_observation)
    algorithms = [_ddpg(config, 2, 1) for _ in range(4)]
    td = [
        twin.update(x).td
        for twin, x in zip(
            algorithms, (terminated, other_successor, not_terminated, bootstrapped_elsewhere), strict=True
        )
    ]
    assert np.array_equal(td[0], td[1])
    assert not np.array_equal(td[2], td[3])
    assert ddpg.updates == 0


def test_targets_follow_at_rate_tau() -> None:
    ddpg = _ddpg(DdpgConfig(tau=0.25), 2, 1, dtype=np.float64)
    state_before = ddpg.state()
    ddpg.update(minibatches(np.random.default_rng(0), (1, 1, 16), 2, 1))
    state_after = ddpg.state()
    for net in ("actor", "critic"):
        expected_target = 0.75 * vectors(state_before, f"target_{net}") + 0.25 * vectors(state_after, net)
        np.testing.assert_allclose(vectors(state_after, f"target_{net}"), expected_target, rtol=1e-12)
        assert not np.array_equal(vectors(state_before, net), vectors(state_after, net))


def test_a_restored_learner_continues_bit_for_bit() -> None:
    data = minibatches(np.random.default_rng(0), (30, 2, 16), 2, 4)
    ddpg = _ddpg(DdpgConfig(), 2, 4, (1, 2))
    ddpg.update(data)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **ddpg.state())
    other = _ddpg(DdpgConfig(), 2, 4, (8, 9))
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        other.restore(state)
    assert np.array_equal(ddpg.update(data).td, other.update(data).td)
    assert other.updates == 60
    assert all(np.array_equal(value, other.state()[name]) for name, value in ddpg.state().items())


def test_a_state_of_other_networks_is_refused() -> None:
    with pytest.raises(ValueError, match="of shape"):
        _ddpg(DdpgConfig(), 2, 1).restore(_ddpg(DdpgConfig(), 2, 4).state())
    with pytest.raises(KeyError):
        _ddpg(DdpgConfig(), 2, 1).restore({})


def test_minibatches_of_another_shape_are_refused() -> None:
    ddpg = _ddpg(DdpgConfig(), 2, 1)
    for shape, m in (((1, 2, 16), 1), ((1, 1, 15), 1), ((1, 1, 16), 2)):
        with pytest.raises(ValueError, match="expected"):
            ddpg.update(minibatches(np.random.default_rng(0), shape, 2, m))


def test_the_policy_is_the_exported_actor() -> None:
    ddpg = _ddpg(DdpgConfig(), 2, 4, (1, 2))
    ddpg.update(minibatches(np.random.default_rng(0), (30, 2, 16), 2, 4))
    observation = np.random.default_rng(1).uniform(-2, 2, (2, 3, 2))
    for trial in range(2):
        expected = numpy_policy(ddpg.actor_layers(trial), observation[trial])
        np.testing.assert_allclose(ddpg.policy(observation)[trial], expected, atol=1e-6)


def test_actors_and_critics_draw_only_from_the_stream_of_their_trial() -> None:
    state = _ddpg(DdpgConfig(), 2, 1, (5, 6)).state()
    actor, critic = layouts(DdpgConfig(), 2, 1)
    assert vectors(state, "actor").shape == (2, sum((i + 1) * o for i, o in actor))
    assert vectors(state, "critic").shape == (2, sum((i + 1) * o for i, o in critic))
    single = _ddpg(DdpgConfig(), 2, 1, (6,)).state()
    assert np.array_equal(vectors(single, "critic")[0], vectors(state, "critic")[1])
    assert np.array_equal(vectors(state, "actor"), vectors(state, "target_actor"))


def test_the_policy_climbs_to_the_best_action_of_a_bandit() -> None:
    config = DdpgConfig(gamma=0.0, actor_lr=1e-3, critic_lr=1e-2, reward_scale=5.0, batch=32)
    ddpg = _ddpg(config, 1, 1, (0, 1))
    data = minibatches(np.random.default_rng(0), (600, 2, 32), 1, 1, weighted=False)
    best = 0.5 * data.observation
    ddpg.update(replace(data, reward=-((data.action - best)[..., 0] ** 2)))
    observation = np.broadcast_to(np.array([[-0.8], [0.0], [0.8]]), (2, 3, 1))
    np.testing.assert_allclose(ddpg.policy(observation), 0.5 * observation, atol=0.12)


def test_the_defaults_are_those_of_the_methods_page() -> None:
    c = DdpgConfig()
    assert (c.gamma, c.tau, c.batch, c.actor_lr, c.critic_lr, c.critic_decay) == (0.95, 1e-2, 16, 1e-4, 1e-3, 5e-3)
    assert (c.decay, c.reward_scale, c.network) == ("decoupled", 1e-3, "small")


@pytest.mark.parametrize(
    "section",
    [{"learning_rate": 1e-3}, {"gamma": 1.0}, {"tau": 0.0}, {"batch": 0}, {"critic_lr": -1.0}, {"decay": "l2"}],
)
def test_impossible_settings_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, DdpgConfig)
