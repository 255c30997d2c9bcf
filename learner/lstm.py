"""LSTM networks on a tape: cells in series, a single step, and the pass over a window of experiences.

The columns of a cell's weights are its gates in the order of ``torch.nn.LSTM``: input, forget, candidate, output.  The
rows are its inputs, followed by its own output of the previous step.  The hidden state of a network consists of the
output and the cell state of each cell: (rows, 2 units of all cells).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate, dense, sigmoid, tanh
from onrig.learner.tape.spaces import Layout

_FORGET_GATE: Final = 1
"""Index of the forget gate; with an initial bias of 1, a cell retains its state (Jozefowicz et al. 2015)."""
Memory = list[tuple[Array, Array]]
"""Output and cell state of each cell, (rows, units) each."""


class Lstm:
    """Cells and linear outputs."""

    def __init__(self, state: Layout, name: str, inputs: int, units: Sequence[int], outputs: int) -> None:
        self.units: Final = tuple(units)
        cells = [(i + u, 4 * u) for i, u in itertools.pairwise((inputs, *units))]
        self.sizes: Final = [*cells, (units[-1], outputs)]
        shapes: dict[str, tuple[int, int]] = {}
        for at, (rows, cols) in enumerate(self.sizes):
            shapes[f"weight{at}"], shapes[f"bias{at}"] = (rows, cols), (1, cols)
        self.group: Final = state.group(name, shapes)

    @property
    def hidden_width(self) -> int:
        """Size of the hidden state."""
        return 2 * sum(self.units)

    def split_hidden(self, hidden: Array) -> Memory:
        """Split the hidden state, (rows, hidden_width), by cell."""
        ends = list(itertools.accumulate(u for units in self.units for u in (units, units)))
        parts = [hidden.columns(a, b) for a, b in itertools.pairwise((0, *ends))]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def step(self, x: Array, memory: Memory) -> tuple[Array, Memory]:
        """Run one step from states (rows, inputs); returns the outputs of the last cell (rows, units) and the new
        memory."""
        after: Memory = []
        for at, (units, (output, state)) in enumerate(zip(self.units, memory, strict=True)):
            gates = self._layer(at, concatenate(x, output))
            let_in, keep, candidate, let_out = (gates.columns(k * units, (k + 1) * units) for k in range(4))
            state = sigmoid(keep) * state + sigmoid(let_in) * tanh(candidate)
            x = sigmoid(let_out) * tanh(state)
            after.append((x, state))
        return x, after

    def outputs(self, x: Array) -> Array:
        """Linear outputs (rows, outputs), from outputs of the last cell."""
        return self._layer(len(self.units), x)

    def over_window(self, steps: Sequence[Array], present: Array, before: Array) -> Array:
        """Linear outputs (rows, outputs) at experiences, from the preceding steps (Novati and Koumoutsakos 2019, §5.4).

        ``steps``: states (rows, inputs), that of the experience itself first, the earliest one last; ``present`` (rows,
        W) is 1 where the step exists, 0 before the earliest; ``before`` (rows, hidden_width): hidden state before the
        earliest one.
        """
        start = memory = self.split_hidden(before)
        x = steps[0]
        for at in reversed(range(len(steps))):
            if at + 1 < len(steps):
                there = present.columns(at + 1, at + 2)
                absent = 1.0 - there
                memory = [
                    (there * output + absent * first, there * state + absent * second)
                    for (output, state), (first, second) in zip(memory, start, strict=True)
                ]
            x, memory = self.step(steps[at], memory)
        return self.outputs(x)

    def _layer(self, at: int, x: Array) -> Array:
        weight, bias = (x.tape.read(f) for f in self.group.fields[2 * at : 2 * at + 2])
        return dense(x, weight, bias)

    def draw(self, row: NDArray[np.floating], stream: np.random.Generator) -> None:
        """Draw one trial's parameters into its state: Glorot-uniform gates, U(+-0.1 / sqrt(inputs)) output layer,
        biases 0 except those of the forget gate, 1."""
        for at, (inputs, outputs) in enumerate(self.sizes):
            weight, bias = (row[f.slice] for f in self.group.fields[2 * at : 2 * at + 2])
            last = at == len(self.units)
            bound = 0.1 / inputs**0.5 if last else (6.0 / (inputs + outputs // 4)) ** 0.5
            weight[:], bias[:] = stream.uniform(-bound, bound, inputs * outputs), 0.0
            if not last:
                bias.reshape(4, -1)[_FORGET_GATE] = 1.0

    def layers(self, row: NDArray[np.floating]) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy weights (in, out) and bias (out,) of each cell and of the output layer out of a trial's state."""
        values = [row[f.slice].reshape(f.shape).copy() for f in self.group.fields]
        return [(weight, bias[0]) for weight, bias in zip(values[::2], values[1::2], strict=True)]
