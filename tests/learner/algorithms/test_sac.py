from __future__ import annotations

import io
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithms import Exportable, Stochastic
from onrig.learner.algorithms.sac import Sac
from onrig.learner.sac_settings import SacConfig
from onrig.runtime.memory.order.uniforms import restore_stream
from tests.learner.numpy_nets import GaussianActor, evaluate_critic, minibatch_data, sac_update, trial_state
from tests.learner.reference import minibatches, select_minibatch, select_trial

SMALL_CONFIG = SacConfig(hidden=(24, 17), batch=6, reward_scale=0.1, tau=0.05, lr=1e-3, temperature=0.2)


def _sac(
    config: SacConfig, n: int = 3, m: int = 2, seeds: tuple[int, ...] = (0,), dtype: type[np.floating] = np.float32
) -> Sac:
    return Sac(config, n, m, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


@pytest.mark.parametrize(
    ("changes", "weighted"), [({}, True), ({"log_std": (-0.05, 0.05)}, False), ({"hidden": (9,)}, True)]
)
def test_updates_equal_numpys_in_losses_gradients_and_steps(changes: dict[str, object], weighted: bool) -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, **changes)
    sac = _sac(config, seeds=(3, 4), dtype=np.float64)
    # First some steps, so that targets differ from the online networks.
    sac.update(minibatches(np.random.default_rng(5), (20, 2, 6), 3, 2))
    state_before = sac.state()
    data = minibatches(np.random.default_rng(6), (2, 2, 6), 3, 2, weighted=weighted)
    signals, state_after = sac.update(data), sac.state()
    for trial in range(2):
        stream = np.random.default_rng()
        restore_stream(stream, state_before["streams"][trial])
        expected = trial_state(state_before, trial)
        noise = stream.standard_normal((2, 2, 6, 2))
        errors = [sac_update(expected, config, minibatch_data(data, k, trial), noise[k]) for k in range(2)]
        np.testing.assert_allclose(signals.td[:, trial], np.mean(errors, axis=1), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(signals.priority[:, trial], np.abs(errors).max(axis=1), rtol=1e-9, atol=1e-12)
        for key, values in trial_state(state_after, trial).items():
            np.testing.assert_allclose(values, expected[key], rtol=1e-6, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_log_probabilities_match_the_density_of_the_sampled_actions(m: int) -> None:
    sac = _sac(SMALL_CONFIG, 3, m, dtype=np.float64)
    sac.update(minibatches(np.random.default_rng(0), (50, 1, 6), 3, m))
    rng = np.random.default_rng(1)
    s, noise = rng.uniform(-1, 1, (1, 8, 3)), rng.standard_normal((8, m))
    log_pi = sac.forward(lambda tape, x, eps: sac._act(x, eps)[1], 3, 1, m)(s, noise[None])  # type: ignore[arg-type]
    samples = sac.sample(s, noise[None])[0]
    mean = np.arctanh(sac.policy(s)[0])
    std = (np.arctanh(samples) - mean) / noise

    def cumulative_distribution(a: np.ndarray) -> np.ndarray:
        """The distribution function of each component: a normal one behind the squashing."""
        z = (np.arctanh(a) - mean) / std
        return np.array([[0.5 * (1 + math.erf(v / math.sqrt(2))) for v in row] for row in z])

    h = 1e-5
    density = ((cumulative_distribution(samples + h) - cumulative_distribution(samples - h)) / (2 * h)).prod(axis=1)
    np.testing.assert_allclose(np.exp(log_pi[0, :, 0]), density, rtol=1e-3)


def test_the_actors_gradient_equals_finite_differences() -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, hidden=(7,), batch=4, lr=1e-9)
    sac = _sac(config, dtype=np.float64)
    data = minibatches(np.random.default_rng(0), (1, 1, 4), 3, 2)
    state = sac.state()
    sac.update(data)  # by a tiny number: Adam's first moment is a tenth of the gradient
    gradient = 10.0 * trial_state(sac.state(), 0)["adam_mean_actor"][0]
    stream = np.random.default_rng()
    restore_stream(stream, state["streams"][0])
    eps = stream.standard_normal((2, 4, 2))[1]
    trial_vectors = trial_state(state, 0)
    s = np.asarray(data.observation[0, 0])

    def loss(vector: np.ndarray) -> float:
        sample = GaussianActor(vector, 3, 2, config).act(s, eps)
        q = np.min(
            [evaluate_critic(critic, (5, 7, 1), s, sample.action) for critic in trial_vectors["online_critic"]], axis=0
        )
        return float((config.temperature * sample.log_pi - q).mean())

    actor, step = trial_vectors["online_actor"][0], 1e-6
    for i in range(0, len(actor), 3):
        losses = [loss(actor + sign * step * (np.arange(len(actor)) == i)) for sign in (1, -1)]
        assert gradient[i] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5, abs=1e-8)
    assert np.abs(gradient).max() > 1e-2


