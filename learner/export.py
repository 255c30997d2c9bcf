"""Export of trained policies, continuous or discrete, as ONNX bytes with the contract in the metadata."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import PIXELS_PER_VALUE, values_per_image
from onrig.learner import onnx_writer
from onrig.learner.algorithm_config import Image
from onrig.learner.tape.convolutions import Convolutions
from onrig.learner.tape.windows import Windows
from onrig.runtime.images import VALUE_RANGE
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.policy.contract import (
    DETERMINISTIC,
    GAUSSIAN,
    HIDDEN,
    HIDDEN_OUT,
    INPUT_NAME,
    METADATA_KEY,
    NOISE,
    OUTPUT_NAME,
    SQUASHED_GAUSSIAN,
    PolicyContract,
    encode_contract,
    ports_for,
)

Layers = Sequence[tuple[NDArray[np.floating], NDArray[np.floating]]]


class LogStdHead(NamedTuple):
    """Log standard deviation of a squashed Gaussian, as a linear function of the actor's last hidden layer."""

    weight: NDArray[np.floating]
    """(in, m)"""
    bias: NDArray[np.floating]
    """(m,)"""
    bounds: tuple[float, float]
    """Lower and upper bound on the log standard deviation."""


class InputFilter(NamedTuple):
    """Standardisation of normalised observations before they enter a network."""

    mean: NDArray[np.floating]
    """(n,)"""
    std: NDArray[np.floating]
    """(n,)"""
    clip: float
    """Bound on standardised observations, in standard deviations."""


def export_policy(
    layers: Layers, contract: PolicyContract, log_std: LogStdHead | None = None, *, image: Image | None = None
) -> bytes:
    """Build the ONNX model of an actor, from ``observation`` (1, n) to ``action`` (1, m), both float32 and in SI units.

    ``layers`` holds the weights (in, out) and bias (out,) of each layer of the network, which works on normalised
    values, with relu between the layers and tanh at the end.  The range [low, high] of each of the contract's signals
    is mapped to [-1, 1].  For observations, the mapping is merged into the first layer's weights, in float64, which
    saves kernels on every tick; for actions, it is a product and a sum after the tanh.  With ``log_std``, the action is
    the tanh of a sample, and the model has the ports of a squashed Gaussian.  With ``image``, the first layers are the
    filters of its convolutions, whose inputs are pixels from 0 to 1.

    The same arguments give the same bytes.  Raises ValueError if the layers do not fit the contract.
    """
    if contract.behaviour != (DETERMINISTIC if log_std is None else SQUASHED_GAUSSIAN):
        raise ValueError(f"the contract's behaviour, {contract.behaviour!r}, differs from the actor's")
    graph, m, last_index = _Graph(), len(contract.actions), len(layers) - 1
    if log_std is None:
        value = graph.add_network(layers, contract, m, f"sum{last_index}", image=image)
    else:
        mean = graph.add_network(layers, contract, m, "mean", image=image)
        value = graph.add_squashed_sample(mean, f"unit{last_index - 1}", log_std)
    graph.add_action_scaling(graph.add("Tanh", [value], f"unit{last_index}"), contract)
    return graph.model(contract)


def export_gaussian_policy(
    layers: Layers,
    std: NDArray[np.floating],
    contract: PolicyContract,
    *,
    has_bounded_mean: bool = False,
    activation: str = "Softsign",
    input_filter: InputFilter | None = None,
) -> bytes:
    """Build the ONNX model of a Gaussian policy whose samples are clipped to [-1, 1], with the ports of that behaviour.

    ``layers`` compute the mean, after the ``input_filter`` if given, with ``activation`` (an ONNX operator) between
    them and, if ``has_bounded_mean``, a tanh at the end; ``std`` (m,) is the same in all states.  Raises ValueError if
    the layers do not fit the contract.
    """
    graph, m = _Graph(), len(contract.actions)
    mean = graph.add_network(
        layers, contract, m, "linear" if has_bounded_mean else "mean", activation=activation, input_filter=input_filter
    )
    if has_bounded_mean:
        mean = graph.add("Tanh", [mean], "mean")
    graph.add_gaussian_sample(mean, std, contract)
    return graph.model(contract)


