"""Networks on a tape: fully connected layers, and the initialisation of their parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithm_config import Image
from onrig.learner.tape.array import Array
from onrig.learner.tape.convolutions import Convolutions
from onrig.learner.tape.elementary import Dropout, concatenate, dense, relu, split, sqrt, square, standardise
from onrig.learner.tape.spaces import Field, Group, Layout

_OUTPUT_INIT: Final = 3e-3
Activation = Callable[[Array], Array]
Draw = Callable[[np.random.Generator, int, int, bool], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Function ``draw(stream, inputs, outputs, is_last)`` that draws the weights (inputs, outputs) and bias (outputs,) of a
layer."""


def fan_in_uniform(
    stream: np.random.Generator, inputs: int, outputs: int, is_last: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw weights and biases uniformly within ±1 / sqrt(inputs), the initialisation of TD3 and SAC."""
    bound = 1.0 / math.sqrt(inputs)
    return stream.uniform(-bound, bound, (inputs, outputs)), stream.uniform(-bound, bound, outputs)


def glorot(
    stream: np.random.Generator, inputs: int, outputs: int, is_last: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw a hidden layer's weights Glorot-uniformly, with biases 0, or output weights and biases from U(±3e-3)
    (Lillicrap et al. 2016, supp. §7).

    De Bruin et al. 2018 do not state their initialisation.
    """
    bound = _OUTPUT_INIT if is_last else math.sqrt(6.0 / (inputs + outputs))
    weight = stream.uniform(-bound, bound, (inputs, outputs))
    return weight, stream.uniform(-bound, bound, outputs) if is_last else np.zeros(outputs)


class Mlp:
    """Fully connected layers with activation units between them, and linear outputs."""

    def __init__(
        self,
        state: Layout,
        name: str,
        sizes: Sequence[int],
        *,
        activation: Activation = relu,
        joined_widths: Mapping[int, int] | None = None,
        scaled_widths: Sequence[int] = (),
        filters: Sequence[tuple[int, int]] = (),
    ) -> None:
        """``sizes``: inputs, units of each hidden layer, outputs; ``joined_widths``: number of additional columns that
        enter layer i.  Subclasses also set ``scaled_widths``, the widths of layers with a scale and a shift, and
        ``filters``, the sizes of preceding layers."""
        widths = joined_widths or {}
        self.sizes: Final = [
            *filters,
            *((n_in + widths.get(i, 0), n_out) for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes))),
        ]
        shapes: dict[str, tuple[int, int]] = {}
        for i, (inputs, outputs) in enumerate(self.sizes):
            shapes[f"weight{i}"], shapes[f"bias{i}"] = (inputs, outputs), (1, outputs)
        for i, cols in enumerate(scaled_widths):
            shapes[f"scale{i}"] = shapes[f"shift{i}"] = (1, cols)
        self.group: Final[Group] = state.group(name, shapes)
        self._activation = activation

    @property
    def weights(self) -> Sequence[Field]:
        return self._layers[::2]

    @property
    def _layers(self) -> Sequence[Field]:
        """Weights and bias of every layer, in turn."""
        return self.group.fields[: 2 * len(self.sizes)]

    @property
    def _scales(self) -> Sequence[Field]:
        """Scale and shift of every scaled layer, in turn."""
        return self.group.fields[2 * len(self.sizes) :]

    def __call__(self, x: Array, **joined_arrays: Array) -> Array:
        """Return the linear outputs (rows, outputs) at inputs (rows, inputs); ``join1`` enters the second layer, and so
        on."""
        return self.from_layer(0, x, **joined_arrays)

    def train(self, x: Array, dropout: Dropout | None = None) -> Array:
        """Return the linear outputs in an update; subclasses use ``dropout`` and the statistics of the batch."""
        return self(x)

    def from_layer(self, first: int, x: Array, **joined_arrays: Array) -> Array:
        """Return the linear outputs, starting from the inputs of layer ``first``."""
        last_index = len(self.sizes) - 1
        for i in range(first, last_index + 1):
            joined_array = joined_arrays.get(f"join{i}")
            x = self.layer(i, x if joined_array is None else concatenate(x, joined_array), is_last=i == last_index)
        return x

    def layer(self, index: int, x: Array, *, is_last: bool = False) -> Array:
        """Return the outputs of one layer, after its activation units unless it is the last."""
        weight, bias = (x.tape.read(f) for f in self.group.fields[2 * index : 2 * index + 2])
        if is_last:
            return dense(x, weight, bias)
        if self._activation is relu:
            return dense(x, weight, bias, relu=True)
        return self._activation(dense(x, weight, bias))

    def draw(self, row: NDArray[np.floating], stream: np.random.Generator, draw: Draw) -> None:
        last_index = len(self.sizes) - 1
        for i, (inputs, outputs) in enumerate(self.sizes):
            for f, values in zip(
                self.group.fields[2 * i :], draw(stream, inputs, outputs, i == last_index), strict=False
            ):
                row[f.slice] = np.broadcast_to(values, f.shape).reshape(-1)

        for f in self._scales[::2]:
            row[f.slice] = 1.0

    def _scale(self, index: int, x: Array) -> Array:
        """Apply a scale and a shift to each column."""
        scale, shift = (x.tape.read(f) for f in self._scales[2 * index : 2 * index + 2])
        return x * scale + shift

    def copy(self, row: NDArray[np.floating], source: Mlp) -> None:
        """Copy one trial's parameters from a network of the same sizes."""
        row[self.group.flat_field.slice] = row[source.group.flat_field.slice]

    def layers(self, row: NDArray[np.floating]) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy the weights (in, out) and bias (out,) of each layer from a trial's state."""
        values = [row[f.slice].reshape(f.shape).copy() for f in self._layers]
        return [(weight, bias[0]) for weight, bias in zip(values[::2], values[1::2], strict=True)]


