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
from tests.learner.algorithms.policy_batches import policies, policy_batch, value_nets
from tests.learner.torch_densities import kl_divergence, log_density
from tests.learner.torch_nets import Tensors, assert_state_close, leaves, mlp, of_net

N_OBS, M_ACT = 4, 3
SMALL: dict[str, Any] = {"hidden": [6, 5], "steps": 64, "batch": 16, "fisher_every": 2}


def _trpo(seeds: list[int], dtype: type[np.floating] = np.float32, **changes: Any) -> Trpo:
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
    full = scale_to_divergence(product, x, 0.01)
    np.testing.assert_allclose((full * product(full)).sum(axis=1), [0.02, 0.0], rtol=1e-12)


def _frozen(trpo: Trpo, batch: PolicyBatch) -> tuple[NDArray[np.floating], BatchStatistics]:
    """What networks see of a batch's observations, and its statistics."""
    frozen = flatten_actors(trpo._compute_statistics(batch))
    return trpo._inputs(frozen.observation), frozen


def _policy_leaves(trpo: Trpo, trial: int = 0) -> Tensors:
    return leaves(trpo.state(), trial, ("policy", "spread"))


def _flat(tensors: Any) -> NDArray[np.float64]:
    return np.concatenate([part.detach().numpy().reshape(-1) for part in tensors])


