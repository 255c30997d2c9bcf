"""Compilation of a policy's graph into operations of the C library, which evaluates a small network in a tenth of the
time that onnxruntime takes.

The compiler supports feed-forward graphs whose values are rows (1, n): dense layers, elementwise operations, joining
and splitting.  onnxruntime evaluates all other graphs, and every graph if the library is missing.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.hw.native import builtin, library
from onrig.runtime.policy.onnx_wire import Array, Node, OnnxModel

_BINARY: Final = ("Add", "Sub", "Mul", "Div", "Min", "Max")
_UNARY: Final = ("Relu", "Tanh", "Sigmoid", "Exp", "Softsign", "Neg", "Abs", "Sqrt")
_OPERATIONS: Final = ("DENSE", *_BINARY, "COPY", *_UNARY)
"""Operations of the C library, in the order of ``network.c``: ONNX operators and two additional ones."""
MAX_FLOATS: Final = 1 << 24
"""Maximum number of floats in the array, which holds constants and values."""


class Row(NamedTuple):
    """Position of a row (1, width) in the network's array."""

    offset: int
    width: int


class Network(NamedTuple):
    """A compiled graph over one array of floats, which holds inputs, outputs, constants and intermediate values."""

    steps: npt.NDArray[np.int32]
    """Operations (k, 6): operation, offsets of the two operands and of the result, and two widths (``network.c``)."""
    values: npt.NDArray[np.float32]
    inputs: dict[str, Row]
    outputs: dict[str, Row]
    """Rows of the outputs; inputs and then outputs are contiguous in ``values``, in the order given to
    ``compile_network``."""

    def bind(self) -> Callable[[], object] | None:
        """Return a function that computes the outputs; None if the library cannot run the graph.

        The function reads and writes ``values`` and reads ``steps``, so the caller must keep this object alive.
        """
        loaded = library()
        if loaded is None:
            return None
        count, size = len(self.steps), self.values.size
        steps, values = self.steps.ctypes.data, self.values.ctypes.data
        if loaded.onrig_network_check(ctypes.c_void_p(steps), count, size) != -1:
            return None
        return builtin("network_run", struct.pack("PiP", steps, count, values))


class _Unsupported(Exception):
    """Raised for a graph that the library does not support."""


def compile_network(model: OnnxModel, inputs: Sequence[str], outputs: Sequence[str]) -> Network | None:
    """Compile a graph that passed the static checks; return None if the library does not support it.

    ``inputs`` and ``outputs``: names of all possible ports, in the order in which the array holds them.
    """
    try:
        return _Compiler(model).network(inputs, outputs)
    except _Unsupported:
        return None


