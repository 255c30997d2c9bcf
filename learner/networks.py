"""The networks of de Bruin et al. 2018 (App. B.1, Table 8) as flat parameter vectors on a trial axis.

The parameters of S trials of one network lie in one flat vector, layer after layer; a layer is a contiguous block
(S, rows, cols), so that one batched matrix product serves all trials and writes its gradient in place (products into
strided outputs take twice as long).  Biases are the row of a *constant unit*: each hidden layer hands a 1 on to the
next through a fixed column of its own block, which saves separate bias operations.  Fixed entries and padding are not
parameters: gradients are masked there (``Layout.trainable``).

Outside, a network is a plain vector per trial, array (S, P): layer by layer, the weights (in, out) in row-major order,
then the bias.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

OUTPUT_INIT: Final = 3e-3
"""Half-width of the uniform initialisation of output layers (Lillicrap et al. 2016)."""
WIDTH: Final = 4
"""Rows, columns and batches are padded to multiples of this with zeros.

Every block then starts on a 64-byte boundary and every product has a shape for which one trial's bits were found not to
depend on the number of trials (unpadded ones, such as 51 x 51 and all with one row or column, do depend on it).
"""
FLAT_MULTIPLE: Final = 64
"""Flat vectors are padded to whole SIMD strides: the fused Adam rounds the odd rest of a vector differently."""


class NetworkSize(NamedTuple):
    """Units of the hidden layers of actor and critic."""

    actor: tuple[int, ...]
    critic: tuple[int, ...]


NETWORK_SIZES: Final[dict[str, NetworkSize]] = {
    "small": NetworkSize(actor=(50, 50), critic=(50, 50, 20)),
    "ddpg_original": NetworkSize(actor=(400, 300), critic=(400, 300)),
    "medium": NetworkSize(actor=(128, 128), critic=(128, 128)),
}
"""Named sizes: of Table 8, and that of Novati and Koumoutsakos 2019."""


def padded(width: int) -> int:
    """Round a number of rows or columns up to a multiple of WIDTH."""
    return -(-width // WIDTH) * WIDTH


class Layer(NamedTuple):
    """One layer's block: rows are (inputs, constant unit, actions), columns (outputs, constant unit, actions)."""

    inputs: int
    outputs: int
    action_rows: int = 0
    """Action components that enter here next to the previous layer's units."""
    action_cols: int = 0
    """Action components that enter the next layer: columns are kept free for them."""
    last: bool = False
    """True for the output layer, which hands no constant unit on."""

    @property
    def action_start(self) -> int:
        """First row of the actions."""
        return padded(self.inputs + 1)

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return self.action_start + padded(self.action_rows)

    @property
    def cols(self) -> int:
        """Columns of the block; the next layer's rows."""
        return padded(self.outputs) if self.last else padded(self.outputs + 1) + padded(self.action_cols)

    @property
    def row_order(self) -> NDArray[np.int64]:
        """Block rows in the order of the plain vector: inputs, actions, bias."""
        actions = range(self.action_start, self.action_start + self.action_rows)
        return np.array([*range(self.inputs), *actions, self.inputs], dtype=np.int64)

    @property
    def n_parameters(self) -> int:
        """Weights and biases of the layer."""
        return (self.inputs + self.action_rows + 1) * self.outputs


