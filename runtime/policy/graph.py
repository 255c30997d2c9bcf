"""Static checks of a policy's graph: names, shapes, and the cost of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.policy.call import Value, value_of
from onrig.runtime.policy.contract import HIDDEN, ModelRefused, Ports
from onrig.runtime.policy.onnx_wire import FLOAT, OnnxModel, ValueInfo
from onrig.runtime.policy.operators import check_operator, infer_result

OPSETS: Final = range(13, 27)
"""Operator sets that the shape rules cover; older sets have axes and bounds in attributes."""
MAX_ELEMENTS: Final = 1 << 18
"""Maximum total number of elements in all values computed during one run: 2 MiB at 8 bytes each."""
MAX_HIDDEN: Final = 4096
"""Maximum width of a hidden state."""


class Cost(NamedTuple):
    """Cost of a graph: number of parameters (elements of initializers and constants), and numbers of operations and of
    computed elements per run."""

    parameters: int
    operations: int
    elements: int


def check_operators(model: OnnxModel) -> None:
    """Raise ModelRefused (``operators``) unless all operators are allowed and their operator set is supported."""
    opset = model.opsets.get("")
    if opset is None or opset not in OPSETS:
        raise ModelRefused("operators", f"operator set {opset}; allowed: {OPSETS.start} to {OPSETS.stop - 1}")
    for node in model.nodes:
        check_operator(node, opset)


def _is_consistent(declared: int | str | None, actual: int) -> bool:
    """Return whether a declared dimension is consistent with the actual one; a symbol can only stand for the batch,
    which is 1 on a rig."""
    return declared is None or actual == (1 if isinstance(declared, str) else declared)


def _check_ports(kind: str, ports: tuple[ValueInfo, ...], widths: Mapping[str, int]) -> None:
    """Check that a graph has exactly the required float32 inputs or outputs; a symbolic batch dimension counts as 1."""
    names = [port.name for port in ports]
    if sorted(names) != sorted(widths):
        expected = " and ".join(map(repr, widths))
        raise ModelRefused("shapes", f"{len(names)} {kind}s {names[:8]}; expected exactly {len(widths)}: {expected}")
    for port in ports:
        name, shape = port.name, (1, widths[port.name])
        if port.elem_type != FLOAT:
            raise ModelRefused(
                "shapes", f"{kind} {name!r} has element type {port.elem_type}; it must be {FLOAT} (float32)"
            )
        if port.shape is None or len(port.shape) != 2 or not all(map(_is_consistent, port.shape, shape)):
            declared = None if port.shape is None else list(port.shape)
            raise ModelRefused("shapes", f"{kind} {name!r} has shape {declared}; the rig needs {list(shape)}")


def hidden_width(model: OnnxModel) -> int:
    """Return the declared width of the input ``hidden``; 0 without this input.  Raises ModelRefused (``shapes``)."""
    for port in model.inputs:
        if port.name == HIDDEN:
            width = port.shape[1] if port.shape is not None and len(port.shape) == 2 else None
            if not isinstance(width, int) or not 1 <= width <= MAX_HIDDEN:
                declared = None if port.shape is None else list(port.shape)
                raise ModelRefused(
                    "shapes", f"input {HIDDEN!r} has shape {declared}; it must be (1, 1 to {MAX_HIDDEN})"
                )
            return width
    return 0


def _check_declared(info: ValueInfo, value: Value) -> None:
    """Check a declared type against the inferred one, because onnxruntime plans its memory from the declaration."""
    shape = value.shape if info.shape is None else info.shape
    if (
        info.elem_type != value.elem_type
        or len(shape) != len(value.shape)
        or not all(map(_is_consistent, shape, value.shape))
    ):
        declared, inferred = (info.elem_type, info.shape), (value.elem_type, value.shape)
        raise ModelRefused("shapes", f"{info.name!r} is declared as (type, shape) {declared}, but is {inferred}")


def check_graph(model: OnnxModel, ports: Ports, max_parameters: int, max_operations: int) -> Cost:
    """Infer the shapes in a graph that passed ``check_operators``; return its cost, or raise ModelRefused.

    The model is refused for inputs and outputs other than ``ports``, names defined twice or used before their
    definition, inconsistent shapes and false declarations (``shapes``); for costs beyond the limits (``size``); and for
    non-finite constants (``finite``).
    """
    _check_ports("input", model.inputs, ports.inputs)
    _check_ports("output", model.outputs, ports.outputs)
    values = {name: Value(FLOAT, (1, width)) for name, width in ports.inputs.items()}
    parameters = operations = elements = 0

    def define(name: str, value: Value) -> None:
        nonlocal parameters, elements
        if not name or name in values:
            raise ModelRefused("shapes", f"value {name!r} is defined twice" if name else "a value without a name")
        values[name] = value
        if value.constant is None:
            elements += math.prod(value.shape)
        else:
            parameters += value.constant.size
            if not np.isfinite(value.constant).all():
                n_non_finite = int(value.constant.size - np.isfinite(value.constant).sum())
                raise ModelRefused("finite", f"constant {name!r} has {n_non_finite} non-finite elements")
        if parameters > max_parameters:
            raise ModelRefused("size", f"more than {max_parameters} parameters")
        if elements > MAX_ELEMENTS:
            raise ModelRefused("size", f"more than {MAX_ELEMENTS} elements to compute, at {name!r}")

    for name, array in model.initializers.items():
        define(name, value_of(array))
    for node in model.nodes:
        undefined_names = [name for name in node.inputs if name and name not in values]
        if undefined_names:
            raise ModelRefused("shapes", f"{node.op_type} uses {undefined_names[0]!r} before it is defined")
        result = infer_result(node, tuple(values[name] if name else None for name in node.inputs))
        operations += result.operations
        if operations > max_operations:
            raise ModelRefused("size", f"more than {max_operations} operations per run, at {node.outputs[0]!r}")
        if len(result.shapes) != len(node.outputs):
            raise ModelRefused(
                "shapes", f"{node.op_type} has {len(node.outputs)} outputs, but computes {len(result.shapes)}"
            )
        for name, shape in zip(node.outputs, result.shapes, strict=True):
            define(name, Value(result.elem_type, shape, result.constant, result.bound))
    for name, width in ports.outputs.items():
        output = values.get(name)
        if output is None or output.constant is not None:
            raise ModelRefused("shapes", f"no node computes the output {name!r}")
        actual, required = (output.elem_type, output.shape), (FLOAT, (1, width))
        if actual != required:
            raise ModelRefused("shapes", f"output {name!r} is (type, shape) {actual}; the rig needs {required}")
    for info in model.value_infos:
        if info.name in values:
            _check_declared(info, values[info.name])
    return Cost(parameters, operations, elements)