class ImageMlp(Mlp):
    """Network that applies convolutions to the images in the first columns of its inputs, and fully connected layers to
    the outputs of the convolutions and the other columns."""

    def __init__(self, state: Layout, name: str, sizes: Sequence[int], image: Image) -> None:
        self._convolutions: Final = Convolutions(image)
        n, outputs, filters = self._convolutions.inputs, self._convolutions.outputs, self._convolutions.filters
        super().__init__(state, name, (sizes[0] - n + outputs, *sizes[1:]), filters=filters)

    def __call__(self, x: Array, **joined_arrays: Array) -> Array:
        n, fields, first = self._convolutions.inputs, iter(self.group.fields), len(self._convolutions.filters)
        if x.shape[1] == n:
            return self.from_layer(first, self._convolutions(x, fields), **joined_arrays)
        images, numbers = split(x, n)
        return self.from_layer(first, concatenate(self._convolutions(images, fields), numbers), **joined_arrays)


def mlp(state: Layout, name: str, sizes: Sequence[int], image: Image | None) -> Mlp:
    """Lay out a network for vectors, or for images and additional columns."""
    return Mlp(state, name, sizes) if image is None else ImageMlp(state, name, sizes, image)


class LayerNormalised(Mlp):
    """Network with dropout and layer normalisation (Ba et al. 2016) before the relu units, each optional
    (Hiraoka et al. 2022)."""

    EPS: Final = 1e-5

    def __init__(self, state: Layout, name: str, sizes: Sequence[int], *, is_normalised: bool) -> None:
        super().__init__(state, name, sizes, scaled_widths=sizes[1:-1] if is_normalised else ())

    def layer(self, index: int, x: Array, *, is_last: bool = False, dropout: Dropout | None = None) -> Array:
        """Return the outputs of one layer, after its activation units unless it is the last."""
        if is_last or (dropout is None and not self._scales):
            return super().layer(index, x, is_last=is_last)
        x = super().layer(index, x, is_last=True)
        x = x if dropout is None else dropout(x)
        return relu(self._scale(index, standardise(x, self.EPS)) if self._scales else x)

    def train(self, x: Array, dropout: Dropout | None = None) -> Array:
        last_index = len(self.sizes) - 1
        for i in range(last_index + 1):
            x = self.layer(i, x, is_last=i == last_index, dropout=dropout)
        return x


class BatchNormalised(Mlp):
    """Network of relu units with batch normalisation (Ioffe and Szegedy 2015) of each layer's inputs
    (Bhatt et al. 2024)."""

    EPS: Final = 1e-3
    MOMENTUM: Final = 0.99
    """Share of the running statistics that an update keeps."""

    def __init__(self, state: Layout, name: str, sizes: Sequence[int]) -> None:
        super().__init__(state, name, sizes, scaled_widths=sizes[:-1])
        shapes = {f"{kind}{i}": (1, cols) for i, cols in enumerate(sizes[:-1]) for kind in ("mean", "variance")}
        self._statistics: Final = state.group(f"{name}_statistics", shapes).fields
        """Running mean and variance of every layer's inputs, in turn."""

    def draw(self, row: NDArray[np.floating], stream: np.random.Generator, draw: Draw) -> None:
        super().draw(row, stream, draw)
        for f in self._statistics[1::2]:
            row[f.slice] = 1.0

    def layer(self, index: int, x: Array, *, is_last: bool = False) -> Array:
        """Return the outputs of one layer, with its inputs normalised by the running statistics."""
        mean, variance = (x.tape.read(f) for f in self._statistics[2 * index : 2 * index + 2])
        return super().layer(index, self._scale(index, (x - mean) / sqrt(variance + self.EPS)), is_last=is_last)

    def train(self, x: Array, dropout: Dropout | None = None) -> Array:
        """Return the linear outputs, with inputs normalised by the batch's statistics, and update the running
        statistics."""
        last_index, rows = len(self.sizes) - 1, x.shape[0]
        for i in range(last_index + 1):
            mean = x.column_sums() * (1.0 / rows)
            variance = square(x - mean).column_sums() * (1.0 / rows)
            for f, value in zip(self._statistics[2 * i :], (mean, variance), strict=False):
                x.tape.emit("follow", f.shape, [value], out=x.tape.read(f), x=1.0 - self.MOMENTUM)
            x = super().layer(i, self._scale(i, standardise(x, self.EPS, columns=True)), is_last=i == last_index)
        return x

    def layers(self, row: NDArray[np.floating]) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out the weights and biases of the equivalent network without normalisation."""
        folded_layers = []
        for i, (weight, bias) in enumerate(super().layers(row)):
            fields = (*self._statistics[2 * i : 2 * i + 2], *self._scales[2 * i : 2 * i + 2])
            mean, variance, scale, shift = (row[f.slice].astype(np.float64) for f in fields)
            factor = scale / np.sqrt(variance + self.EPS)
            bias = bias + (shift - mean * factor) @ weight
            folded_layers.append(((factor[:, None] * weight).astype(row.dtype), bias.astype(row.dtype)))
        return folded_layers