class _Compiler:
    def __init__(self, model: OnnxModel) -> None:
        self._model = model
        self._constants: dict[str, Array] = dict(model.initializers)
        self._rows: dict[str, Row] = {}
        self._steps: list[tuple[int, int, int, int, int, int]] = []
        self._contents: list[tuple[Row, Array]] = []
        self._size = 0

    def network(self, inputs: Sequence[str], outputs: Sequence[str]) -> Network:
        ports: list[dict[str, Row]] = []
        for order, infos in ((inputs, self._model.inputs), (outputs, self._model.outputs)):
            shapes = {info.name: info.shape for info in infos}
            if not set(shapes) <= set(order):
                raise _Unsupported
            ports.append({name: self._allocate(_width(shapes[name])) for name in order if name in shapes})
        input_rows, output_rows = ports
        self._rows |= input_rows
        for node in self._model.nodes:
            self._add_node(node)
        for name, row in output_rows.items():
            self._add_step("COPY", self._row_of(name), row)
        values = np.zeros(self._size, np.float32)
        for row, content in self._contents:
            values[row.offset : row.offset + row.width] = content
        return Network(np.array(self._steps, np.int32).reshape(-1, 6), values, input_rows, output_rows)

    def _allocate(self, width: int) -> Row:
        row = Row(self._size, width)
        self._size += width
        if self._size > MAX_FLOATS:
            raise _Unsupported
        return row

    def _add_constant(self, content: Array) -> Row:
        row = self._allocate(content.size)
        self._contents.append((row, content.reshape(-1)))
        return row

    def _row_of(self, name: str, width: int | None = None) -> Row:
        """Return the row of a value; a constant gets a new row each time it is used, broadcast to ``width``."""
        row = self._rows.get(name) or self._add_constant(_broadcast(self._constants.get(name), width))
        if width is not None and row.width != width:
            raise _Unsupported
        return row

    def _add_step(self, operation: str, a: Row, out: Row, b: Row = Row(0, 1), m: int = 1) -> None:  # noqa: B008
        if operation != "DENSE" and a.width != out.width:
            raise _Unsupported
        self._steps.append((_OPERATIONS.index(operation), a.offset, b.offset, out.offset, a.width, m))

    def _add_node(self, node: Node) -> None:
        kind, names = node.op_type, node.inputs
        if kind == "Constant" and isinstance(array := node.attributes.get("value", (0, None))[1], np.ndarray):
            self._constants[node.outputs[0]] = array
        elif kind in ("Gemm", "MatMul"):
            self._rows[node.outputs[0]] = self._add_dense(node)
        elif kind in _BINARY or kind == "Clip":
            self._rows[node.outputs[0]] = self._add_binary(kind, names)
        elif kind in _UNARY:
            a = self._row_of(names[0])
            out = self._rows[node.outputs[0]] = self._allocate(a.width)
            self._add_step(kind, a, out)
        elif kind == "Identity":
            self._rows[node.outputs[0]] = self._row_of(names[0])
        elif kind == "Concat" and _number_attribute(node, "axis", 0) in (1, -1):
            parts = [self._row_of(name) for name in names]
            out = self._rows[node.outputs[0]] = self._allocate(sum(part.width for part in parts))
            for offset, part in zip(accumulate((p.width for p in parts), initial=0), parts, strict=False):
                self._add_step("COPY", part, Row(out.offset + offset, part.width))
        elif (
            kind == "Split"
            and _number_attribute(node, "axis", 0) in (1, -1)
            and names[0] in self._rows
            and len(names) == 2
        ):
            widths = [int(w) for w in np.ravel(self._constants.get(names[1], np.array([])))]
            row = self._rows[names[0]]
            if len(widths) != len(node.outputs) or sum(widths) != row.width or min(widths) < 1:
                raise _Unsupported
            for name, offset, width in zip(node.outputs, accumulate(widths, initial=0), widths, strict=False):
                self._rows[name] = Row(row.offset + offset, width)
        else:
            raise _Unsupported

    def _add_dense(self, node: Node) -> Row:
        x = self._rows.get(node.inputs[0])
        weight = self._constants.get(node.inputs[1])
        is_plain = all(_is_one(node, name) for name in ("alpha", "beta")) and not _number_attribute(node, "transA", 0)
        if x is None or weight is None or weight.ndim != 2 or weight.dtype != np.float32 or not is_plain:
            raise _Unsupported
        if _number_attribute(node, "transB", 0):
            weight = weight.T
        n, m = weight.shape
        if n != x.width:
            raise _Unsupported
        bias = np.zeros(m, np.float32) if len(node.inputs) < 3 else _broadcast(self._constants.get(node.inputs[2]), m)
        parameters = self._add_constant(np.concatenate([weight.reshape(-1), bias]))
        out = self._allocate(m)
        self._add_step("DENSE", x, out, parameters, m)
        return out

    def _add_binary(self, kind: str, names: Sequence[str]) -> Row:
        """Combine the first operand with each of the others in turn; a Clip becomes a Max followed by a Min."""
        steps = [kind] * (len(names) - 1) if kind != "Clip" else ["Max", "Min"][: len(names) - 1]
        widths = [self._rows[name].width for name in names if name in self._rows]
        if not widths:
            raise _Unsupported
        width = max(widths)
        row = self._row_of(names[0], width)
        for step, name in zip(steps, names[1:], strict=True):
            if name:
                right, result = self._row_of(name, width), self._allocate(width)
                self._add_step(step, row, result, right)
                row = result
        return row


def _width(shape: tuple[int | str | None, ...] | None) -> int:
    if shape is None or len(shape) != 2 or not isinstance(shape[1], int) or shape[1] < 1:
        raise _Unsupported
    return shape[1]


def _broadcast(constant: Array | None, width: int | None) -> Array:
    """Broadcast a constant of shape (), (1,), (width,) or (1, width) to (width,)."""
    if constant is None or constant.dtype != np.float32 or constant.ndim > 2 or constant.shape[:-1] not in ((), (1,)):
        raise _Unsupported
    row = constant.reshape(-1)
    if width is not None and row.size == 1:
        return np.full(width, row[0], np.float32)
    return row


def _number_attribute(node: Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return attribute.value if attribute is not None and isinstance(attribute.value, int | float) else default


def _is_one(node: Node, name: str) -> bool:
    return _number_attribute(node, name, 1.0) == 1.0
