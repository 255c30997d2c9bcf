"""LSTM networks on a trial axis, as flat vectors: their layout, one step, and the pass over a window of experiences.

A cell is one block (``onrig.learner.networks``), whose columns are its gates in the order of ``torch.nn.LSTM``: input,
forget, candidate, output.  Its own output of the step before enters where critics take actions.
What a network remembers is one tensor, (nets, B, 2 units of all cells): output and state of each cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from onrig.learner.autograd import Blocks, states
from onrig.learner.networks import WIDTH, Layer, Layout, padded


def lstm_layout(n_observations: int, n_outputs: int, units: Sequence[int]) -> Layout:
    """Lay out cells of ``units``, one behind the other, and linear outputs; ValueError for units not in fours."""
    if not units or any(u < 1 or u % WIDTH for u in units):
        raise ValueError(f"expected cells with a multiple of {WIDTH} units, got {tuple(units)}")
    sizes = itertools.pairwise((n_observations, *units))
    cells = [Layer(inputs, 4 * outputs, action_rows=outputs, last=True) for inputs, outputs in sizes]
    return Layout((*cells, Layer(units[-1], n_outputs, last=True)))


def zero_memory(layout: Layout, blocks: Blocks, rows: int) -> torch.Tensor:
    """Return what is remembered at an episode's start, (nets, rows, 2 units)."""
    width = sum(2 * cell.action_rows for cell in layout.layers[:-1])
    return blocks[0].new_zeros((len(blocks[0]), rows, width))


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


def over_window(
    layout: Layout, blocks: Blocks, observation: NDArray[np.floating], present: NDArray[np.bool_]
) -> torch.Tensor:
    """Linear outputs (S, rows, cols) at experiences, from the steps before them (Novati and Koumoutsakos 2019, §5.4).

    ``observation`` (S, B, W, n) and ``present`` (S, B, W), the experience itself first and the earliest step last
    (``Trajectories.before``).  Nothing is remembered at the earliest step that is present.
    """
    rows = padded(observation.shape[1])
    there = torch.zeros((len(present), rows, present.shape[2]), dtype=blocks[0].dtype)
    there[:, : present.shape[1]] = torch.from_numpy(present).to(there)
    memory = zero_memory(layout, blocks, rows)
    for k in reversed(range(observation.shape[2])):
        outputs, memory = step(layout, blocks, states(observation[:, :, k], blocks[0].dtype), memory)
        memory = memory * there[:, :, k : k + 1]
    return outputs
