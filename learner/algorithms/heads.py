"""Advantages as functions of the action, parametrised by network outputs (Novati and Koumoutsakos 2019, App. E).

Arrays: actions, means and standard deviations (B, m) or (1, m), outputs (B, k); results (B, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add, mul
from typing import Final, NamedTuple

from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import clip, exp, softplus, sqrt, square


def quadratic_outputs(m: int) -> int:
    """Return the number of outputs for a quadratic in ``m`` actions: the entries of a lower triangular matrix."""
    return (m * m + m) // 2


def lower_triangle(outputs: Array, m: int) -> list[list[Array]]:
    """Return the rows of L up to the diagonal, as entries (B, 1) with softplus on the diagonal; ``outputs`` lists the
    entries row by row."""

    def entry(i: int, j: int) -> Array:
        column = quadratic_outputs(i) + j
        output = outputs.columns(column, column + 1)
        return softplus(output) if i == j else output

    return [[entry(i, j) for j in range(i + 1)] for i in range(m)]


def quadratic(action: Array, mean: Array, outputs: Array) -> Array:
    """Return f_Q = -(a - m)' L L' (a - m) / 2 (eq. 18)."""
    m = action.shape[1]
    triangle, deviation = lower_triangle(outputs, m), action - mean
    columns = (reduce(add, (deviation.columns(i, i + 1) * triangle[i][j] for i in range(j, m))) for j in range(m))
    return reduce(add, map(square, columns)) * -0.5


def expected_quadratic(std: Array, outputs: Array) -> Array:
    """Return E f_Q under N(mean, std^2), which is -Tr(L L' Sigma) / 2; eq. 19 lacks the factor -1/2."""
    triangle = lower_triangle(outputs, std.shape[1])
    terms = (square(entry * std.columns(i, i + 1)) for i, row in enumerate(triangle) for entry in row)
    return reduce(add, terms) * -0.5


def gaussian_outputs(m: int) -> int:
    """Return the number of outputs for an asymmetric Gaussian in ``m`` actions: its height, and two widths per
    action."""
    return 1 + 2 * m


def gaussian(action: Array, mean: Array, outputs: Array) -> Array:
    """Return f_G = K exp(-sum (a - m)_+^2 / (2 L+) - sum (a - m)_-^2 / (2 L-)) (eq. 20), where softplus makes K, L+ and
    L- positive."""
    height, upper_width, lower_width = _gaussian_parts(outputs, action.shape[1])
    deviation = action - mean
    exponent = (
        square(clip(deviation, 0.0, float("inf"))) / upper_width
        + square(clip(deviation, float("-inf"), 0.0)) / lower_width
    )
    return height * exp(exponent.row_sums() * -0.5)


def expected_gaussian(std: Array, outputs: Array) -> Array:
    """Return E f_G under N(mean, std^2) (eq. 22)."""
    m = std.shape[1]
    height, upper_width, lower_width = _gaussian_parts(outputs, m)
    variance = square(std)
    side_factors = [sqrt(width / (width + variance)) for width in (upper_width, lower_width)]
    mean_factor = (side_factors[0] + side_factors[1]) * 0.5
    return height * reduce(mul, (mean_factor.columns(i, i + 1) for i in range(m)))


def _gaussian_parts(outputs: Array, m: int) -> tuple[Array, Array, Array]:
    positive_outputs = softplus(outputs)
    return (
        positive_outputs.columns(0, 1),
        positive_outputs.columns(1, 1 + m),
        positive_outputs.columns(1 + m, 1 + 2 * m),
    )


class AdvantageHead(NamedTuple):
    """Parametrisation of the advantage, up to its mean under the policy."""

    value: Callable[[Array, Array, Array], Array]
    """Function from action, mean and outputs to the advantage."""
    expected: Callable[[Array, Array], Array]
    """Function from standard deviation and outputs to the expected advantage."""
    outputs: Callable[[int], int]
    """Function from the number of actions to the number of outputs."""

    def advantage(self, action: Array, mean: Array, std: Array, outputs: Array) -> Array:
        """Return A(s, a) = f - E f, which has mean 0 under the policy."""
        return self.value(action, mean, outputs) - self.expected(std, outputs)


HEADS: Final = {
    "quadratic": AdvantageHead(quadratic, expected_quadratic, quadratic_outputs),
    "gaussian": AdvantageHead(gaussian, expected_gaussian, gaussian_outputs),
}
