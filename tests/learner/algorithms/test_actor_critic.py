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
from tests.learner.algorithms.policy_batches import policies, policy_batch, value_nets
from tests.learner.algorithms.refer_algorithms import BENCH

N_OBS, M_ACT, T = 3, 2, 32
BOTH = pytest.mark.parametrize("name", ["ppo", "trpo"])


def _made(name: str, **changes: Any) -> Ppo | Trpo:
    section = {"hidden": [8, 6], "steps": T, "batch": 8} | changes
    settings = msgspec.convert({"algorithm": name, name: section}, LearnerSettings)
    made = algorithm_for(settings, N_OBS, M_ACT, [np.random.default_rng(3)])
    assert isinstance(made, Ppo | Trpo)
    return made


@BOTH
@pytest.mark.parametrize("filtered", [True, False])
def test_its_model_has_the_distribution_that_torch_has_and_is_admitted(name: str, filtered: bool) -> None:
    algorithm = _made(name, filter=filtered)
    for i in range(3):
        algorithm.learn(policy_batch(algorithm, [i], N_OBS, M_ACT, T=T), 1.0)
    assert isinstance(algorithm, ActorCritic)
    assert (algorithm.actor_filter(0) is not None) is filtered
    contract = contract_for(BENCH, 50.0, policy_id=1, parent_run="", training_step=0, behaviour=GAUSSIAN)
    std, model = algorithm.actor_std(0), algorithm.policy_graph(0, contract)
    rng = np.random.default_rng(2)
    normalised = rng.uniform(-9.0, 12.0, (50, N_OBS))  # some of them beyond the filter's cut
    session = PolicySession(model)
    assert session.noise is not None
    silent = np.zeros((1, 50, M_ACT))
    mean, beside = (algorithm.draw(normalised[None], silent + noise)[0] for noise in (0.0, 1.0))
    np.testing.assert_allclose(beside - mean, np.tile(std, (50, 1)), rtol=1e-4)
    for k, noise in enumerate(np.clip(rng.standard_normal((50, M_ACT)), -3, 3).astype(np.float32)):
        action, *ports = np.reshape(session.ask((*(1.0 + 3.0 * normalised[k]), *noise)), (4, -1))
        drawn = mean[k] + std * noise
        np.testing.assert_allclose(np.array(ports), np.array((mean[k], std, drawn)), atol=2e-5)
        np.testing.assert_allclose((action - (0.0, 0.3)) / (3.0, 0.3), np.clip(drawn, -1, 1), atol=2e-5)
    probes = probe_states(contract, 64, seed=0)
    assert isinstance(admit(model, contract, probes, AdmissionLimits(latency_is_advisory=True)), Admitted)


@BOTH
def test_advantages_and_targets_are_the_double_sum_over_the_rest_of_the_episode(name: str) -> None:
    gamma, lam, scale, K = 0.9, 0.7, 0.5, 2
    changes = {"gamma": gamma, "gae_lambda": lam, "reward_scale": scale, "actors": K, "steps": K * T}
    algorithm = _made(name, filter=False, **changes)
    batch = policy_batch(algorithm, [1], N_OBS, M_ACT, K, T)
    # Where an episode ends by its time limit, the value is that of its own last state.
    batch = batch._replace(next_observation=np.random.default_rng(2).standard_normal(batch.observation.shape))
    frozen = algorithm._compute_statistics(batch)
    assert batch.terminated[0, :, :-1].any(axis=1).all()
    assert batch.truncated[0, :, :-1].any(axis=1).all()

    *hidden, last = algorithm._value.layers(algorithm.rows[0].astype(np.float64))

    def value(y: NDArray[np.floating]) -> NDArray[np.floating]:
        for weight, bias in hidden:
            y = np.tanh(y @ weight + bias)
        return np.asarray(y @ last[0] + last[1])[..., 0]

    here, after = value(batch.observation[0]), value(batch.next_observation[0])
    wanted = np.zeros((K, T))
    for k in range(K):
        for t in range(T):
            for u in range(t, T):
                beyond = 0.0 if batch.terminated[0, k, u] else after[k, u]
                wanted[k, t] += (gamma * lam) ** (u - t) * (scale * batch.reward[0, k, u] + gamma * beyond - here[k, u])
                if batch.terminated[0, k, u] or batch.truncated[0, k, u]:
                    break
    np.testing.assert_allclose(frozen.target[0], wanted + here, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(frozen.advantage[0], (wanted - wanted.mean()) / wanted.std(), rtol=1e-4, atol=1e-5)


@BOTH
def test_recorded_densities_take_the_place_of_its_own(name: str) -> None:
    learned = []
    for shift in (None, 0.0, -1.0):
        algorithm = _made(name)
        batch = policy_batch(algorithm, [1], N_OBS, M_ACT, T=T)
        own = _made(name)._compute_statistics(batch).log_pi
        algorithm.learn(batch if shift is None else batch._replace(log_pi=own + shift), 1.0)
        learned.append(policies(algorithm))
    assert (learned[0] == learned[1]).all()
    assert (learned[0] != learned[2]).any()


@BOTH
def test_the_policy_learns_nothing_from_actions_that_were_not_its_own_but_the_value_does(name: str) -> None:
    algorithm = _made(name)
    batch = policy_batch(algorithm, [1], N_OBS, M_ACT, T=T)
    policy, value = policies(algorithm), value_nets(algorithm)
    algorithm.learn(batch._replace(deviates=np.ones(batch.reward.shape, np.bool_)), 1.0)
    assert (policies(algorithm) == policy).all()
    assert (value_nets(algorithm) != value).any()

    some = policy_batch(algorithm, [1], N_OBS, M_ACT, T=T)
    algorithm.learn(some._replace(deviates=some.reward < 0.0), 1.0)
    assert np.isfinite(policies(algorithm)).all()
    assert (policies(algorithm) != policy).any()
