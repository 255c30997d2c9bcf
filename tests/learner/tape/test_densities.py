from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.tape import densities
from onrig.learner.tape.array import Array
from tests.learner import torch_densities as of_tensors
from tests.learner.tape.evaluation import evaluate

B, M = 7, 3
RNG = np.random.default_rng(5)
ACTION, MEAN, OTHER = RNG.standard_normal((3, B, M))
STD, OTHER_STD = np.exp(RNG.uniform(-1.0, 1.0, (2, 1, M)))
LOG_RATIOS = np.array([[-1e4], [-7.5], [-0.3], [0.2], [2.5], [19.0], [1e4]])


@pytest.mark.parametrize(
    ("traced_function", "torch_function", "inputs"),
    [
        (densities.log_density, of_tensors.log_density, (ACTION, MEAN, STD)),
        (densities.log_density, of_tensors.log_density, (ACTION, MEAN, np.exp(OTHER))),
        (densities.kl_divergence, of_tensors.kl_divergence, (MEAN, STD, OTHER, OTHER_STD)),
        (densities.kl_divergence, of_tensors.kl_divergence, (MEAN, np.exp(ACTION), OTHER, OTHER_STD)),
        (densities.likelihood_ratio, of_tensors.likelihood_ratio, (LOG_RATIOS, MEAN[:, :1])),
    ],
)
def test_values_and_gradients_equal_torchs(
    traced_function: Callable[..., Array],
    torch_function: Callable[..., torch.Tensor],
    inputs: tuple[NDArray[np.float64], ...],
) -> None:
    value, gradients = evaluate(traced_function, *inputs)
    tensors = [torch.tensor(values, requires_grad=True) for values in inputs]
    expected_value = torch_function(*tensors).reshape(B, 1)
    np.testing.assert_allclose(value, expected_value.detach(), rtol=1e-12)
    for actual, expected in zip(gradients, torch.autograd.grad(expected_value.sum(), tensors), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("max_ratio", [np.inf, 5.0])
def test_importance_ratios_equal_torchs_including_the_bounded_ones(max_ratio: float) -> None:
    def traced_function(log_pi: Array) -> Array:
        log_mu = log_pi.tape.filled((1, 1), 0.1)
        return densities.importance_ratio(log_pi, log_mu, max_ratio)

    value, (gradient,) = evaluate(traced_function, LOG_RATIOS)
    log_pi = torch.tensor(LOG_RATIOS, requires_grad=True)
    expected_value = of_tensors.importance_ratio(log_pi, torch.tensor(0.1, dtype=torch.float64), max_ratio)
    np.testing.assert_allclose(value, expected_value.detach(), rtol=1e-12)
    np.testing.assert_allclose(gradient, torch.autograd.grad(expected_value.sum(), log_pi)[0], rtol=1e-12)