def _fisher(parameters: Tensors, x: torch.Tensor) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Products with the Hessian of the mean divergence by differentiating twice."""
    of = list(parameters.values())
    mean, std = mlp(parameters, "policy", x), parameters["spread/log_std"].exp()
    divergence = kl_divergence(mean.detach(), std.detach(), mean, std).mean()
    slope = torch.cat([part.reshape(-1) for part in torch.autograd.grad(divergence, of, create_graph=True)])
    return lambda v: _flat(torch.autograd.grad(slope, of, torch.tensor(v), retain_graph=True))


@pytest.mark.parametrize("hidden", [[6, 5], [7], [5, 4, 3]])
def test_a_fisher_product_is_that_of_differentiating_the_divergence_twice(hidden: list[int]) -> None:
    trpo = _trpo([3, 4], np.float64, damping=0.25, hidden=hidden, log_std=-0.4)
    _learn(trpo, [3, 4])
    x = trpo._inputs(np.random.default_rng(1).standard_normal((2, 32, N_OBS)))
    v = np.random.default_rng(2).standard_normal(policies(trpo).shape)
    product = trpo.fisher_product(x)(v)
    for trial in range(2):
        wanted = _fisher(_policy_leaves(trpo, trial), torch.tensor(x[trial]))(v[trial]) + 0.25 * v[trial]
        np.testing.assert_allclose(product[trial], wanted, rtol=1e-9, atol=1e-12)


def _judged(
    trpo: Trpo, old: Tensors, x: NDArray[np.floating], frozen: BatchStatistics, trial: int = 0
) -> tuple[float, float]:
    """Mean divergence from the old policy of the present one, and its mean gain."""
    states, new = torch.tensor(np.asarray(x[trial], np.float64)), _policy_leaves(trpo, trial)
    (old_mean, old_std), (mean, std) = (
        (mlp(parameters, "policy", states), parameters["spread/log_std"].exp()) for parameters in (old, new)
    )
    log_pi = log_density(torch.from_numpy(frozen.drawn[trial]), mean, std).detach().numpy()
    gain = (np.exp(log_pi - frozen.log_pi[trial]) * frozen.advantage[trial]).mean()
    return kl_divergence(old_mean, old_std, mean, std).mean().item(), float(gain)


def test_accepted_steps_stay_within_the_divergence_and_do_not_lose() -> None:
    trpo = _trpo([3, 4])
    for i in range(3):
        x, frozen = _frozen(trpo, policy_batch(trpo, [i, 10 + i], N_OBS, M_ACT, T=64))
        old = [_policy_leaves(trpo, trial) for trial in range(2)]
        trpo._step_policies(x, frozen)
        for trial in range(2):
            divergence, gain = _judged(trpo, old[trial], x, frozen, trial)
            assert 1e-3 < divergence <= 0.015
            assert gain > frozen.advantage[trial].mean()


@pytest.mark.parametrize(
    ("seed", "max_kl", "near", "better"), [(5, 3.0, False, True), (4, 8.0, True, False)], ids=["too far", "worse"]
)
def test_of_a_full_step_too_far_or_to_a_worse_policy_half_is_taken(
    seed: int, max_kl: float, near: bool, better: bool
) -> None:
    trpo = _trpo([seed], np.float64, max_kl=max_kl)
    x, frozen = _frozen(trpo, policy_batch(trpo, [seed], N_OBS, M_ACT, T=64))
    start, old = trpo._policy_vectors(), _policy_leaves(trpo)
    trpo._step_policies(x, frozen)
    half = trpo._policy_vectors() - start

    def judged(step: Any) -> tuple[bool, bool]:
        trpo._write_policies(start + step)
        divergence, gain = _judged(trpo, old, x, frozen)
        return divergence <= 1.5 * max_kl, bool(gain >= frozen.advantage.mean())

    assert judged(2.0 * half) == (near, better)
    assert judged(half) == (True, True)
    trpo._write_policies(start)
    product = trpo.fisher_product(x[:, :: trpo.config.fisher_every])
    assert float((2.0 * half * product(2.0 * half)).sum()) == pytest.approx(2.0 * max_kl)


def test_iterations_are_those_of_trpo_written_out() -> None:
    trpo, twin = (_trpo([3, 4], np.float64, value_lr=1e-2) for _ in range(2))
    wanted = [leaves(twin.state(), trial, ("policy", "spread", "value")) for trial in range(2)]
    adams = [torch.optim.Adam(of_net(parameters, "value"), lr=1e-2) for parameters in wanted]
    for i in range(2):
        batch = policy_batch(trpo, [i, 10 + i], N_OBS, M_ACT, T=64)
        x, frozen = _frozen(twin, batch)
        trpo.learn(batch, 1.0)
        for trial, (parameters, adam) in enumerate(zip(wanted, adams, strict=True)):
            given = [torch.tensor(np.asarray(field[trial], np.float64)) for field in (x, *frozen[1:])]
            _iteration(twin, parameters, adam, given, trial)
            assert_state_close(trpo.state(), trial, parameters, rtol=1e-8, atol=1e-10)
        twin.restore(trpo.state())


def _iteration(twin: Trpo, parameters: Tensors, adam: torch.optim.Adam, given: list[torch.Tensor], trial: int) -> None:
    """Train ``parameters`` by torch."""
    states, drawn, log_pi, advantage, target = given
    policy = {name: value for name, value in parameters.items() if not name.startswith("value")}
    config = twin.config

    def distribution() -> tuple[torch.Tensor, torch.Tensor]:
        return mlp(policy, "policy", states), policy["spread/log_std"].exp()

    def gain() -> torch.Tensor:
        return ((log_density(drawn, *distribution()) - log_pi).exp() * advantage).mean()

    def move(vector: NDArray[np.float64]) -> None:
        ends = np.cumsum([value.numel() for value in policy.values()])[:-1]
        for value, part in zip(policy.values(), np.split(vector, ends), strict=True):
            value.data = torch.tensor(part).reshape(value.shape)

    (old_mean, old_std), before, start = (part.detach() for part in distribution()), gain(), _flat(policy.values())
    gradient = _flat(torch.autograd.grad(before, list(policy.values())))
    fisher = _fisher(policy, states[:: config.fisher_every])

    def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return fisher(v[0])[None] + config.damping * v

    full = scale_to_divergence(product, conjugate_gradients(product, gradient[None], config.cg_steps), config.max_kl)[0]
    for halving in range(config.halvings):
        move(start + 0.5**halving * full)
        if gain() >= before and kl_divergence(old_mean, old_std, *distribution()).mean() <= 1.5 * config.max_kl:
            break
    else:
        move(start)
    for _ in range(config.value_epochs):
        for slots in twin._streams[trial].permutation(64).reshape(4, 16):
            adam.zero_grad()
            (mlp(parameters, "value", states[slots])[:, 0] - target[slots]).square().mean().backward()  # type: ignore[no-untyped-call]
            adam.step()


def test_where_no_step_is_accepted_the_policy_stays_and_values_learn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trpo_module, "KL_SLACK", -1.0)
    trpo = _trpo([3])
    policy, value = policies(trpo), value_nets(trpo)
    _learn(trpo, [1])
    assert (policies(trpo) == policy).all()
    assert (value_nets(trpo) != value).any()


def test_values_approach_their_targets() -> None:
    trpo = _trpo([3], value_lr=0.01, value_epochs=40)
    x, frozen = _frozen(trpo, policy_batch(trpo, [1], N_OBS, M_ACT, T=64))
    errors = []
    for _ in range(2):
        errors.append(float(np.square(trpo._values(x)[0, :, 0] - frozen.target[0]).mean()))
        trpo._fit_values(x, frozen.target)
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("S", [1, 2, 3, 7, 16])
def test_a_trial_learns_bit_for_bit_what_it_learns_alone_and_goes_on_from_its_state(S: int) -> None:
    together = _trpo([*range(S)])
    _learn(together, [*range(S)], 2)
    for trial in {0, S // 2, S - 1}:
        alone, resumed = _trpo([trial]), _trpo([99])
        _learn(alone, [trial], 2)
        assert (policies(together)[trial] == policies(alone)[0]).all()
        assert (value_nets(together)[trial] == value_nets(alone)[0]).all()
        resumed.restore(alone.state())
        for trpo in (alone, resumed):
            _learn(trpo, [trial])
        assert (policies(resumed) == policies(alone)).all()
        assert resumed.updates == alone.updates == 3


def test_kernels_and_numpy_agree_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    default = _trpo([3])
    monkeypatch.setattr("onrig.learner.algorithms.traced.executor_for", lambda real: NumpyExecutor(np.dtype(real)))
    by_numpy = _trpo([3])
    assert by_numpy.executor.name == "numpy"
    for trpo in (default, by_numpy):
        _learn(trpo, [3], 2)
    np.testing.assert_allclose(policies(default), policies(by_numpy), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(value_nets(default), value_nets(by_numpy), rtol=1e-4, atol=1e-5)
