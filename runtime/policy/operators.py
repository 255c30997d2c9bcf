"""Operators that a policy may use, with their shape rules and their costs, which are known before the policy runs.

onnxruntime allocates and computes whatever a graph requests: a few hundred bytes with Concat or broadcasting can
require terabytes.  Each operator therefore has a shape rule, every shape in the graph is static, and a model with too
many elements or operations is refused before onnxruntime receives it.  For this, an operator's output shape must follow
from input shapes and constants.  The list covers exports of feed-forward networks (Gemm or MatMul and Add; activations;
normalisation, squashing and clipping of actions; argmax over discrete actions; splitting and joining of observations;
sine and cosine of angles; unpacking and convolution of images).  It excludes operators with subgraphs (If, Loop, Scan),
with data-dependent shapes (NonZero, Range, Expand, ConstantOfShape, Tile, Shape chains), with randomness (which cannot
be replayed) or with state.  Arithmetic is allowed on floats only, because an integer division by zero on x86 kills the
process with SIGFPE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from onrig.runtime.policy import shape_rules as rules
from onrig.runtime.policy.call import MAX_PARTS, Call, Result, Value
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.onnx_wire import MAX_RANK, Node


class Operator(NamedTuple):
    """An allowed operator: its shape rule, its attributes and their types, the range of its number of inputs, its
    maximum number of outputs, and the first operator set in which it is allowed."""

    rule: Callable[[Call], Result]
    attributes: Mapping[str, int]
    inputs: tuple[int, int] = (1, 1)
    outputs: int = 1
    min_opset: int = 13


_A_FLOAT, _AN_INT, _A_STRING, _A_TENSOR, _FLOATS, _INTS = 1, 2, 3, 4, 6, 7
_AXIS: Final = {"axis": _AN_INT}
_CONSTANTS: Final = {"value": _A_TENSOR, "value_float": _A_FLOAT, "value_int": _AN_INT} | {
    "value_floats": _FLOATS,
    "value_ints": _INTS,
}

_CONV_LISTS: Final = ("dilations", "kernel_shape", "pads", "strides")

OPERATORS: Final[Mapping[str, Operator]] = {
    **{op: Operator(rules.elementwise, {}, (2, 2)) for op in ("Add", "Sub", "Mul", "Div")},
    **{op: Operator(rules.elementwise, {}, (1, MAX_PARTS)) for op in ("Min", "Max")},
    **{op: Operator(rules.unary, {}) for op in ("Identity", "Relu", "Neg", "Abs", "Sqrt", "Softsign", "Floor")},
    **{op: Operator(rules.transcendental, {}) for op in ("Tanh", "Sigmoid", "Exp", "Erf", "Sin", "Cos", "Softplus")},
    "Constant": Operator(rules.constant, _CONSTANTS, (0, 0)),
    "Softmax": Operator(rules.softmax, _AXIS),
    "LeakyRelu": Operator(rules.unary, {"alpha": _A_FLOAT}),
    "Elu": Operator(rules.transcendental, {"alpha": _A_FLOAT}),
    "Selu": Operator(rules.transcendental, {"alpha": _A_FLOAT, "gamma": _A_FLOAT}),
    "Gelu": Operator(rules.transcendental, {"approximate": _A_STRING}, min_opset=20),
    "HardSwish": Operator(rules.unary, {}, min_opset=14),
    "Mish": Operator(rules.transcendental, {}, min_opset=18),
    "LayerNormalization": Operator(
        rules.layer_normalization, {"axis": _AN_INT, "epsilon": _A_FLOAT, "stash_type": _AN_INT}, (2, 3), min_opset=17
    ),
    "Gemm": Operator(rules.gemm, {"alpha": _A_FLOAT, "beta": _A_FLOAT, "transA": _AN_INT, "transB": _AN_INT}, (2, 3)),
    "MatMul": Operator(rules.matmul, {}, (2, 2)),
    "Conv": Operator(rules.conv, {"group": _AN_INT} | dict.fromkeys(_CONV_LISTS, _INTS), (2, 3)),
    "Clip": Operator(rules.clip, {}, (1, 3)),
    "Cast": Operator(rules.cast, {"to": _AN_INT, "saturate": _AN_INT, "round_mode": _A_STRING}),
    "Concat": Operator(rules.concat, _AXIS, (1, MAX_PARTS)),
    "Reshape": Operator(rules.reshape, {"allowzero": _AN_INT}, (2, 2)),
    "Flatten": Operator(rules.flatten, _AXIS),
    "Unsqueeze": Operator(rules.unsqueeze, {}, (2, 2)),
    "Squeeze": Operator(rules.squeeze, {}, (1, 2)),
    "Slice": Operator(rules.slice_tensor, {}, (3, 5)),
    "Split": Operator(rules.split, {"axis": _AN_INT, "num_outputs": _AN_INT}, (1, 2), MAX_PARTS),
    "Transpose": Operator(rules.transpose, {"perm": _INTS}),
    "Gather": Operator(rules.gather, _AXIS, (2, 2)),
    "ArgMax": Operator(rules.arg_max, {"axis": _AN_INT, "keepdims": _AN_INT, "select_last_index": _AN_INT}),
}


def check_operator(node: Node, opset: int) -> None:
    """Raise ModelRefused (``operators``) unless a node is an allowed operator with known attributes and an allowed
    number of inputs and outputs."""
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    operator = OPERATORS.get(node.op_type)
    if operator is None or node.domain not in ("", "ai.onnx"):
        raise ModelRefused("operators", f"operator {name!r} is not allowed (allowed: {', '.join(sorted(OPERATORS))})")
    if opset < operator.min_opset:
        raise ModelRefused("operators", f"{name} requires operator set {operator.min_opset}; the model uses {opset}")
    (low, high), n_inputs, n_outputs = operator.inputs, len(node.inputs), len(node.outputs)
    if not low <= n_inputs <= high or not 1 <= n_outputs <= operator.outputs:
        raise ModelRefused("operators", f"{name} is not allowed with {n_inputs} inputs and {n_outputs} outputs")
    for attribute_name, attribute in node.attributes.items():
        if operator.attributes.get(attribute_name) != attribute.type:
            raise ModelRefused(
                "operators", f"{name} is not allowed with an attribute {attribute_name!r} of type {attribute.type}"
            )


def infer_result(node: Node, inputs: tuple[Value | None, ...]) -> Result:
    """Infer the result of a node that passed ``check_operator``; raises ModelRefused (``shapes``)."""
    call = Call(node, inputs)
    result = OPERATORS[node.op_type].rule(call)
    if any(len(s) > MAX_RANK or 0 in s for s in result.shapes):
        raise call.refusal(f"computes {list(result.shapes)}; at most {MAX_RANK} dimensions, all above 0, are allowed")
    return result
