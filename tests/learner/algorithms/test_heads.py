from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithms.heads import (
    expected_gaussian,
    expected_quadratic,
    gaussian,
    gaussian_outputs,
    lower_triangle,
    quadratic,
    quadratic_outputs,
)
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate
from tests.learner.tape.evaluation import evaluate

HEADS = {
    "quadratic": (quadratic, expected_quadratic, quadratic_outputs),
    "gaussian": (gaussian, expected_gaussian, gaussian_outputs),
}


def test_heads_have_as_many_outputs_as_in_the_paper() -> None:
    assert (quadratic_outputs(17), gaussian_outputs(17)) == (153, 35)


def _value(function: object, *inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return evaluate(function, *inputs)[0][:, 0]  # type: ignore[arg-type]


def _softplus(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log1p(np.exp(x)))


@pytest.mark.parametrize("m", [1, 3])
def test_a_quadratic_is_given_by_its_matrix_and_greatest_at_the_mean(m: int) -> None:
    rng = np.random.default_rng(m)
    action, mean, outputs = (rng.standard_normal((4, k)) for k in (m, m, quadratic_outputs(m)))

    def entries(a: Array) -> Array:
        return concatenate(*(entry for row in lower_triangle(a, m) for entry in row))

    triangular = np.zeros((4, m, m))
    triangular[:, *np.tril_indices(m)] = evaluate(entries, outputs)[0]
    assert (np.diagonal(triangular, axis1=1, axis2=2) > 0.0).all()
    rows, columns = np.tril_indices(m)
    expected_triangle = np.where(rows == columns, _softplus(outputs), outputs)
    np.testing.assert_allclose(triangular[:, rows, columns], expected_triangle, rtol=1e-12)
    d = action - mean
    expected = [-0.5 * row @ matrix @ matrix.T @ row for row, matrix in zip(d, triangular, strict=True)]
    np.testing.assert_allclose(_value(quadratic, action, mean, outputs), expected, rtol=1e-12)
    assert np.abs(_value(quadratic, mean, mean, outputs)).max() == 0.0


def test_an_asymmetric_gaussian_has_a_width_on_each_side() -> None:
    outputs = np.array([[0.5, 0.2, -1.0, 1.5, 0.3]])
    height, *widths = _softplus(outputs)[0].tolist()
    mean = np.array([[0.1, -0.2]])
    actual = _value(gaussian, mean + np.array([0.4, -0.7]), mean, outputs)
    assert float(actual[0]) == pytest.approx(height * np.exp(-0.5 * (0.4**2 / widths[0] + 0.7**2 / widths[3])))


def _assert_within_errors(name: str, draws: int) -> None:
    f, expected, width = HEADS[name]
    rng = np.random.default_rng(0)
    for m in (1, 2, 4):
        mean, outputs = (rng.standard_normal((1, k)) for k in (m, width(m)))
        std = rng.uniform(0.2, 1.2, (1, m))
        sampled = _value(f, mean + std * rng.standard_normal((draws, m)), mean, np.repeat(outputs, draws, axis=0))
        error = float(sampled.std()) / draws**0.5
        assert abs(float(sampled.mean()) - float(_value(expected, std, outputs)[0])) < 3.0 * error


@pytest.mark.parametrize("name", HEADS)
def test_the_expectation_matches_draws(name: str) -> None:
    _assert_within_errors(name, 20_000)


@pytest.mark.study
@pytest.mark.parametrize("name", HEADS)
def test_the_expectation_matches_many_draws(name: str) -> None:
    _assert_within_errors(name, 1_000_000)
