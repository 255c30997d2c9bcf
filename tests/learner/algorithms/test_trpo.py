from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import onrig.learner.algorithms.trpo as trpo_module
from onrig.learner.algorithms.actor_critic import flattened
from onrig.learner.algorithms.densities import kl_divergence, log_density
from onrig.learner.algorithms.trpo import Trpo, conjugate_gradients, step_of_divergence
from onrig.learner.on_policy_settings import TrpoConfig
from tests.learner.algorithms.policy_batches import policy_batch

N_OBS, M_ACT = 4, 3
SMALL: dict[str, Any] = {"hidden": [6, 5], "steps": 64, "batch": 16, "fisher_every": 2}


def _trpo(seeds: list[int], dtype: torch.dtype = torch.float32, **changes: Any) -> Trpo:
    config = msgspec.convert(SMALL | changes, TrpoConfig)
    return Trpo(config, N_OBS, M_ACT, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _learn(trpo: Trpo, seeds: list[int], iterations: int = 1) -> None:
    for i in range(iterations):
        trpo.learn(policy_batch(trpo, [100 * i + s for s in seeds], N_OBS, M_ACT, T=64), 1.0)


def test_conjugate_gradients_solve_each_trials_system() -> None:
    rng = np.random.default_rng(0)
    roots, b = rng.standard_normal((2, 6, 6)), rng.standard_normal((2, 6))
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(6)
    b[1] = 0.0

    def product(v: Any) -> Any:
        return np.einsum("sij,sj->si", matrices, v)

    x = conjugate_gradients(product, b, 20)
    np.testing.assert_allclose(x[0], np.linalg.solve(matrices[0], b[0]), rtol=1e-6)
    assert (x[1] == 0.0).all()
    full = step_of_divergence(product, x, 0.01)
    np.testing.assert_allclose((full * product(full)).sum(axis=1), [0.02, 0.0], rtol=1e-12)


def test_a_fisher_product_is_the_change_of_the_divergences_gradient() -> None:
    trpo = _trpo([3], torch.float64, damping=0.25)
    x = trpo._inputs(np.random.default_rng(1).standard_normal((1, 16, N_OBS)))
    leaves, start = trpo._actor.online, np.array(trpo._actor.vectors()[:, 0], np.float64)
    mean, std = (part.detach() for part in trpo._distribution(leaves, x))
    v = np.random.default_rng(2).standard_normal(start.shape)
    product = trpo.fisher_product(x)(v)

    def gradient(at: Any) -> Any:
        trpo._write(at)
        divergence = kl_divergence(mean, std, *trpo._distribution(leaves, x))
        return trpo._vectors(torch.autograd.grad(divergence.mean(), leaves))

    slope = (gradient(start + 1e-6 * v) - gradient(start - 1e-6 * v)) / 2e-6
    np.testing.assert_allclose(product, slope + 0.25 * v, rtol=1e-6, atol=1e-8)


def test_accepted_steps_stay_within_the_divergence_and_do_not_lose() -> None:
    trpo = _trpo([3, 4])
    for i in range(3):
        batch = policy_batch(trpo, [i, 10 + i], N_OBS, M_ACT, T=64)
        frozen = flattened(trpo._freeze(batch))
        x = trpo._inputs(frozen.observation)
        old = trpo._distribution(trpo._policy_blocks, x)
        trpo._step_policies(x, frozen)
        mean, std = trpo._distribution(trpo._policy_blocks, x)
        divergence = kl_divergence(*old, mean, std).mean(dim=1).numpy()
        assert (divergence <= 0.015).all()
        assert (divergence > 1e-3).all()
        log_pi = log_density(torch.from_numpy(frozen.drawn), mean, std).numpy()
        gain = (np.exp(log_pi - frozen.log_pi) * frozen.advantage).mean(axis=1)
        assert (gain > frozen.advantage.mean(axis=1)).all()


@pytest.mark.parametrize(
    ("seed", "max_kl", "near", "better"), [(5, 3.0, False, True), (4, 8.0, True, False)], ids=["too far", "worse"]
)
def test_of_a_full_step_too_far_or_to_a_worse_policy_half_is_taken(
    seed: int, max_kl: float, near: bool, better: bool
) -> None:
    trpo = _trpo([seed], torch.float64, max_kl=max_kl)
    frozen = flattened(trpo._freeze(policy_batch(trpo, [seed], N_OBS, M_ACT, T=64)))
    x, start = trpo._inputs(frozen.observation), np.array(trpo._policy_vectors(), np.float64)
    old = trpo._distribution(trpo._policy_blocks, x)
    trpo._step_policies(x, frozen)
    half = trpo._policy_vectors() - start

    def judged(step: Any) -> tuple[bool, bool]:
        trpo._write(start + step)
        mean, std = trpo._distribution(trpo._policy_blocks, x)
        log_pi = log_density(torch.from_numpy(frozen.drawn), mean, std).numpy()
        gain = (np.exp(log_pi - frozen.log_pi) * frozen.advantage).mean()
        return float(kl_divergence(*old, mean, std).mean()) <= 1.5 * max_kl, bool(gain >= frozen.advantage.mean())

    assert judged(2.0 * half) == (near, better)
    assert judged(half) == (True, True)
    trpo._write(start)
    product = trpo.fisher_product(x[:, :: trpo.config.fisher_every])
    assert float((2.0 * half * product(2.0 * half)).sum()) == pytest.approx(2.0 * max_kl)


def test_where_no_step_is_accepted_the_policy_stays_and_values_learn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trpo_module, "KL_SLACK", -1.0)
    trpo = _trpo([3])
    policy, value = trpo._actor.vectors(), trpo._critic.vectors()
    _learn(trpo, [1])
    assert (trpo._actor.vectors() == policy).all()
    assert (trpo._critic.vectors() != value).any()


def test_values_approach_their_targets() -> None:
    trpo = _trpo([3], value_lr=0.01, value_epochs=40)
    frozen = flattened(trpo._freeze(policy_batch(trpo, [1], N_OBS, M_ACT, T=64)))
    x = trpo._inputs(frozen.observation)
    errors = []
    for _ in range(2):
        with torch.no_grad():
            y = x
            for block in trpo._value_blocks[:-1]:
                y = torch.tanh(y @ block)
            errors.append(float(np.square((y @ trpo._value_blocks[-1])[0, :, 0].numpy() - frozen.target[0]).mean()))
        trpo._fit_values(x, frozen.target)
    assert errors[1] < 0.5 * errors[0]


def test_a_trial_learns_bit_for_bit_what_it_learns_alone_and_goes_on_from_its_state() -> None:
    seeds = [3, 1, 2]
    together, alone, resumed = _trpo(seeds), _trpo([2]), _trpo([9])
    _learn(together, seeds, 2)
    _learn(alone, [2], 2)
    assert (together._actor.vectors()[2] == alone._actor.vectors()[0]).all()
    assert (together._critic.vectors()[2] == alone._critic.vectors()[0]).all()
    resumed.restore(alone.state())
    for trpo in (alone, resumed):
        _learn(trpo, [2])
    assert (resumed._actor.vectors() == alone._actor.vectors()).all()
    assert resumed.updates == alone.updates == 3
