from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import onrig.learner.algorithms.trpo as trpo_module
from onrig.learner.algorithms.actor_critic import BatchStatistics, flatten_actors
from onrig.learner.algorithms.on_policy import PolicyBatch
from onrig.learner.algorithms.trpo import Trpo, conjugate_gradients, scale_to_divergence
from onrig.learner.on_policy_settings import TrpoConfig
from onrig.learner.tape.numpy_executor import NumpyExecutor
from tests.learner.algorithms.policy_batches import make_policy_batch, policies, value_parameters
from tests.learner.torch_densities import kl_divergence, log_density
from tests.learner.torch_nets import Tensors, assert_state_close, mlp, net_parameters, trial_parameters

N_OBS, M_ACT = 4, 3
SMALL_SETTINGS: dict[str, Any] = {"hidden": [6, 5], "steps": 64, "batch": 16, "fisher_every": 2}


def _trpo(seeds: list[int], dtype: type[np.floating] = np.float32, **changes: Any) -> Trpo:
    config = msgspec.convert(SMALL_SETTINGS | changes, TrpoConfig)
    return Trpo(config, N_OBS, M_ACT, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _learn(trpo: Trpo, seeds: list[int], iterations: int = 1) -> None:
    for i in range(iterations):
        trpo.learn(make_policy_batch(trpo, [100 * i + s for s in seeds], N_OBS, M_ACT, T=64), 1.0)


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
    full_step = scale_to_divergence(product, x, 0.01)
    np.testing.assert_allclose((full_step * product(full_step)).sum(axis=1), [0.02, 0.0], rtol=1e-12)


def _filtered_batch(trpo: Trpo, batch: PolicyBatch) -> tuple[NDArray[np.floating], BatchStatistics]:
    """Network inputs for a batch's observations, and their statistics."""
    statistics = flatten_actors(trpo._compute_statistics(batch))
    return trpo._inputs(statistics.observation), statistics


def _policy_leaves(trpo: Trpo, trial: int = 0) -> Tensors:
    return trial_parameters(trpo.state(), trial, ("policy", "spread"))


def _flatten(tensors: Any) -> NDArray[np.float64]:
    return np.concatenate([part.detach().numpy().reshape(-1) for part in tensors])


def _fisher(parameters: Tensors, x: torch.Tensor) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Products with the Hessian of the mean divergence, by differentiating twice."""
    parameter_list = list(parameters.values())
    mean, std = mlp(parameters, "policy", x), parameters["spread/log_std"].exp()
    divergence = kl_divergence(mean.detach(), std.detach(), mean, std).mean()
    slope = torch.cat([part.reshape(-1) for part in torch.autograd.grad(divergence, parameter_list, create_graph=True)])
    return lambda v: _flatten(torch.autograd.grad(slope, parameter_list, torch.tensor(v), retain_graph=True))


@pytest.mark.parametrize("hidden", [[6, 5], [7], [5, 4, 3]])
def test_a_fisher_product_equals_differentiating_the_divergence_twice(hidden: list[int]) -> None:
    trpo = _trpo([3, 4], np.float64, damping=0.25, hidden=hidden, log_std=-0.4)
    _learn(trpo, [3, 4])
    x = trpo._inputs(np.random.default_rng(1).standard_normal((2, 32, N_OBS)))
    v = np.random.default_rng(2).standard_normal(policies(trpo).shape)
    product = trpo.fisher_product(x)(v)
    for trial in range(2):
        expected = _fisher(_policy_leaves(trpo, trial), torch.tensor(x[trial]))(v[trial]) + 0.25 * v[trial]
        np.testing.assert_allclose(product[trial], expected, rtol=1e-9, atol=1e-12)


def _divergence_and_gain(
    trpo: Trpo, old_leaves: Tensors, x: NDArray[np.floating], statistics: BatchStatistics, trial: int = 0
) -> tuple[float, float]:
    """Mean divergence of the current policy from the old one, and its mean gain."""
    states, new_leaves = torch.tensor(np.asarray(x[trial], np.float64)), _policy_leaves(trpo, trial)
    (old_mean, old_std), (mean, std) = (
        (mlp(parameters, "policy", states), parameters["spread/log_std"].exp())
        for parameters in (old_leaves, new_leaves)
    )
    log_pi = log_density(torch.from_numpy(statistics.drawn[trial]), mean, std).detach().numpy()
    gain = (np.exp(log_pi - statistics.log_pi[trial]) * statistics.advantage[trial]).mean()
    return kl_divergence(old_mean, old_std, mean, std).mean().item(), float(gain)


def test_accepted_steps_stay_within_the_divergence_and_do_not_lose() -> None:
    trpo = _trpo([3, 4])
    for i in range(3):
        x, statistics = _filtered_batch(trpo, make_policy_batch(trpo, [i, 10 + i], N_OBS, M_ACT, T=64))
        old_leaves = [_policy_leaves(trpo, trial) for trial in range(2)]
        trpo._step_policies(x, statistics)
        for trial in range(2):
            divergence, gain = _divergence_and_gain(trpo, old_leaves[trial], x, statistics, trial)
            assert 1e-3 < divergence <= 0.015
            assert gain > statistics.advantage[trial].mean()


@pytest.mark.parametrize(
    ("seed", "max_kl", "is_near", "is_better"), [(5, 3.0, False, True), (4, 8.0, True, False)], ids=["too far", "worse"]
)
def test_a_step_too_far_or_to_a_worse_policy_is_halved(
    seed: int, max_kl: float, is_near: bool, is_better: bool
) -> None:
    trpo = _trpo([seed], np.float64, max_kl=max_kl)
    x, statistics = _filtered_batch(trpo, make_policy_batch(trpo, [seed], N_OBS, M_ACT, T=64))
    start, old_leaves = trpo._policy_vectors(), _policy_leaves(trpo)
    trpo._step_policies(x, statistics)
    half_step = trpo._policy_vectors() - start

    def evaluate_step(step: Any) -> tuple[bool, bool]:
        trpo._write_policies(start + step)
        divergence, gain = _divergence_and_gain(trpo, old_leaves, x, statistics)
        return divergence <= 1.5 * max_kl, bool(gain >= statistics.advantage.mean())

    assert evaluate_step(2.0 * half_step) == (is_near, is_better)
    assert evaluate_step(half_step) == (True, True)
    trpo._write_policies(start)
    product = trpo.fisher_product(x[:, :: trpo.config.fisher_every])
    assert float((2.0 * half_step * product(2.0 * half_step)).sum()) == pytest.approx(2.0 * max_kl)


def test_iterations_equal_trpo_written_out() -> None:
    trpo, twin = (_trpo([3, 4], np.float64, value_lr=1e-2) for _ in range(2))
    expected = [trial_parameters(twin.state(), trial, ("policy", "spread", "value")) for trial in range(2)]
    adams = [torch.optim.Adam(net_parameters(parameters, "value"), lr=1e-2) for parameters in expected]
    for i in range(2):
        batch = make_policy_batch(trpo, [i, 10 + i], N_OBS, M_ACT, T=64)
        x, statistics = _filtered_batch(twin, batch)
        trpo.learn(batch, 1.0)
        for trial, (parameters, adam) in enumerate(zip(expected, adams, strict=True)):
            fields = [torch.tensor(np.asarray(field[trial], np.float64)) for field in (x, *statistics[1:])]
            _iteration(twin, parameters, adam, fields, trial)
            assert_state_close(trpo.state(), trial, parameters, rtol=1e-8, atol=1e-10)
        twin.restore(trpo.state())


def _iteration(twin: Trpo, parameters: Tensors, adam: torch.optim.Adam, fields: list[torch.Tensor], trial: int) -> None:
    """Train ``parameters`` by torch."""
    states, drawn_action, log_pi, advantage, target = fields
    policy = {name: value for name, value in parameters.items() if not name.startswith("value")}
    config = twin.config

    def distribution() -> tuple[torch.Tensor, torch.Tensor]:
        return mlp(policy, "policy", states), policy["spread/log_std"].exp()

    def gain() -> torch.Tensor:
        return ((log_density(drawn_action, *distribution()) - log_pi).exp() * advantage).mean()

    def set_policy(vector: NDArray[np.float64]) -> None:
        boundaries = np.cumsum([value.numel() for value in policy.values()])[:-1]
        for value, part in zip(policy.values(), np.split(vector, boundaries), strict=True):
            value.data = torch.tensor(part).reshape(value.shape)

    (old_mean, old_std), gain_before, start = (
        (part.detach() for part in distribution()),
        gain(),
        _flatten(policy.values()),
    )
    gradient = _flatten(torch.autograd.grad(gain_before, list(policy.values())))
    fisher_product = _fisher(policy, states[:: config.fisher_every])

    def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return fisher_product(v[0])[None] + config.damping * v

    full_step = scale_to_divergence(
        product, conjugate_gradients(product, gradient[None], config.cg_steps), config.max_kl
    )[0]
    for n_halvings in range(config.halvings):
        set_policy(start + 0.5**n_halvings * full_step)
        if gain() >= gain_before and kl_divergence(old_mean, old_std, *distribution()).mean() <= 1.5 * config.max_kl:
            break
    else:
        set_policy(start)
    for _ in range(config.value_epochs):
        for slots in twin._streams[trial].permutation(64).reshape(4, 16):
            adam.zero_grad()
            (mlp(parameters, "value", states[slots])[:, 0] - target[slots]).square().mean().backward()  # type: ignore[no-untyped-call]
            adam.step()


def test_if_no_step_is_accepted_the_policy_is_unchanged_and_values_keep_learning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trpo_module, "KL_SLACK", -1.0)
    trpo = _trpo([3])
    policy, value = policies(trpo), value_parameters(trpo)
    _learn(trpo, [1])
    assert (policies(trpo) == policy).all()
    assert (value_parameters(trpo) != value).any()


def test_values_approach_their_targets() -> None:
    trpo = _trpo([3], value_lr=0.01, value_epochs=40)
    x, statistics = _filtered_batch(trpo, make_policy_batch(trpo, [1], N_OBS, M_ACT, T=64))
    errors = []
    for _ in range(2):
        errors.append(float(np.square(trpo._values(x)[0, :, 0] - statistics.target[0]).mean()))
        trpo._fit_values(x, statistics.target)
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("S", [1, 2, 3, 7, 16])
def test_a_trial_learns_bit_for_bit_as_alone_and_continues_from_its_state(S: int) -> None:
    joint = _trpo([*range(S)])
    _learn(joint, [*range(S)], 2)
    for trial in {0, S // 2, S - 1}:
        single, resumed_trpo = _trpo([trial]), _trpo([99])
        _learn(single, [trial], 2)
        assert (policies(joint)[trial] == policies(single)[0]).all()
        assert (value_parameters(joint)[trial] == value_parameters(single)[0]).all()
        resumed_trpo.restore(single.state())
        for trpo in (single, resumed_trpo):
            _learn(trpo, [trial])
        assert (policies(resumed_trpo) == policies(single)).all()
        assert resumed_trpo.updates == single.updates == 3


def test_kernels_and_numpy_agree_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    default_trpo = _trpo([3])
    monkeypatch.setattr("onrig.learner.algorithms.traced.executor_for", lambda real: NumpyExecutor(np.dtype(real)))
    numpy_trpo = _trpo([3])
    assert numpy_trpo.executor.name == "numpy"
    for trpo in (default_trpo, numpy_trpo):
        _learn(trpo, [3], 2)
    np.testing.assert_allclose(policies(default_trpo), policies(numpy_trpo), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(value_parameters(default_trpo), value_parameters(numpy_trpo), rtol=1e-4, atol=1e-5)