@pytest.mark.parametrize(("batch", "m"), [(16, 1), (5, 3), (13, 4)])
def test_a_trial_is_bit_identical_among_others_and_alone(batch: int, m: int) -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, batch=batch)
    data = minibatches(np.random.default_rng(0), (30, 5, batch), 3, m)
    joint = _sac(config, 3, m, (10, 11, 12, 13, 14))
    rng = np.random.default_rng(1)
    observation, noise = rng.uniform(-1, 1, (5, 2, 3)), rng.standard_normal((5, 2, m))
    signals, state = joint.update(data), joint.state()
    policy, sample = joint.policy(observation), joint.sample(observation, noise)
    for trial in (0, 3):
        single, own_slice = _sac(config, 3, m, (10 + trial,)), slice(trial, trial + 1)
        assert np.array_equal(single.update(select_trial(data, trial)).td[:, 0], signals.td[:, trial])
        assert np.array_equal(single.policy(observation[own_slice])[0], policy[trial])
        assert np.array_equal(single.sample(observation[own_slice], noise[own_slice])[0], sample[trial])
        for name, values in single.state().items():
            pair = (values[0], state[name][trial]) if values.ndim else (values, state[name])
            assert np.array_equal(*pair), name


def test_batched_updates_equal_single_updates() -> None:
    data = minibatches(np.random.default_rng(0), (7, 2, 6), 3, 2)
    batched, sequential = (_sac(SMALL_CONFIG, seeds=(1, 2)) for _ in range(2))
    td = batched.update(data).td
    for k in range(7):
        assert np.array_equal(sequential.update(select_minibatch(data, k)).td[0], td[k])
    assert all(np.array_equal(value, sequential.state()[name]) for name, value in batched.state().items())


def test_a_restored_learner_continues_bit_for_bit_including_noise_and_temperature() -> None:
    data = minibatches(np.random.default_rng(0), (11, 2, 6), 3, 2)
    sac = _sac(SMALL_CONFIG, seeds=(1, 2))
    sac.update(data)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **sac.state())
    other = _sac(SMALL_CONFIG, seeds=(8, 9))
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        other.restore(state)
    assert np.array_equal(sac.update(data).td, other.update(data).td)
    assert other.updates == 22
    assert all(np.array_equal(value, other.state()[name]) for name, value in sac.state().items())


def test_unsupported_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        _sac(SMALL_CONFIG).update(minibatches(np.random.default_rng(0), (1, 1, 7), 3, 2))
    with pytest.raises(ValueError, match="of shape"):
        _sac(SMALL_CONFIG).restore(_sac(SMALL_CONFIG, m=4).state())


def test_a_diverged_trial_does_not_disturb_the_others() -> None:
    data = minibatches(np.random.default_rng(0), (5, 3, 6), 3, 2)
    undisturbed, diverged = (_sac(SMALL_CONFIG, seeds=(1, 2, 3)) for _ in range(2))
    state = diverged.state()
    state["actor/weight0"][1] = np.nan
    diverged.restore(state)
    expected, actual = undisturbed.update(data).td, diverged.update(data).td
    assert np.array_equal(expected[:, [0, 2]], actual[:, [0, 2]])
    assert np.isnan(actual[-1, 1]).all()


def test_without_noise_a_sample_is_the_mean_and_the_std_stays_within_its_bounds() -> None:
    sac = _sac(msgspec.structs.replace(SMALL_CONFIG, log_std=(-1.0, -1.0 + 1e-6)), dtype=np.float64)
    observation = np.random.default_rng(1).uniform(-1, 1, (1, 3, 3))
    np.testing.assert_allclose(sac.sample(observation, np.zeros((1, 3, 2))), sac.policy(observation), rtol=1e-12)
    pre_squash_noise = np.arctanh(sac.sample(observation, np.ones((1, 3, 2)))) - np.arctanh(sac.policy(observation))
    np.testing.assert_allclose(pre_squash_noise, math.exp(-1.0), rtol=1e-5)


def test_the_temperature_drives_the_entropy_to_minus_the_number_of_actions() -> None:
    config = SacConfig(hidden=(16, 16), batch=32, gamma=0.0, lr=1e-2, reward_scale=1.0, temperature=0.01)
    sac = _sac(config, 1, 1, (0, 1))
    data = minibatches(np.random.default_rng(0), (250, 2, 32), 1, 1, weighted=False)
    sac.update(replace(data, reward=-((data.action - 0.5 * data.observation)[..., 0] ** 2)))
    observation = np.broadcast_to(np.array([[-0.8], [0.0], [0.8]]), (2, 3, 1))
    np.testing.assert_allclose(sac.policy(observation), 0.5 * observation, atol=0.2)
    noise = np.random.default_rng(1).standard_normal((2, 3000, 1))
    samples = sac.sample(np.zeros((2, 3000, 1)), noise)
    # A normal of standard deviation 0.089 has an entropy of -1; squashing reduces it only a little near 0.
    np.testing.assert_allclose(samples.std(axis=1), 0.089, rtol=0.35)


def test_it_explores_by_itself_and_runs_on_a_rig() -> None:
    sac = _sac(SMALL_CONFIG)
    assert isinstance(sac, Stochastic)
    assert isinstance(sac, Exportable)


@pytest.mark.parametrize("section", [{"log_std": [-30, 2]}, {"temperature": 0.0}, {"lr": 0.0}, {"delays": 2}])
def test_impossible_settings_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, SacConfig)