def export_discrete_policy(
    layers: Layers,
    levels: NDArray[np.floating],
    contract: PolicyContract,
    atoms: NDArray[np.floating] | None = None,
    *,
    image: Image | None = None,
) -> bytes:
    """Build the ONNX model of a greedy policy, from ``observation`` (1, n) to ``action`` (1, 1), the best level in SI
    units.

    ``layers`` form a network from normalised observations to the values of the ``levels``, which are actions on [-1,
    1]; with ``atoms``, its outputs are the logits of each level's distribution over the atoms, level by level.  Ties go
    to the lowest level.  ``image`` has the same meaning as in ``export_policy``.  If any value is non-finite, the
    action is NaN, because an index would hide that the network has diverged.  Raises ValueError if the layers do not
    fit the contract.
    """
    if len(contract.actions) != 1:
        raise ValueError(f"discrete levels require one action, but the contract has {len(contract.actions)}")
    graph = _Graph()
    outputs = len(levels) * (1 if atoms is None else len(atoms))
    values = graph.add_network(layers, contract, outputs, f"sum{len(layers) - 1}", image=image)
    if atoms is not None:
        values = graph.add_expected_values(values, len(levels), atoms)
    best_level = graph.add("ArgMax", [values], "best", axis=1)
    centre, half_range = Normalisation.from_signals(contract.actions)
    level = graph.add("Gather", [graph.add_constant("levels", centre + half_range * levels), best_level], "level")
    # Zero times the values is 0 if all are finite, else NaN, which the sum passes on to the action.
    graph.add("Gemm", [values, graph.add_constant("zeros", np.zeros((len(levels), 1))), level], "finite")
    return graph.model(contract)


