from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.learner.torch_densities import importance_ratio, kl_divergence, log_density


def _tensor_of(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_density_of_several_actions_is_normal_and_integrates_to_one() -> None:
    grid = torch.linspace(-6.0, 6.0, 4001, dtype=torch.float64)
    density = log_density(grid[:, None], _tensor_of(0.3), _tensor_of(0.7)).exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-12)
    joint = log_density(_tensor_of(0.1, -0.4), _tensor_of(0.3, 0.0), _tensor_of(0.7, 2.0))
    policy_distance = [
        -0.5 * ((a - m) / s) ** 2 - math.log(s * math.sqrt(2 * math.pi)) for a, m, s in ((0.1, 0.3, 0.7), (-0.4, 0, 2))
    ]
    assert float(joint) == pytest.approx(sum(policy_distance), rel=1e-12)


@pytest.mark.parametrize(("p", "q"), [((0.2, 0.3), (-0.5, 0.8)), ((0.0, 1.5), (0.4, 0.6))])
def test_the_divergence_equals_quadrature_in_both_directions(p: tuple[float, float], q: tuple[float, float]) -> None:
    grid = torch.linspace(-15.0, 15.0, 60_001, dtype=torch.float64)
    for (mean, std), (other_mean, other_std) in ((p, q), (q, p)):
        log_density_p, log_density_q = (
            log_density(grid[:, None], _tensor_of(m), _tensor_of(s)) for m, s in ((mean, std), (other_mean, other_std))
        )
        expected = float(torch.trapezoid(log_density_p.exp() * (log_density_p - log_density_q), grid))
        actual = kl_divergence(_tensor_of(mean), _tensor_of(std), _tensor_of(other_mean), _tensor_of(other_std))
        assert float(actual) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("m", [1, 6, 17])
def test_between_the_ends_of_a_tanh_the_divergence_is_fifty_per_action(m: int) -> None:
    std = torch.full((m,), 0.2, dtype=torch.float64)
    assert float(kl_divergence(torch.ones(m), std, -torch.ones(m), std)) == pytest.approx(50.0 * m)


def test_ratios_are_one_on_the_policys_own_data_and_bounded() -> None:
    samples = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 3)))
    density = log_density(samples, samples * 0.5, torch.ones(3))
    assert importance_ratio(density, density).tolist() == [1.0] * 5
    extreme_ratio = importance_ratio(_tensor_of(1e4, -1e4), _tensor_of(0.0, 0.0))
    assert extreme_ratio.tolist() == pytest.approx([math.exp(7), math.exp(-7)])


@pytest.mark.parametrize("ln_rho", [-1e4, -0.3, 0.0, 2.0, 1e4])
def test_the_gradient_of_a_ratio_is_the_bounded_ratio_times_that_of_the_density(ln_rho: float) -> None:
    log_pi = _tensor_of(ln_rho).requires_grad_()
    rho = importance_ratio(log_pi, _tensor_of(0.0), max_ratio=5.0)
    (gradient,) = torch.autograd.grad(rho.sum(), log_pi)
    assert rho.item() == gradient.item() == pytest.approx(min(math.exp(max(-7.0, min(ln_rho, 7.0))), 5.0))
