"""C99 statements for the operators of a policy's graph, one or a few loops for each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from onrig.runtime.policy.call import Call, Value, value_of
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.onnx_wire import DOUBLE, FLOAT, Node, OnnxModel
from onrig.runtime.policy.operators import infer_result
from onrig.tools.policy_to_c.workspace import Body, Operand, View, Workspace, literal

_BINARY: Final = {"Add": "{} + {}", "Sub": "{} - {}", "Mul": "{} * {}", "Div": "{} / {}"} | {
    "Min": "lesser({}, {})",
    "Max": "greater({}, {})",
}
_SOFTPLUS: Final = "((x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))))"
_UNARY: Final = {
    "Neg": "-x",
    "Abs": "fabsf(x)",
    "Relu": "(x < 0.0f ? 0.0f : x)",
    "Sqrt": "sqrtf(x)",
    "Exp": "expf(x)",
    "Tanh": "tanhf(x)",
    "Sigmoid": "1.0f / (1.0f + expf(-x))",
    "Softsign": "x / (1.0f + fabsf(x))",
    "Softplus": _SOFTPLUS,
    "Mish": f"x * tanhf({_SOFTPLUS})",
    "Erf": "erff(x)",
    "Sin": "sinf(x)",
    "Cos": "cosf(x)",
    "LeakyRelu": "(x < 0.0f ? {alpha} * x : x)",
    "Elu": "(x < 0.0f ? {alpha} * expm1f(x) : x)",
    "Selu": "{gamma} * (x < 0.0f ? {alpha} * expm1f(x) : x)",
    "HardSwish": "x * (x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : x / 6.0f + 0.5f)",
    "Gelu": "0.5f * x * (1.0f + erff(x * 0.70710678f))",
    "Gelu tanh": "0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
}
_DEFAULTS: Final = {
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326319, "gamma": 1.05070102},
}
_MOVE_OPERATORS: Final = (
    "Identity",
    "Cast",
    "Reshape",
    "Flatten",
    "Unsqueeze",
    "Squeeze",
    "Transpose",
    "Split",
    "Slice",
)
"""Operators that only move elements; Gather with constant indices is another."""


def body_of(model: OnnxModel, inputs: Mapping[str, int]) -> Body:
    """Generate the statements of an admissible graph, from ``observation`` to ``action``.

    ``inputs`` maps the input ports to their widths. The action of a stochastic policy has no noise: ``mean`` replaces
    ``drawn``, and the spread is not computed. Raises ModelRefused (``operators``) for 64-bit floats and for products of
    arrays with more than two dimensions.
    """
    work = Workspace()
    types = {name: Value(FLOAT, (1, width)) for name, width in inputs.items()}
    views = {name: View(name, np.arange(width).reshape(1, width)) for name, width in inputs.items()}
    for name, array in model.initializers.items():
        types[name], views[name] = value_of(array), work.constant(array)
    for node in _needed_nodes(model):
        arguments = tuple(types[name] if name else None for name in node.inputs)
        result = infer_result(node, arguments)
        if DOUBLE in {result.elem_type, *(types[name].elem_type for name in node.inputs if name)}:
            raise _refusal(node, "has 64-bit floats; export the policy as float32")
        types |= {
            name: Value(result.elem_type, shape, result.constant, result.bound)
            for name, shape in zip(node.outputs, result.shapes, strict=True)
        }
        if result.constant is not None:
            views[node.outputs[0]] = work.constant(result.constant)
            continue
        call, operands = Call(node, arguments), [views[name] if name else None for name in node.inputs]
        views |= zip(node.outputs, _translate(work, call, operands, result.shapes), strict=True)
    return work.body(views["action"])


def _needed_nodes(model: OnnxModel) -> list[Node]:
    """Return the nodes on which the noise-free ``action`` depends, in order."""
    noise_free_nodes = {"drawn": Node("Identity", "", ("mean",), ("drawn",), {})}
    stochastic = any(port.name == "noise" for port in model.inputs)
    needed_names, nodes = {"action"}, []
    for node in reversed(model.nodes):
        if not needed_names.isdisjoint(node.outputs):
            nodes.append(noise_free_nodes.get(node.outputs[0], node) if stochastic else node)
            needed_names |= set(nodes[-1].inputs)
    return nodes[::-1]


def _translate(
    work: Workspace, call: Call, operands: Sequence[View | None], shapes: Sequence[tuple[int, ...]]
) -> Sequence[View]:
    """Add the statements of one operator, and return its outputs."""
    kind, shape, views = call.node.op_type, shapes[0], [view for view in operands if view is not None]
    indices = call.optional(1)
    if kind in _MOVE_OPERATORS or (kind == "Gather" and indices is not None and indices.constant is not None):
        return _move_elements(call, views[0], shapes)
    if kind in _BINARY or kind == "Clip":
        return [_combine(work, call, operands, shape)]
    operator = _OPERATORS.get(kind, _elementwise)
    return [operator(work, call, views)]


def _move_elements(call: Call, source: View, shapes: Sequence[tuple[int, ...]]) -> list[View]:
    """Apply an operator that only moves elements, by moving the indices of the elements instead."""
    index = source.elements
    match call.node.op_type:
        case "Transpose":
            attribute = call.node.attributes.get("perm")
            parts = [np.transpose(index, None if attribute is None else attribute.value)]  # type: ignore[arg-type]
        case "Split":
            axis = call.axis(call.integer("axis", 0), index.ndim)
            parts = np.split(index, np.cumsum([shape[axis] for shape in shapes])[:-1], axis)
        case "Slice":
            starts, ends = call.indices(1) or [], call.indices(2) or []
            axes, steps = call.indices(3) or list(range(len(starts))), call.indices(4) or [1] * len(starts)
            slices = [slice(None)] * index.ndim
            for axis, *bounds in zip(axes, starts, ends, steps, strict=True):
                slices[axis] = slice(*bounds)
            parts = [index[tuple(slices)]]
        case "Gather":
            indices = call.optional(1)
            assert indices is not None
            assert indices.constant is not None
            axis = call.axis(call.integer("axis", 0), index.ndim)
            parts = [np.take(index, indices.constant.astype(np.intp), axis)]
        case _:
            parts = [index.reshape(shapes[0])]
    return [View(source.buffer, part) for part in parts]


def _combine(work: Workspace, call: Call, views: Sequence[View | None], shape: tuple[int, ...]) -> View:
    """Combine the first operand with each of the others; Clip is Max followed by Min."""
    kind = call.node.op_type
    operators = ("Max", "Min") if kind == "Clip" else (kind,) * (len(views) - 1)
    operands = [None if view is None else work.operand(view, shape) for view in views]
    present_operands = [operand for operand in operands if operand is not None]
    text = present_operands[0].text
    for operator, operand in zip(operators, operands[1:], strict=False):
        if operand is not None:
            text = _BINARY[operator].format(text, operand.text)
    return work.loop(_comment(call), shape, text, present_operands)


def _elementwise(work: Workspace, call: Call, views: Sequence[View]) -> View:
    """Apply a function to each element."""
    kind, attributes, shape = call.node.op_type, call.node.attributes, views[0].elements.shape
    if "approximate" in attributes and attributes["approximate"].value != b"none":
        kind = f"{kind} {bytes(attributes['approximate'].value).decode()}"  # type: ignore[arg-type]
    if kind not in _UNARY:
        raise _refusal(call.node, "cannot be translated to C")
    text = _UNARY[kind]
    for name, default in _DEFAULTS.get(kind, {}).items():
        text = text.replace(f"{{{name}}}", literal(_number_attribute(call, name, default)))
    x, size = work.operand(views[0], shape), math.prod(shape)

    def lines(out: str) -> list[str]:
        head = f"for (int i = 0; i < {size}; i++) {{"
        return [head, f"    const float x = {x.text};", f"    {out}[i] = {text};", "}"]

    return View(work.step(_comment(call), size, lines, [x]), np.arange(size).reshape(shape))


def _matrix_product(work: Workspace, call: Call, views: Sequence[View]) -> View:
    """Multiply two matrices; each element of the result is a dot product over consecutive elements of both factors."""
    a, b = views[0].elements, views[1].elements
    if a.ndim > 2 or b.ndim > 2:
        raise _refusal(call.node, "multiplies arrays of more than two dimensions")
    shape = a.shape[:-1] + b.shape[1:]
    a, b = np.atleast_2d(a), b.reshape(b.shape[0], -1)
    if call.node.op_type == "Gemm":
        a = a.T if call.flag("transA", False) else a
        b = b.T if call.flag("transB", False) else b
        shape = (a.shape[0], b.shape[1])
    (rows, inner), columns = a.shape, b.shape[1]
    left, right = work.pointer(View(views[0].buffer, a)), work.pointer(View(views[1].buffer, b.T))
    row, column = (f" + i / {columns} * {inner}", f"i % {columns}") if rows > 1 else ("", "i")
    factors = f"{left.text}{row}, {right.text} + {column} * {inner}, {inner}"
    alpha, beta = (_number_attribute(call, name, 1.0) for name in ("alpha", "beta"))
    reads, bias = [left, right], "0.0f"
    if len(views) == 3:
        reads.append(work.operand(views[2], (rows, columns)))
        bias = reads[2].text if beta == 1.0 else f"{literal(beta)} * {reads[2].text}"
    text = f"dot({bias}, {factors})" if alpha == 1.0 else f"{literal(alpha)} * dot(0.0f, {factors}) + {bias}"
    return work.loop(_comment(call), shape, text, reads)


def _row_loop(
    work: Workspace, call: Call, source: View, n: int, size: int, lines: Sequence[str], reads: Sequence[Operand] = ()
) -> str:
    """Compute a buffer from rows ``x`` of n elements; ``lines`` call the buffer ``out`` and the row's index ``r``."""
    x, rows = work.pointer(source), source.elements.size // n
    header = [f"for (int r = 0; r < {rows}; r++) {{", f"    const float *const x = {x.text} + r * {n};"]

    def row_lines(out: str) -> list[str]:
        return [*header, *(f"    {line.replace('out[', f'{out}[')}" for line in lines), "}"]

    return work.step(_comment(call), size, row_lines, [x, *reads])