def export_recurrent_policy(layers: Layers, std: NDArray[np.floating], contract: PolicyContract) -> bytes:
    """Build the ONNX model of a recurrent Gaussian policy.

    It is like that of ``export_gaussian_policy``, with the additional ports ``hidden`` and ``hidden_out``.  ``layers``
    are those of ``onrig.learner.lstm``: the weights (in + units, 4 units) and bias of each cell, then those of the
    linear mean.  Raises ValueError if the layers do not fit the contract.
    """
    *cells, (weight, bias) = layers
    units = [len(b) // 4 for _, b in cells]
    widths = [len(contract.observations), *units]
    shapes = [w.shape for w, _ in layers]
    expected_shapes = [(n + u, 4 * u) for n, u in itertools.pairwise(widths)] + [(widths[-1], len(contract.actions))]
    if not cells or shapes != expected_shapes:
        raise ValueError(
            f"layers of shape {shapes} do not fit observations, cells and actions, expected {expected_shapes}"
        )
    graph = _Graph()
    mean = graph.add(
        "Gemm",
        [graph.add_lstm_cells(cells, units, contract), *graph.add_linear_constants("last", weight, bias)],
        "mean",
    )
    graph.add_gaussian_sample(mean, std, contract)
    return graph.model(contract, hidden=2 * sum(units))


class _Node(NamedTuple):
    """Arguments for ``onnx_writer.node``."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    name: str
    attributes: Mapping[str, int | Sequence[int]]


class _Graph:
    """Nodes and constants of a model under construction."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._constants: list[bytes] = []

    def add_constant(self, name: str, array: NDArray[np.floating]) -> str:
        """Add a float32 constant, and return its name."""
        self._constants.append(onnx_writer.tensor(name, np.asarray(array, np.float32)))
        return name

    def add(
        self, op: str, inputs: list[str], output: str, *, is_named: bool = True, **attributes: int | Sequence[int]
    ) -> str:
        """Add a node with one output, and return the output's name."""
        self._nodes.append(_Node(op, inputs, [output], output if is_named else "", attributes))
        return output

    def add_gaussian_sample(self, mean: str, std: NDArray[np.floating], contract: PolicyContract) -> None:
        """Add a sample around ``mean``, clipped to [-1, 1], as the action; raise ValueError if the contract has a
        different behaviour."""
        if contract.behaviour != GAUSSIAN:
            raise ValueError(f"the contract's behaviour, {contract.behaviour!r}, differs from the actor's")
        self.add("Identity", [self.add_constant("spread", std[None])], "std")
        self.add("Add", [mean, self.add("Mul", ["std", NOISE], "deviation")], "drawn")
        self.add_action_scaling(self.add_clip("drawn", "clipped", least=-1.0, most=1.0), contract)

    def add_action_scaling(self, value: str, contract: PolicyContract) -> None:
        """Add the mapping from actions on [-1, 1] to SI units."""
        centre, half_range = Normalisation.from_signals(contract.actions)
        for op, array, name in (("Mul", half_range, "half_range"), ("Add", centre, "centre")):
            # Symmetric and unit ranges need no separate kernel.
            if np.any(array != (op == "Mul")):
                output = f"times_{name}" if op == "Mul" else f"plus_{name}"
                value = self.add(op, [value, self.add_constant(name, array)], output, is_named=False)

    def add_clip(self, value: str, output: str, **bounds: float) -> str:
        """Add a clip between two bounds, which are given as names and values of constants, the lower one first."""
        names = [self.add_constant(name, np.array(bound)) for name, bound in bounds.items()]
        return self.add("Clip", [value, *names], output)

    def add_observation_filter(self, input_filter: InputFilter, contract: PolicyContract) -> str:
        """Add the filter, which takes the observation in SI units, and return the name of its output."""
        centre, half_range = Normalisation.from_signals(contract.observations)
        scale = 1.0 / (half_range * input_filter.std)
        shift = -(centre / half_range + input_filter.mean) / input_filter.std
        scaled_observation = self.add("Mul", [INPUT_NAME, self.add_constant("filter_scale", scale)], "filter_scaled")
        shifted_observation = self.add(
            "Add", [scaled_observation, self.add_constant("filter_shift", shift)], "filter_moved"
        )
        return self.add_clip(
            shifted_observation, "filtered", filter_least=-input_filter.clip, filter_most=input_filter.clip
        )

    def add_network(
        self,
        layers: Layers,
        contract: PolicyContract,
        outputs: int,
        name: str,
        *,
        activation: str = "Relu",
        input_filter: InputFilter | None = None,
        image: Image | None = None,
    ) -> str:
        """Add a network from the observation (in SI units) to linear outputs; raise ValueError if its layers do not
        fit.

        Its first layer receives the normalised observation, the standardised observation if there is an
        ``input_filter``, or pixels from 0 to 1 if there is an ``image``.
        """
        n, convolutions = len(contract.observations), None if image is None else Convolutions(image)
        filters = [] if convolutions is None else convolutions.filters
        dense_layers = layers[len(filters) :]
        widths = [n if convolutions is None else convolutions.outputs, *(len(bias) for _, bias in dense_layers)]
        shapes = [weight.shape for weight, _ in layers]
        if (
            not dense_layers
            or widths[-1] != outputs
            or shapes != [*filters, *itertools.pairwise(widths)]
            or (image is not None and n != image.packed_values)
        ):
            raise ValueError(f"layers of shape {shapes} do not map {n} observations to {outputs} outputs")
        if image is not None and convolutions is not None:
            (weight, bias), *other_layers = layers
            layers = [(weight / 255.0, bias), *other_layers]
            value = self.add_pixels(image)
        elif input_filter is None:
            centre, half_range = Normalisation.from_signals(contract.observations)
            weight, bias = layers[0]
            first_weight = weight / half_range[:, None]
            value, layers = INPUT_NAME, [(first_weight, bias - centre @ first_weight), *layers[1:]]
        else:
            value = self.add_observation_filter(input_filter, contract)
        for i, (weight, bias) in enumerate(layers):
            if i:
                value = self.add(activation, [value], f"unit{i - 1}")
            if convolutions is not None and i < len(filters):
                windows = convolutions.windows[i]
                value = self.add_convolution(i, value, weight, bias, windows)
                continue
            if convolutions is not None and i == len(filters):
                # ONNX orders elements by channel, row and column.
                weight_by_position = weight.reshape(*convolutions.output_shape, -1)
                weight = weight_by_position.transpose(2, 0, 1, 3).reshape(weight.shape)
                value = self.add("Flatten", [value], "features", axis=1)
            names = [value, self.add_constant(f"weight{i}", weight), self.add_constant(f"bias{i}", bias)]
            value = name if i == len(layers) - 1 else f"sum{i}"
            self._nodes.append(_Node("Gemm", names, [value], f"gemm{i}", {}))
        return value

    def add_pixels(self, image: Image) -> str:
        """Unpack the observation, clipped to its range, into the pixels (1, frames, rows, columns) of its frames, 0 to
        255 (``onrig.runtime.images``)."""
        pixels, place_values = math.prod(image.size), 256.0 ** -np.arange(PIXELS_PER_VALUE)[:, None]
        width = values_per_image(pixels)
        clipped_values = self.add_clip(INPUT_NAME, "packed", least_packed=0.0, most_packed=VALUE_RANGE - 1.0)
        values_by_frame = self._add_reshape(clipped_values, "packed_frames", (image.frames, 1, width))
        upper_digits = [
            self.add(
                "Floor",
                [self.add("Mul", [values_by_frame, self.add_constant(f"place{i}", scale)], f"at{i}")],
                f"above{i}",
            )
            for i, scale in enumerate((place_values, place_values / 256.0))
        ]
        shifted_digits = self.add("Mul", [upper_digits[1], self.add_constant("radix", np.array(256.0))], "shifted")
        value = self._add_reshape(
            self.add("Sub", [upper_digits[0], shifted_digits], "bytes"),
            "planes",
            (image.frames, PIXELS_PER_VALUE * width),
        )
        if PIXELS_PER_VALUE * width > pixels:
            ends = {"first_pixel": 0, "end_pixel": pixels, "pixel_axis": 1}
            self._constants += [onnx_writer.tensor(name, np.array([end], np.int64)) for name, end in ends.items()]
            value = self.add("Slice", [value, *ends], "unpadded")
        return self._add_reshape(value, "pixels", (1, image.frames, *image.size))

    def add_convolution(
        self, index: int, value: str, weight: NDArray[np.floating], bias: NDArray[np.floating], windows: Windows
    ) -> str:
        """Add a convolutional layer whose weights are ordered by the window's row, column and channel."""
        side, channels, stride = windows.side, windows.channels, windows.stride
        weight_by_output = weight.reshape(side, side, channels, -1).transpose(3, 2, 0, 1)
        names = [value, self.add_constant(f"weight{index}", weight_by_output), self.add_constant(f"bias{index}", bias)]
        return self.add("Conv", names, f"sum{index}", strides=(stride, stride))

    def add_linear_constants(self, name: str, weight: NDArray[np.floating], bias: NDArray[np.floating]) -> list[str]:
        """Add the constants of a Gemm, and return their names."""
        return [self.add_constant(f"weight_{name}", weight), self.add_constant(f"bias_{name}", bias)]

    def add_split(self, value: str, parts: Sequence[str], widths: Sequence[int]) -> Sequence[str]:
        """Add a split of (1, width) into parts, and return their names."""
        self._constants.append(onnx_writer.tensor(f"{value}_widths", np.array(widths, np.int64)))
        names = [value, f"{value}_widths"]
        self._nodes.append(_Node("Split", names, parts, f"split_{value}", {"axis": 1}))
        return parts

    def add_lstm_cells(self, cells: Layers, units: Sequence[int], contract: PolicyContract) -> str:
        """Add LSTM cells that take the observation (in SI units), and return the name of the last one's output."""
        centre, half_range = Normalisation.from_signals(contract.observations)
        n, (weight, bias) = len(contract.observations), cells[0]
        scaled_weight = weight[:n] / half_range[:, None]
        first_cell = (np.concatenate((scaled_weight, weight[n:])), bias - centre @ scaled_weight)
        hidden_names = [f"{part}{i}" for i in range(len(cells)) for part in ("output", "state")]
        self.add_split(HIDDEN, hidden_names, np.repeat(units, 2).tolist())
        value, next_hidden = INPUT_NAME, []
        for i, (u, layer) in enumerate(zip(units, [first_cell, *cells[1:]], strict=True)):
            joined_inputs = self.add("Concat", [value, f"output{i}"], f"joined{i}", axis=1)
            gates = self.add("Gemm", [joined_inputs, *self.add_linear_constants(str(i), *layer)], f"gates{i}")
            input_gate, forget_gate, candidate, output_gate = self.add_split(
                gates, [f"{gates}_{k}" for k in range(4)], [u] * 4
            )
            input_gate, forget_gate, output_gate = (
                self.add("Sigmoid", [gate], f"{gate}_open") for gate in (input_gate, forget_gate, output_gate)
            )
            candidate = self.add("Tanh", [candidate], f"candidate{i}")
            retained_state = self.add("Mul", [forget_gate, f"state{i}"], f"kept{i}")
            state = self.add(
                "Add", [retained_state, self.add("Mul", [input_gate, candidate], f"new{i}")], f"next_state{i}"
            )
            value = self.add("Mul", [output_gate, self.add("Tanh", [state], f"bounded{i}")], f"next_output{i}")
            next_hidden += [value, state]
        self.add("Concat", next_hidden, HIDDEN_OUT, axis=1)
        return value

    def add_expected_values(self, logits: str, levels: int, atoms: NDArray[np.floating]) -> str:
        """Add the means (1, levels) of distributions over ``atoms``, given as logits (1, levels * atoms)."""
        logits_by_level = self._add_reshape(logits, "by_level", (levels, len(atoms)))
        probabilities = self.add("Softmax", [logits_by_level], "chances", axis=1)
        mean = self.add("MatMul", [probabilities, self.add_constant("atoms", atoms[:, None])], "mean")
        return self._add_reshape(mean, "means", (1, levels))

    def _add_reshape(self, value: str, output: str, shape: tuple[int, ...]) -> str:
        self._constants.append(onnx_writer.tensor(f"{output}_shape", np.array(shape, np.int64)))
        return self.add("Reshape", [value, f"{output}_shape"], output)

    def add_squashed_sample(self, mean: str, units: str, log_std: LogStdHead) -> str:
        """Add a sample around ``mean``, before the tanh; ``units`` names the outputs of the last hidden layer."""
        names = [self.add_constant("to_log_std", log_std.weight), self.add_constant("log_std_bias", log_std.bias)]
        unclipped_log_std = self.add("Gemm", [units, *names], "free_log_std")
        bounds = [
            self.add_constant(name, np.array(value))
            for name, value in zip(("least", "most"), log_std.bounds, strict=True)
        ]
        std = self.add("Exp", [self.add("Clip", [unclipped_log_std, *bounds], "log_std")], "std")
        return self.add("Add", [mean, self.add("Mul", [std, NOISE], "spread")], "drawn")

    def model(self, contract: PolicyContract, hidden: int = 0) -> bytes:
        """Serialise the model; the last node's output becomes the action.  ``hidden``: width of the hidden state."""
        self._nodes[-1] = self._nodes[-1]._replace(outputs=[OUTPUT_NAME])
        n, m = len(contract.observations), len(contract.actions)
        inputs, outputs = ports_for(n, m, stochastic=contract.stochastic, hidden=hidden)
        nodes = (onnx_writer.node(*fields) for fields in self._nodes)
        return onnx_writer.model(nodes, self._constants, inputs, outputs, {METADATA_KEY: encode_contract(contract)})
