"""A trained policy as ONNX bytes with its contract in the metadata."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onrig.learner.algorithms import Spread
from onrig.runtime.policy.contract import (
    DETERMINISTIC,
    INPUT_NAME,
    METADATA_KEY,
    NOISE,
    OUTPUT_NAME,
    SQUASHED_GAUSSIAN,
    PolicyContract,
    Signal,
    encode_contract,
    ports_for,
)

OPSET: Final = 17
IR_VERSION: Final = 8
"""Old enough for onnxruntime 1.20, the oldest the rig may run."""


def _centre_and_half_range(signals: Sequence[Signal]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    low, high = (np.array([getattr(s, end) for s in signals], dtype=np.float64) for end in ("low", "high"))
    return 0.5 * (low + high), 0.5 * (high - low)


def _drawing(spread: Spread, units: str) -> tuple[list[NodeProto], list[TensorProto]]:
    """Nodes from ``units``, ``mean`` and the noise to ``std`` and ``drawn``, and their constants."""
    numbers = zip(
        (spread.weight, spread.bias, *spread.bounds), ("to_log_std", "log_std_bias", "least", "most"), strict=True
    )
    nodes = [
        helper.make_node("Gemm", [units, "to_log_std", "log_std_bias"], ["free_log_std"], name="log_std"),
        helper.make_node("Clip", ["free_log_std", "least", "most"], ["log_std"], name="clamp"),
        helper.make_node("Exp", ["log_std"], ["std"], name="exp"),
        helper.make_node("Mul", ["std", NOISE], ["spread"], name="spread"),
        helper.make_node("Add", ["mean", "spread"], ["drawn"], name="draw"),
    ]
    return nodes, [numpy_helper.from_array(np.array(value, dtype=np.float32), name) for value, name in numbers]


def export_policy(
    layers: Sequence[tuple[NDArray[np.floating], NDArray[np.floating]]],
    contract: PolicyContract,
    spread: Spread | None = None,
) -> bytes:
    """Build the ONNX model of an actor: ``observation`` (1, n) to ``action`` (1, m), float32, both in SI units.

    ``layers`` are weights (in, out) and bias (out,) of the network on normalised values, relu between them, tanh at
    the end.  [low, high] of the contract's signals maps onto [-1, 1]: for the observations inside the first layer's
    weights (computed in float64; fewer kernels to run on every tick), for the actions by a product and a sum behind the
    tanh.  With ``spread`` it is the tanh of a draw, and the model has the ports of a squashed Gaussian.

    The same arguments give the same bytes.  Raises ValueError when the layers do not fit the contract.
    """
    n, m = len(contract.observations), len(contract.actions)
    widths = [n, *(len(bias) for _, bias in layers)]
    shapes = [weight.shape for weight, _ in layers]
    if not layers or widths[-1] != m or shapes != list(itertools.pairwise(widths)):
        raise ValueError(f"layers of shape {shapes} do not lead from {n} observations to {m} actions")
    if contract.behaviour != (DETERMINISTIC if spread is None else SQUASHED_GAUSSIAN):
        raise ValueError(f"the contract's behaviour is {contract.behaviour!r}, the actor's is not")
    centre, half_range = _centre_and_half_range(contract.observations)
    first = layers[0][0] / half_range[:, None]
    folded = [(first, layers[0][1] - centre @ first), *layers[1:]]

    nodes, constants, value = [], [], INPUT_NAME
    for i, (weight, bias) in enumerate(folded):
        last = i == len(folded) - 1
        names = [f"weight{i}", f"bias{i}"]
        constants += [
            numpy_helper.from_array(np.ascontiguousarray(array, dtype=np.float32), name)
            for array, name in zip((weight, bias), names, strict=True)
        ]
        product = f"sum{i}" if spread is None or not last else "mean"
        nodes.append(helper.make_node("Gemm", [value, *names], [product], name=f"gemm{i}"))
        if last and spread is not None:
            drawing, numbers = _drawing(spread, value)
            nodes += drawing
            constants += numbers
            product = "drawn"
        value = f"unit{i}"
        nodes.append(helper.make_node("Tanh" if last else "Relu", [product], [value], name=value))
    centre, half_range = _centre_and_half_range(contract.actions)
    for op, array, name in (("Mul", half_range, "half_range"), ("Add", centre, "centre")):
        # Symmetric and unit ranges need no kernel of their own.
        if np.any(array != (op == "Mul")):
            constants.append(numpy_helper.from_array(array.astype(np.float32), name))
            nodes.append(helper.make_node(op, [value, name], [f"times_{name}" if op == "Mul" else f"plus_{name}"]))
            value = nodes[-1].output[0]
    nodes[-1].output[0] = OUTPUT_NAME

    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name, width in widths.items()]
        for widths in ports_for(n, m, stochastic=spread is not None)
    )
    graph = helper.make_graph(nodes, "policy", inputs, outputs, constants)
    model = helper.make_model(
        graph, producer_name="onrig", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    helper.set_model_props(model, {METADATA_KEY: encode_contract(contract)})
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))
