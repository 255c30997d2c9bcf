"""Advantages as functions of the action, parametrised by outputs of a network (Novati and Koumoutsakos 2019, App. E).

Tensors: actions, means and standard deviations (..., m), outputs (..., k); results (...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch.nn.functional import softplus


def quadratic_outputs(m: int) -> int:
    """Outputs of a quadratic of ``m`` actions: the entries of a lower triangular matrix."""
    return (m * m + m) // 2


def lower_triangle(outputs: torch.Tensor, m: int) -> torch.Tensor:
    """L (..., m, m) with softplus on its diagonal, from its entries row by row."""
    rows, columns = torch.tril_indices(m, m)
    entries = torch.where(rows == columns, softplus(outputs), outputs)
    lower = torch.zeros((*outputs.shape[:-1], m, m), dtype=outputs.dtype)
    lower[..., rows, columns] = entries
    return lower


def quadratic(action: torch.Tensor, mean: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """f_Q = -(a - m)' L L' (a - m) / 2 (eq. 18)."""
    lower = lower_triangle(outputs, mean.shape[-1])
    return -0.5 * ((action - mean)[..., None] * lower).sum(-2).square().sum(-1)


def expected_quadratic(std: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """E f_Q under N(mean, std^2): -Tr(L L' Sigma) / 2; eq. 19 lacks the factor."""
    lower = lower_triangle(outputs, std.shape[-1])
    return -0.5 * (lower * std[..., None]).square().sum((-2, -1))


def gaussian_outputs(m: int) -> int:
    """Outputs of an asymmetric Gaussian of ``m`` actions: its height, and two widths of each."""
    return 1 + 2 * m


def gaussian(action: torch.Tensor, mean: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """f_G = K exp(-sum (a - m)_+^2 / (2 L+) - sum (a - m)_-^2 / (2 L-)) (eq. 20); K, L+ and L- positive by softplus."""
    height, above, below = _gaussian_parts(outputs, mean.shape[-1])
    apart = action - mean
    exponent = apart.clamp(min=0.0).square() / above + apart.clamp(max=0.0).square() / below
    return height * (-0.5 * exponent.sum(-1)).exp()


def expected_gaussian(std: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """E f_G under N(mean, std^2) (eq. 22)."""
    height, above, below = _gaussian_parts(outputs, std.shape[-1])
    variance = std.square()
    halves = [(width / (width + variance)).sqrt() for width in (above, below)]
    return height * (0.5 * (halves[0] + halves[1])).prod(-1)


def _gaussian_parts(outputs: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    positive = softplus(outputs)
    return positive[..., 0], positive[..., 1 : 1 + m], positive[..., 1 + m : 1 + 2 * m]


class Head(NamedTuple):
    """A form of the advantage, up to its mean under the policy."""

    value: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    """Of action, mean and outputs."""
    expected: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Of standard deviation and outputs."""
    outputs: Callable[[int], int]
    """Of the number of actions."""

    def advantage(
        self, action: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, outputs: torch.Tensor
    ) -> torch.Tensor:
        """A(s, a) = f - E f, whose mean under the policy is 0."""
        return self.value(action, mean, outputs) - self.expected(std, outputs)


HEADS: Final = {
    "quadratic": Head(quadratic, expected_quadratic, quadratic_outputs),
    "gaussian": Head(gaussian, expected_gaussian, gaussian_outputs),
}
