"""LSTM networks on a tape: cells in series, run for a single step or over a window of experiences.

The columns of a cell's weights belong to its gates, in the order of ``torch.nn.LSTM``: input, forget, candidate,
output.  The rows belong to its inputs, followed by its own output in the previous step.  A network's hidden state
consists of the output and the cell state of each cell: (rows, 2 * units of all cells).
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
HiddenState = list[tuple[Array, Array]]
"""Output and cell state of each cell, (rows, units) each."""


class Lstm:
    """LSTM cells in series, followed by a linear output layer."""

    def __init__(self, state: Layout, name: str, inputs: int, units: Sequence[int], outputs: int) -> None:
        self.units: Final = tuple(units)
        cells = [(i + u, 4 * u) for i, u in itertools.pairwise((inputs, *units))]
        self.sizes: Final = [*cells, (units[-1], outputs)]
        shapes: dict[str, tuple[int, int]] = {}
        for index, (rows, cols) in enumerate(self.sizes):
            shapes[f"weight{index}"], shapes[f"bias{index}"] = (rows, cols), (1, cols)
        self.group: Final = state.group(name, shapes)

    @property
    def hidden_width(self) -> int:
        return 2 * sum(self.units)

    def split_hidden(self, hidden: Array) -> HiddenState:
        """Split a hidden state, (rows, hidden_width), by cell."""
        ends = list(itertools.accumulate(u for units in self.units for u in (units, units)))
        states = [hidden.columns(a, b) for a, b in itertools.pairwise((0, *ends))]
        return list(zip(states[::2], states[1::2], strict=True))

    def step(self, x: Array, hidden: HiddenState) -> tuple[Array, HiddenState]:
        """Run one step from states (rows, inputs), and return the outputs of the last cell (rows, units) and the new
        hidden state."""
        next_hidden: HiddenState = []
        for index, (units, (output, state)) in enumerate(zip(self.units, hidden, strict=True)):
            gates = self._layer(index, concatenate(x, output))
            input_gate, forget_gate, candidate, output_gate = (
                gates.columns(k * units, (k + 1) * units) for k in range(4)
            )
            state = sigmoid(forget_gate) * state + sigmoid(input_gate) * tanh(candidate)
            x = sigmoid(output_gate) * tanh(state)
            next_hidden.append((x, state))
        return x, next_hidden

    def outputs(self, x: Array) -> Array:
        """Return the linear outputs (rows, outputs), computed from the outputs of the last cell."""
        return self._layer(len(self.units), x)

    def over_window(self, steps: Sequence[Array], is_present: Array, initial_hidden: Array) -> Array:
        """Return the linear outputs (rows, outputs) for experiences, starting from the steps that precede them (Novati
        and Koumoutsakos 2019, §5.4).

        ``steps``: states (rows, inputs), from the experience's own back to the earliest step; ``is_present`` (rows, W):
        1 where a step exists, 0 before the earliest one; ``initial_hidden`` (rows, hidden_width): hidden state before
        the earliest step.
        """
        initial_states = hidden = self.split_hidden(initial_hidden)
        x = steps[0]
        for index in reversed(range(len(steps))):
            if index + 1 < len(steps):
                exists = is_present.columns(index + 1, index + 2)
                absent = 1.0 - exists
                hidden = [
                    (exists * output + absent * initial_output, exists * state + absent * initial_state)
                    for (output, state), (initial_output, initial_state) in zip(hidden, initial_states, strict=True)
                ]
            x, hidden = self.step(steps[index], hidden)
        return self.outputs(x)

    def _layer(self, index: int, x: Array) -> Array:
        weight, bias = (x.tape.read(f) for f in self.group.fields[2 * index : 2 * index + 2])
        return dense(x, weight, bias)

    def draw(self, row: NDArray[np.floating], stream: np.random.Generator) -> None:
        """Draw one trial's parameters into its state.

        Weights are Glorot-uniform in the gates and U(+-0.1 / sqrt(inputs)) in the output layer; biases are 0, except
        that those of the forget gate are 1.
        """
        for index, (inputs, outputs) in enumerate(self.sizes):
            weight, bias = (row[f.slice] for f in self.group.fields[2 * index : 2 * index + 2])
            is_output = index == len(self.units)
            bound = 0.1 / inputs**0.5 if is_output else (6.0 / (inputs + outputs // 4)) ** 0.5
            weight[:], bias[:] = stream.uniform(-bound, bound, inputs * outputs), 0.0
            if not is_output:
                bias.reshape(4, -1)[_FORGET_GATE] = 1.0

    def layers(self, row: NDArray[np.floating]) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy the weights (in, out) and bias (out,) of each cell and of the output layer from a trial's state."""
        values = [row[f.slice].reshape(f.shape).copy() for f in self.group.fields]
        return [(weight, bias[0]) for weight, bias in zip(values[::2], values[1::2], strict=True)]
