"""Parameter noise: a policy whose weights are perturbed for an episode, and the scale of the perturbation.

Source: 000 §8.5 and Plappert et al. 2018, "Parameter Space Noise for Exploration": weights + N(0, sigma^2), sigma
times ``adaption`` after N steps with less than the wished distance in action space, else divided by it.  Deviations:
the distance is measured on the states that the perturbed policy visits (there is no memory to draw from in the loop),
and a new sigma takes effect with the next episode's perturbation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.runtime.explore.settings import ParameterNoise
from onrig.runtime.policy.contract import INPUT_NAME, ModelRefused
from onrig.runtime.policy.onnx_wire import Array, Node, OnnxModel, read_model

_LEAST_STD, _GREATEST_STD = 1e-6, 10.0


class Scale(NamedTuple):
    """Standard deviation of the noise on the weights, and what was measured since it was last adapted."""

    std: float
    squares: float = 0.0
    """Sum of the squared distances, each the mean over the actuators."""
    steps: int = 0


def measured(noise: ParameterNoise, scale: Scale, deviation: Sequence[float]) -> Scale:
    """Take one step's distance (m,) of the perturbed policy's action from the policy's; every N steps, adapt."""
    square = 0.0
    for d in deviation:
        square += d * d
    squares, steps = scale.squares + square / len(deviation), scale.steps + 1
    if steps < noise.adapt_every:
        return Scale(scale.std, squares, steps)
    near = sqrt(squares / steps) <= noise.target_std
    std = scale.std * noise.adaption if near else scale.std / noise.adaption
    return Scale(min(max(std, _LEAST_STD), _GREATEST_STD))


def perturbed_model(
    model: bytes,
    rng: np.random.Generator,
    std: float,
    centre: npt.NDArray[np.float64],
    half_range: npt.NDArray[np.float64],
) -> bytes:
    """Return the same ONNX model with N(0, std) on its weights and biases, which are patched in place.

    ``centre`` and ``half_range`` (n,) normalise the observation.  A first layer that takes the observation in SI units
    has the normalisation in its weights (``onrig.learner.export``); its noise is scaled likewise, so that std means the
    same in every layer: noise W' on normalised inputs is W' / half_range on the weights and -centre W' / half_range on
    the bias.  Raises ModelRefused for a model without weights that it can find.
    """
    graph = read_model(model)
    patched = bytearray(model)
    found = False
    for layer in _layers(graph):
        found = True
        weight = graph.initializers[layer.weight]
        noise = std * rng.standard_normal(weight.shape)
        bias = None if layer.bias is None else graph.initializers[layer.bias]
        shift = np.zeros(()) if bias is None else std * rng.standard_normal(bias.shape)
        if layer.first:
            inputs_first = noise.T if layer.transposed else noise
            inputs_first /= half_range[:, None]
            shift = shift - centre @ inputs_first
        _write(model, patched, weight, weight.astype(np.float64) + noise)
        if bias is not None:
            _write(model, patched, bias, bias.astype(np.float64) + shift.reshape(bias.shape))
    if not found:
        raise ModelRefused("operators", "parameter noise finds no Gemm or MatMul with weights of its own")
    return bytes(patched)


class _Layer(NamedTuple):
    weight: str
    bias: str | None
    transposed: bool
    """The weight is (out, in)."""
    first: bool
    """It takes the observation as it comes, in SI units."""


def _layers(graph: OnnxModel) -> Iterator[_Layer]:
    """List the graph's dense layers, each initializer once, in the order of its nodes."""
    seen: set[str] = set()
    for node in graph.nodes:
        if node.op_type not in ("Gemm", "MatMul") or len(node.inputs) < 2:
            continue
        weight = node.inputs[1]
        if weight in seen or not _is_weight(graph, weight, ranks=(2,)):
            continue
        bias = node.inputs[2] if len(node.inputs) > 2 and node.op_type == "Gemm" else _added(graph, node)
        if bias is not None and (bias in seen or not _is_weight(graph, bias, ranks=(1, 2))):
            bias = None
        seen |= {weight, *(() if bias is None else (bias,))}
        attribute = node.attributes.get("transB")
        transposed = attribute is not None and attribute.value == 1
        yield _Layer(weight, bias, transposed, node.inputs[0] == INPUT_NAME)


def _is_weight(graph: OnnxModel, name: str, ranks: tuple[int, ...]) -> bool:
    array = graph.initializers.get(name)
    return array is not None and array.dtype == np.dtype("<f4") and array.ndim in ranks


def _added(graph: OnnxModel, product: Node) -> str | None:
    """Return what an Add puts on the product of a MatMul, as exporters without Gemm write a bias."""
    output = product.outputs[0]
    for node in graph.nodes:
        if node.op_type == "Add" and output in node.inputs:
            return next((name for name in node.inputs if name != output), None)
    return None


def _write(model: bytes, patched: bytearray, old: Array, new: npt.NDArray[np.float64]) -> None:
    """Put ``new`` where the view ``old`` of ``model`` lies, as float32."""
    at = old.ctypes.data - np.frombuffer(model, np.uint8).ctypes.data
    patched[at : at + old.nbytes] = new.astype("<f4").tobytes()