@dataclass(frozen=True)
class Layout:
    """Where the parameters of one network lie, within a plain vector and within the flat vector of S trials."""

    layers: tuple[Layer, ...]

    @property
    def n_parameters(self) -> int:
        """Parameters of one trial, P."""
        return sum(layer.n_parameters for layer in self.layers)

    def flat_size(self, trials: int) -> int:
        """Length of the flat vector of ``trials`` trials, padding included."""
        size = trials * sum(layer.rows * layer.cols for layer in self.layers)
        return -(-size // FLAT_MULTIPLE) * FLAT_MULTIPLE

    def blocks(self, flat: torch.Tensor, trials: int) -> list[torch.Tensor]:
        """View a flat vector as one contiguous block (S, rows, cols) per layer."""
        views, start = [], 0
        for layer in self.layers:
            stop = start + trials * layer.rows * layer.cols
            views.append(flat[start:stop].view(trials, layer.rows, layer.cols))
            start = stop
        return views

    def write(self, flat: torch.Tensor, vectors: NDArray[np.floating], trials: int, *, constant: float = 1.0) -> None:
        """Fill a flat vector from plain vectors (S, P); entries of the constant unit get ``constant``, the rest 0.

        Raises ValueError when the vectors are of another shape.  (Adam's moments are written with ``constant=0``.)
        """
        if vectors.shape != (trials, self.n_parameters):
            raise ValueError(f"parameter vectors of shape {vectors.shape}, expected ({trials}, {self.n_parameters})")
        flat.zero_()
        start = 0
        for layer, block in zip(self.layers, self.blocks(flat, trials), strict=True):
            values = np.zeros((trials, layer.rows, layer.cols), dtype=vectors.dtype)
            stop = start + layer.n_parameters
            values[:, layer.row_order, : layer.outputs] = vectors[:, start:stop].reshape(trials, -1, layer.outputs)
            if not layer.last:
                values[:, layer.inputs, layer.outputs] = constant
            block.copy_(torch.from_numpy(values))
            start = stop

    def read(self, flat: torch.Tensor, trials: int) -> NDArray[np.floating]:
        """Copy a flat vector out as plain vectors (S, P), in its own dtype."""
        parts = []
        for layer, block in zip(self.layers, self.blocks(flat, trials), strict=True):
            values: NDArray[np.floating] = block.numpy()
            parts.append(values[:, layer.row_order, : layer.outputs].reshape(trials, layer.n_parameters))
        return np.concatenate(parts, axis=1)

    def trainable(self, trials: int) -> torch.Tensor:
        """Flat float64 mask: 1 at weights and biases, 0 at fixed entries and padding."""
        return self._mask(trials, biases=True)

    def weights(self, trials: int) -> torch.Tensor:
        """Flat float64 mask: 1 at weights, 0 at biases, fixed entries and padding."""
        return self._mask(trials, biases=False)

    def _mask(self, trials: int, *, biases: bool) -> torch.Tensor:
        mask = torch.zeros(self.flat_size(trials), dtype=torch.float64)
        for layer, block in zip(self.layers, self.blocks(mask, trials), strict=True):
            rows = layer.row_order if biases else layer.row_order[:-1]
            block[:, rows, : layer.outputs] = 1.0
        return mask


def mlp_layout(inputs: int, outputs: int, hidden: Sequence[int]) -> Layout:
    """Lay out a network of full layers: inputs -> hidden units ... -> outputs, linear.

    Whoever runs it chooses the units, and what follows on the outputs.
    """
    layers = [Layer(*sizes) for sizes in itertools.pairwise((inputs, *hidden))]
    return Layout((*layers, Layer((inputs, *hidden)[-1], outputs, last=True)))


def critic_layout(n_observations: int, n_actions: int, hidden: Sequence[int]) -> Layout:
    """Lay out the critic: observation -> relu, with the action -> relu ... -> 1, linear (App. B.1).

    The action enters the second layer, as implied by the parameter counts of Table 8.  Raises ValueError for fewer than
    two hidden layers.
    """
    if len(hidden) < 2:
        raise ValueError(f"a critic needs at least two hidden layers, got {tuple(hidden)}")
    first = Layer(n_observations, hidden[0], action_cols=n_actions)
    second = Layer(hidden[0], hidden[1], action_rows=n_actions)
    rest = [Layer(inputs, outputs) for inputs, outputs in itertools.pairwise(hidden[1:])]
    return Layout((first, second, *rest, Layer(hidden[-1], 1, last=True)))


def initial_vector(layout: Layout, stream: np.random.Generator) -> NDArray[np.float64]:
    """Draw one trial's initial parameters, (P,): Glorot-uniform hidden weights, biases 0; of the output both U(±3e-3).

    De Bruin et al. 2018 do not state theirs; this is Lillicrap's for the output.  A trial draws from its own stream
    alone, so its values do not depend on how many trials there are.
    """
    parts = []
    for layer in layout.layers:
        fan_in = layer.inputs + layer.action_rows
        bound = OUTPUT_INIT if layer.last else math.sqrt(6.0 / (fan_in + layer.outputs))
        parts.append(stream.uniform(-bound, bound, fan_in * layer.outputs))
        # The output layer's bias is drawn as well (Lillicrap et al. 2016, supplementary §7).
        parts.append(stream.uniform(-bound, bound, layer.outputs) if layer.last else np.zeros(layer.outputs))
    return np.concatenate(parts)


def split_layers(
    layout: Layout, vector: NDArray[np.floating]
) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
    """Split one trial's plain vector (P,) into weights (in, out) and bias (out,) per layer, as views."""
    pairs, start = [], 0
    for layer in layout.layers:
        block = vector[start : start + layer.n_parameters].reshape(-1, layer.outputs)
        pairs.append((block[:-1], block[-1]))
        start += layer.n_parameters
    return pairs
