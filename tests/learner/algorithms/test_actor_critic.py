from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithms import algorithm_for
from onrig.learner.algorithms.actor_critic import ActorCritic
from onrig.learner.algorithms.ppo import Ppo
from onrig.learner.algorithms.trpo import Trpo
from onrig.learner.settings import LearnerSettings
from onrig.runtime.policy.admission import AdmissionLimits, Admitted, admit
from onrig.runtime.policy.contract import GAUSSIAN, contract_for
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.policy.session import PolicySession
from tests.learner.algorithms.policy_batches import make_policy_batch, policies, value_parameters
from tests.learner.algorithms.refer_algorithms import TEST_RIG

N_OBS, M_ACT, T = 3, 2, 32
BOTH_ALGORITHMS = pytest.mark.parametrize("name", ["ppo", "trpo"])


def _make_algorithm(name: str, **changes: Any) -> Ppo | Trpo:
    section = {"hidden": [8, 6], "steps": T, "batch": 8} | changes
    settings = msgspec.convert({"algorithm": name, name: section}, LearnerSettings)
    algorithm = algorithm_for(settings, N_OBS, M_ACT, [np.random.default_rng(3)])
    assert isinstance(algorithm, Ppo | Trpo)
    return algorithm


@BOTH_ALGORITHMS
@pytest.mark.parametrize("uses_filter", [True, False])
def test_its_model_has_torchs_distribution_and_is_admitted(name: str, uses_filter: bool) -> None:
    algorithm = _make_algorithm(name, filter=uses_filter)
    for i in range(3):
        algorithm.learn(make_policy_batch(algorithm, [i], N_OBS, M_ACT, T=T), 1.0)
    assert isinstance(algorithm, ActorCritic)
    assert (algorithm.actor_filter(0) is not None) is uses_filter
    contract = contract_for(TEST_RIG, 50.0, policy_id=1, parent_run="", training_step=0, behaviour=GAUSSIAN)
    std, model = algorithm.actor_std(0), algorithm.policy_graph(0, contract)
    rng = np.random.default_rng(2)
    normalised_states = rng.uniform(-9.0, 12.0, (50, N_OBS))  # some of them beyond the filter's cut
    session = PolicySession(model)
    assert session.noise is not None
    zero_noise = np.zeros((1, 50, M_ACT))
    mean, mean_plus_std = (algorithm.draw(normalised_states[None], zero_noise + noise)[0] for noise in (0.0, 1.0))
    np.testing.assert_allclose(mean_plus_std - mean, np.tile(std, (50, 1)), rtol=1e-4)
    for k, noise in enumerate(np.clip(rng.standard_normal((50, M_ACT)), -3, 3).astype(np.float32)):
        action, *ports = np.reshape(session.act((*(1.0 + 3.0 * normalised_states[k]), *noise)), (4, -1))
        drawn_action = mean[k] + std * noise
        np.testing.assert_allclose(np.array(ports), np.array((mean[k], std, drawn_action)), atol=2e-5)
        np.testing.assert_allclose((action - (0.0, 0.3)) / (3.0, 0.3), np.clip(drawn_action, -1, 1), atol=2e-5)
    probes = probe_states(contract, 64, seed=0)
    assert isinstance(admit(model, contract, probes, AdmissionLimits(latency_is_advisory=True)), Admitted)


@BOTH_ALGORITHMS
def test_advantages_and_targets_are_the_double_sum_over_the_rest_of_the_episode(name: str) -> None:
    gamma, lam, scale, K = 0.9, 0.7, 0.5, 2
    changes = {"gamma": gamma, "gae_lambda": lam, "reward_scale": scale, "actors": K, "steps": K * T}
    algorithm = _make_algorithm(name, filter=False, **changes)
    batch = make_policy_batch(algorithm, [1], N_OBS, M_ACT, K, T)
    # If an episode ends by its time limit, the value is that of its own last state.
    batch = batch._replace(next_observation=np.random.default_rng(2).standard_normal(batch.observation.shape))
    statistics = algorithm._compute_statistics(batch)
    assert batch.terminated[0, :, :-1].any(axis=1).all()
    assert batch.truncated[0, :, :-1].any(axis=1).all()

    *hidden, last_layer = algorithm._value.layers(algorithm.rows[0].astype(np.float64))

    def value(y: NDArray[np.floating]) -> NDArray[np.floating]:
        for weight, bias in hidden:
            y = np.tanh(y @ weight + bias)
        return np.asarray(y @ last_layer[0] + last_layer[1])[..., 0]

    values, next_values = value(batch.observation[0]), value(batch.next_observation[0])
    expected = np.zeros((K, T))
    for k in range(K):
        for t in range(T):
            for u in range(t, T):
                successor_value = 0.0 if batch.terminated[0, k, u] else next_values[k, u]
                expected[k, t] += (gamma * lam) ** (u - t) * (
                    scale * batch.reward[0, k, u] + gamma * successor_value - values[k, u]
                )
                if batch.terminated[0, k, u] or batch.truncated[0, k, u]:
                    break
    np.testing.assert_allclose(statistics.target[0], expected + values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        statistics.advantage[0], (expected - expected.mean()) / expected.std(), rtol=1e-4, atol=1e-5
    )


@BOTH_ALGORITHMS
def test_recorded_densities_replace_its_own(name: str) -> None:
    recorded_log_pi = []
    for shift in (None, 0.0, -1.0):
        algorithm = _make_algorithm(name)
        batch = make_policy_batch(algorithm, [1], N_OBS, M_ACT, T=T)
        own_log_pi = _make_algorithm(name)._compute_statistics(batch).log_pi
        algorithm.learn(batch if shift is None else batch._replace(log_pi=own_log_pi + shift), 1.0)
        recorded_log_pi.append(policies(algorithm))
    assert (recorded_log_pi[0] == recorded_log_pi[1]).all()
    assert (recorded_log_pi[0] != recorded_log_pi[2]).any()


@BOTH_ALGORITHMS
def test_only_the_value_learns_from_actions_that_the_policy_did_not_choose(name: str) -> None:
    algorithm = _make_algorithm(name)
    batch = make_policy_batch(algorithm, [1], N_OBS, M_ACT, T=T)
    policy, value = policies(algorithm), value_parameters(algorithm)
    algorithm.learn(batch._replace(overridden=np.ones(batch.reward.shape, np.bool_)), 1.0)
    assert (policies(algorithm) == policy).all()
    assert (value_parameters(algorithm) != value).any()

    other_batch = make_policy_batch(algorithm, [1], N_OBS, M_ACT, T=T)
    algorithm.learn(other_batch._replace(overridden=other_batch.reward < 0.0), 1.0)
    assert np.isfinite(policies(algorithm)).all()
    assert (policies(algorithm) != policy).any()
