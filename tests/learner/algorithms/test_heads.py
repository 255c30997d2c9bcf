from __future__ import annotations

import numpy as np
import pytest
import torch

from onrig.learner.algorithms.heads import (
    expected_gaussian,
    expected_quadratic,
    gaussian,
    gaussian_outputs,
    lower_triangle,
    quadratic,
    quadratic_outputs,
)

HEADS = {
    "quadratic": (quadratic, expected_quadratic, quadratic_outputs),
    "gaussian": (gaussian, expected_gaussian, gaussian_outputs),
}


def test_they_have_as_many_outputs_as_the_paper_says() -> None:
    assert (quadratic_outputs(17), gaussian_outputs(17)) == (153, 35)


@pytest.mark.parametrize("m", [1, 3])
def test_a_quadratic_is_that_of_its_matrix_and_greatest_at_the_mean(m: int) -> None:
    rng = np.random.default_rng(m)
    action, mean, outputs = (torch.from_numpy(rng.standard_normal((4, k))) for k in (m, m, quadratic_outputs(m)))
    lower = lower_triangle(outputs, m).numpy()
    assert (np.diagonal(lower, axis1=1, axis2=2) > 0.0).all()
    assert np.count_nonzero(np.triu(lower, 1)) == 0
    d = (action - mean).numpy()
    wanted = [-0.5 * row @ matrix @ matrix.T @ row for row, matrix in zip(d, lower, strict=True)]
    np.testing.assert_allclose(quadratic(action, mean, outputs), wanted, rtol=1e-12)
    assert quadratic(mean, mean, outputs).abs().max() == 0.0


def test_an_asymmetric_gaussian_has_a_width_on_each_side() -> None:
    outputs = torch.tensor([0.5, 0.2, -1.0, 1.5, 0.3], dtype=torch.float64)
    height, *widths = torch.nn.functional.softplus(outputs).tolist()
    mean = torch.tensor([0.1, -0.2], dtype=torch.float64)
    got = gaussian(mean + torch.tensor([0.4, -0.7]), mean, outputs)
    assert float(got) == pytest.approx(height * np.exp(-0.5 * (0.4**2 / widths[0] + 0.7**2 / widths[3])))


def _within_errors(name: str, draws: int) -> None:
    f, expected, width = HEADS[name]
    rng = np.random.default_rng(0)
    for m in (1, 2, 4):
        mean, outputs = (torch.from_numpy(rng.standard_normal(k)) for k in (m, width(m)))
        std = torch.from_numpy(rng.uniform(0.2, 1.2, m))
        sampled = f(mean + std * torch.from_numpy(rng.standard_normal((draws, m))), mean, outputs.expand(draws, -1))
        error = float(sampled.std()) / draws**0.5
        assert abs(float(sampled.mean()) - float(expected(std, outputs))) < 3.0 * error


@pytest.mark.parametrize("name", HEADS)
def test_the_expectation_is_that_of_draws(name: str) -> None:
    _within_errors(name, 20_000)


@pytest.mark.study
@pytest.mark.parametrize("name", HEADS)
def test_the_expectation_is_that_of_many_draws(name: str) -> None:
    _within_errors(name, 1_000_000)
