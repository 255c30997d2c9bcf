from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.tape import densities
from onrig.learner.tape.array import Array
from tests.learner import torch_densities as of_tensors
from tests.learner.tape.evaluation import evaluated

B, M = 7, 3
RNG = np.random.default_rng(5)
ACTION, MEAN, OTHER = RNG.standard_normal((3, B, M))
STD, OTHER_STD = np.exp(RNG.uniform(-1.0, 1.0, (2, 1, M)))
LOGS = np.array([[-1e4], [-7.5], [-0.3], [0.2], [2.5], [19.0], [1e4]])


@pytest.mark.parametrize(
    ("traced", "of_torch", "inputs"),
    [
        (densities.log_density, of_tensors.log_density, (ACTION, MEAN, STD)),
        (densities.log_density, of_tensors.log_density, (ACTION, MEAN, np.exp(OTHER))),
        (densities.kl_divergence, of_tensors.kl_divergence, (MEAN, STD, OTHER, OTHER_STD)),
        (densities.kl_divergence, of_tensors.kl_divergence, (MEAN, np.exp(ACTION), OTHER, OTHER_STD)),
        (densities.likelihood_ratio, of_tensors.likelihood_ratio, (LOGS, MEAN[:, :1])),
    ],
)
def test_values_and_gradients_are_those_of_torch(
    traced: Callable[..., Array], of_torch: Callable[..., torch.Tensor], inputs: tuple[NDArray[np.float64], ...]
) -> None:
    value, gradients = evaluated(traced, *inputs)
    tensors = [torch.tensor(values, requires_grad=True) for values in inputs]
    wanted = of_torch(*tensors).reshape(B, 1)
    np.testing.assert_allclose(value, wanted.detach(), rtol=1e-12)
    for got, expected in zip(gradients, torch.autograd.grad(wanted.sum(), tensors), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("greatest", [np.inf, 5.0])
def test_importance_ratios_are_those_of_torch_where_they_are_bounded_too(greatest: float) -> None:
    def traced(log_pi: Array) -> Array:
        log_mu = log_pi.tape.filled((1, 1), 0.1)
        return densities.importance_ratio(log_pi, log_mu, greatest)

    value, (gradient,) = evaluated(traced, LOGS)
    log_pi = torch.tensor(LOGS, requires_grad=True)
    wanted = of_tensors.importance_ratio(log_pi, torch.tensor(0.1, dtype=torch.float64), greatest)
    np.testing.assert_allclose(value, wanted.detach(), rtol=1e-12)
    np.testing.assert_allclose(gradient, torch.autograd.grad(wanted.sum(), log_pi)[0], rtol=1e-12)
