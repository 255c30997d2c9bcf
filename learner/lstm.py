"""LSTM networks on a trial axis, as flat vectors: their layout, one step, and the pass over a window of experiences.

A cell is one block (``onrig.learner.networks``), whose columns are its gates in the order of ``torch.nn.LSTM``: input,
forget, candidate, output.  Its own output of the step before enters where critics take actions.
What a network remembers is one tensor, (nets, B, 2 units of all cells): output and state of each cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from onrig.learner.autograd import Blocks
from onrig.learner.networks import WIDTH, Layer, Layout, padded

_KEEP: Final = 1
"""The forget gate among the four; with a bias of 1 a cell remembers from the start (Jozefowicz et al. 2015)."""


def lstm_layout(n_observations: int, n_outputs: int, units: Sequence[int]) -> Layout:
    """Lay out cells of ``units``, one behind the other, and linear outputs; ValueError for units not in fours."""
    if not units or any(u < 1 or u % WIDTH for u in units):
        raise ValueError(f"expected cells with a multiple of {WIDTH} units, got {tuple(units)}")
    sizes = itertools.pairwise((n_observations, *units))
    cells = [Layer(inputs, 4 * outputs, action_rows=outputs, last=True) for inputs, outputs in sizes]
    return Layout((*cells, Layer(units[-1], n_outputs, last=True)))


def lstm_vectors(layout: Layout, streams: Sequence[np.random.Generator]) -> NDArray[np.float64]:
    """Draw parameters (S, 1, P): Glorot-uniform gates, U(+-0.1 / sqrt(inputs)) output, no biases but 1 to keep."""

    def drawn(stream: np.random.Generator) -> NDArray[np.float64]:
        parts = []
        for cell in layout.layers[:-1]:
            inputs, units = cell.inputs + cell.action_rows, cell.action_rows
            bound = (6.0 / (inputs + units)) ** 0.5
            bias = np.zeros((4, units))
            bias[_KEEP] = 1.0
            parts += [stream.uniform(-bound, bound, inputs * 4 * units), bias.reshape(-1)]
        last = layout.layers[-1]
        bound = 0.1 / last.inputs**0.5
        return np.concatenate(
            (*parts, stream.uniform(-bound, bound, last.inputs * last.outputs), np.zeros(last.outputs))
        )

    return np.array([[drawn(stream)] for stream in streams])


def hidden_width(layout: Layout) -> int:
    """Numbers that a network remembers."""
    return sum(2 * cell.action_rows for cell in layout.layers[:-1])


def zero_memory(layout: Layout, blocks: Blocks, rows: int) -> torch.Tensor:
    """Return what is remembered at an episode's start, (nets, rows, 2 units)."""
    return blocks[0].new_zeros((len(blocks[0]), rows, hidden_width(layout)))


def step(layout: Layout, blocks: Blocks, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step from states ``x`` (nets, B, rows): linear outputs (nets, B, cols), and what is remembered then."""
    first = layout.layers[0].inputs
    constant = x[..., first : first + 1]
    kept = []
    for cell, block in zip(layout.layers[:-1], blocks[:-1], strict=True):
        units = cell.action_rows
        output, state, memory = memory.tensor_split((units, 2 * units), dim=-1)
        gates = torch.bmm(torch.cat((x, output), dim=-1), block)
        let_in, keep, candidate, let_out = gates.chunk(4, dim=-1)
        state = keep.sigmoid() * state + let_in.sigmoid() * candidate.tanh()
        output = let_out.sigmoid() * state.tanh()
        kept += [output, state]
        x = pad(torch.cat((output, constant), dim=-1), (0, padded(units + 1) - units - 1))
    return torch.bmm(x, blocks[-1]), torch.cat(kept, dim=-1)


def window_states(
    observation: NDArray[np.floating],
    present: NDArray[np.bool_],
    before: NDArray[np.floating],
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """States (W, S, rows, cols + h) of windows of experiences, for ``over_window``.

    ``observation`` (S, B, W, n) and ``present`` (S, B, W), the experience itself first and the earliest step last
    (``Trajectories.before``); ``before`` (S, B, h): what is remembered before the earliest that is present, which comes
    behind that step's state.  States that are not present are all zero, the constant unit included: a cell that has
    seen nothing else remembers nothing.
    """
    S, B, W, n = observation.shape
    cols = padded(n + 1)
    x = torch.zeros((W, S, padded(B), cols + before.shape[-1]), dtype=dtype)
    x[:, :, :B, :n] = torch.from_numpy(np.moveaxis(np.where(present[..., None], observation, 0.0), 2, 0))
    x[:, :, :B, n] = torch.from_numpy(np.moveaxis(present, 2, 0))
    trial, row = np.indices((S, B))
    x[present.sum(axis=-1) - 1, trial, row, cols:] = torch.from_numpy(before).to(dtype)
    return x


def over_window(layout: Layout, blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
    """Linear outputs (S, rows, cols) at experiences, from the steps before them (Novati and Koumoutsakos 2019, §5.4).

    ``x``: those of ``window_states``, the latest first.
    """
    cols = x.shape[-1] - hidden_width(layout)
    memory = zero_memory(layout, blocks, x.shape[2])
    for seen in reversed(x.unbind()):
        outputs, memory = step(layout, blocks, seen[..., :cols], memory + seen[..., cols:])
    return outputs