def _softmax(work: Workspace, call: Call, views: Sequence[View]) -> View:
    index = views[0].elements
    axis = call.axis(call.integer("axis", -1), index.ndim)
    rows, n = np.moveaxis(index, axis, -1), index.shape[axis]
    for_each = f"for (int k = 0; k < {n}; k++)"
    lines = ["float most = x[0], sum = 0.0f;", f"{for_each} most = greater(most, x[k]);"]
    lines += [f"{for_each} sum += out[r * {n} + k] = expf(x[k] - most);", f"{for_each} out[r * {n} + k] /= sum;"]
    buffer = _row_loop(work, call, View(views[0].buffer, rows), n, index.size, lines)
    return View(buffer, np.moveaxis(np.arange(index.size).reshape(rows.shape), -1, axis))


def _arg_max(work: Workspace, call: Call, views: Sequence[View]) -> View:
    """Compute the index of the largest element, as a float."""
    index = views[0].elements
    axis = call.axis(call.integer("axis", 0), index.ndim)
    rows, n = np.moveaxis(index, axis, -1), index.shape[axis]
    comparison = ">=" if call.flag("select_last_index", False) else ">"
    lines = ["int best = 0;", f"for (int k = 1; k < {n}; k++)", f"    if (x[k] {comparison} x[best]) best = k;"]
    buffer = _row_loop(work, call, View(views[0].buffer, rows), n, index.size // n, [*lines, "out[r] = (float)best;"])
    kept_axis = (1,) if call.flag("keepdims", True) else ()
    return View(buffer, np.arange(index.size // n).reshape(index.shape[:axis] + kept_axis + index.shape[axis + 1 :]))


def _layer_normalization(work: Workspace, call: Call, views: Sequence[View]) -> View:
    index = views[0].elements
    n = math.prod(index.shape[call.axis(call.integer("axis", -1), index.ndim) :])
    factors = [work.operand(View(view.buffer, view.elements.reshape(-1)), (n,), "k") for view in views[1:]]
    for_each = f"for (int k = 0; k < {n}; k++)"
    lines = ["float mean = 0.0f, square = 0.0f;", f"{for_each} mean += x[k] / {n}.0f;"]
    lines += [f"{for_each} square += (x[k] - mean) * (x[k] - mean);"]
    lines += [
        f"const float scale = 1.0f / sqrtf(square / {n}.0f + {literal(_number_attribute(call, 'epsilon', 1e-5))});"
    ]
    total = " + ".join([f"(x[k] - mean) * scale * {factors[0].text}", *(shift.text for shift in factors[1:])])
    buffer = _row_loop(
        work, call, views[0], n, index.size, [*lines, f"{for_each} out[r * {n} + k] = {total};"], factors
    )
    return View(buffer, np.arange(index.size).reshape(index.shape))


def _gather(work: Workspace, call: Call, views: Sequence[View]) -> View:
    """Gather slices at computed indices along an axis, which is first moved to the front."""
    data, index_view = views
    axis = call.axis(call.integer("axis", 0), data.elements.ndim)
    axis_first = np.moveaxis(data.elements, axis, 0)
    width, k = axis_first.size // axis_first.shape[0], index_view.elements.ndim
    source = work.pointer(View(data.buffer, axis_first))
    indices = work.operand(index_view, index_view.elements.shape, f"i / {width}")
    shape = index_view.elements.shape + axis_first.shape[1:]
    view = work.loop(
        _comment(call), shape, f"{source.text}[(int){indices.text} * {width} + i % {width}]", [source, indices]
    )
    return View(view.buffer, np.moveaxis(view.elements, range(k), range(axis, axis + k)))


def _concatenate(work: Workspace, call: Call, views: Sequence[View]) -> View:
    operands = [work.operand(view, view.elements.shape) for view in views]
    sizes = [view.elements.size for view in views]
    starts = list(itertools.accumulate(sizes, initial=0))

    def lines(out: str) -> list[str]:
        parts = zip(operands, sizes, starts, strict=False)
        return [f"for (int i = 0; i < {n}; i++) {out}[{at} + i] = {operand.text};" for operand, n, at in parts]

    buffer = work.step(_comment(call), starts[-1], lines, operands)
    index_parts = [at + np.arange(n).reshape(v.elements.shape) for at, n, v in zip(starts, sizes, views, strict=False)]
    return View(buffer, np.concatenate(index_parts, call.integer("axis", 0)))


_OPERATORS: Final[Mapping[str, Callable[[Workspace, Call, Sequence[View]], View]]] = {
    "Gemm": _matrix_product,
    "MatMul": _matrix_product,
    "Softmax": _softmax,
    "ArgMax": _arg_max,
    "LayerNormalization": _layer_normalization,
    "Gather": _gather,
    "Concat": _concatenate,
}


def _number_attribute(call: Call, name: str, default: float) -> float:
    attribute = call.node.attributes.get(name)
    return attribute.value if attribute is not None and isinstance(attribute.value, float) else default


def _comment(call: Call) -> str:
    """Describe a node in a comment; the node's name is untrusted text."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.:-") else "_" for c in call.node.outputs[0][:40])
    return f"{call.node.op_type} -> {name}"


def _refusal(node: Node, reason: str) -> ModelRefused:
    return ModelRefused("operators", f"{node.op_type} -> {node.outputs[0]!r} {reason}")
