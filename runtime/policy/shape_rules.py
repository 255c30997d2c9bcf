"""Output shapes and operation counts of the allowed operators, from input shapes and constants alone.

A ``Call`` is a node with its inputs: values with static types and shapes.  Each rule follows the operator's
specification for operator sets 13 to 26, or a part of it, and refuses the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.onnx_wire import DOUBLE, DTYPES, FLOAT, INT64, Array, Node

Shape = tuple[int, ...]

MAX_PARTS: Final = 64
"""Inputs or outputs of one node (Concat, Split, Min, Max), and constants in one list of axes or indices."""
FLOATS: Final = frozenset({FLOAT, DOUBLE})
_TYPE_CODES: Final[Mapping[np.dtype[np.generic], int]] = {dtype: code for code, dtype in DTYPES.items()}


class Value(NamedTuple):
    """ONNX element type and shape of a value in the graph; ``constant`` if it is an initializer."""

    elem_type: int
    shape: Shape
    constant: Array | None = None
    below: int = 0
    """Bound of computed integers, which are 0 to below - 1."""


class Result(NamedTuple):
    """Result of a node: element type, shape of each output, and operations (multiply-adds or comparable)."""

    elem_type: int
    shapes: tuple[Shape, ...]
    operations: int
    constant: Array | None = None
    """The value, if the node is a Constant."""
    below: int = 0
    """Bound of the integers, if the node computes any."""


def value_of(array: Array) -> Value:
    """Value of an initializer."""
    return Value(_TYPE_CODES[array.dtype], array.shape, array)


class Call:
    """One node with its input values; the accessors refuse inputs that do not fit."""

    def __init__(self, node: Node, inputs: tuple[Value | None, ...]) -> None:
        self.node = node
        self._inputs = inputs

    def refused(self, reason: str) -> ModelRefused:
        """Refusal of this node."""
        return ModelRefused("shapes", f"{self.node.op_type} -> {self.node.outputs[0]!r}: {reason}")

    def value(self, index: int) -> Value:
        """Return a float input; raises ModelRefused if it is missing or has integers."""
        value = self.optional(index)
        if value is None:
            raise self.refused(f"input {index} is missing")
        if value.elem_type not in FLOATS:
            raise self.refused(f"input {index} has element type {value.elem_type}, only floats are computed with")
        return value

    def optional(self, index: int) -> Value | None:
        """Return an input or None."""
        return self._inputs[index] if index < len(self._inputs) else None

    def values(self) -> list[Value]:
        """Return all inputs, floats of one type."""
        values = [self.value(i) for i in range(len(self._inputs))]
        if len({v.elem_type for v in values}) != 1:
            raise self.refused("inputs differ in type")
        return values

    def indices(self, index: int, rank: int = 1) -> list[int] | None:
        """Return the constant integers of an optional input with one dimension, or a scalar if ``rank`` is 0."""
        value = self.optional(index)
        if value is None:
            return None
        if value.constant is None or value.elem_type != INT64:
            raise self.refused(f"input {index} must be constant int64, since shapes depend on it")
        if len(value.shape) not in {rank, 1} or value.constant.size > MAX_PARTS:
            raise self.refused(f"input {index} has shape {value.shape}")
        return [int(v) for v in value.constant.reshape(-1)]

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if not isinstance(attribute.value, int):
            raise self.refused(f"attribute {name!r} is not an integer")
        return attribute.value

    def axis(self, axis: int, rank: int) -> int:
        """Normalise an axis into [0, rank)."""
        if not -rank <= axis < rank:
            raise self.refused(f"axis {axis} of {rank} dimensions")
        return axis % rank

    def axes(self, axes: list[int], rank: int) -> list[int]:
        """Normalise axes into [0, rank), each at most once."""
        if len(normal := [self.axis(a, rank) for a in axes]) != len(set(normal)):
            raise self.refused(f"axes {axes} repeat")
        return normal

    def broadcast(self, *shapes: Shape) -> Shape:
        """Broadcast as numpy does."""
        rank = max(map(len, shapes))
        out: list[int] = []
        for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
            wide = {d for d in dims if d != 1}
            if len(wide) > 1:
                raise self.refused(f"shapes {list(shapes)} do not broadcast")
            out.append(wide.pop() if wide else 1)
        return tuple(out)

    def constant(self) -> Array:
        """Return the content of a Constant node: a tensor, a number or a list of numbers."""
        if len(self.node.attributes) == 1:
            [(name, (_, value))] = self.node.attributes.items()
            if isinstance(value, np.ndarray):
                return value
            if name.startswith("value_float") and value != ():
                return np.array(value, DTYPES[FLOAT])
            if value != ():
                return np.array(value, DTYPES[INT64])
        raise self.refused(f"needs one value, has the attributes {[*self.node.attributes]}")


def constant(call: Call) -> Result:
    """Yield the node's content."""
    value = value_of(call.constant())
    return Result(value.elem_type, (value.shape,), 0, value.constant)


def same(call: Call) -> Result:
    """Keep the shape, at one operation per element (Relu, Neg and the like)."""
    value = call.value(0)
    return Result(value.elem_type, (value.shape,), math.prod(value.shape))


def transcendental(call: Call) -> Result:
    """Keep the shape, at 16 operations per element (more than the measured ratio of Exp and the like to Relu)."""
    value = call.value(0)
    return Result(value.elem_type, (value.shape,), 16 * math.prod(value.shape))


def softmax(call: Call) -> Result:
    """Keep the shape, normalised along one axis: the cost of Exp."""
    call.axis(call.integer("axis", -1), len(call.value(0).shape))
    return transcendental(call)


def elementwise(call: Call) -> Result:
    """Broadcast all inputs (Add, Max and the like)."""
    values = call.values()
    shape = call.broadcast(*(v.shape for v in values))
    return Result(values[0].elem_type, (shape,), math.prod(shape) * len(values))


def clip(call: Call) -> Result:
    """Clip between optional scalars of the same type."""
    value = call.value(0)
    for index in (1, 2):
        bound = call.optional(index)
        if bound is not None and (bound.shape or bound.elem_type != value.elem_type):
            raise call.refused(
                f"bound {index} has shape {bound.shape} and type {bound.elem_type}, needs a scalar alike"
            )
    return Result(value.elem_type, (value.shape,), math.prod(value.shape))


def gemm(call: Call) -> Result:
    """Multiply two matrices, each transposed or not, and add a bias that broadcasts to the product."""
    values = call.values()
    a, b = values[0].shape, values[1].shape
    if len(a) != 2 or len(b) != 2:
        raise call.refused(f"operands {a} and {b} are not matrices")
    rows, inner = a[::-1] if call.integer("transA", 0) else a
    inner_b, columns = b[::-1] if call.integer("transB", 0) else b
    if inner != inner_b:
        raise call.refused(f"operands {a} and {b} do not match")
    shape = (rows, columns)
    if len(values) == 3 and (len(values[2].shape) > 2 or call.broadcast(shape, values[2].shape) != shape):
        raise call.refused(f"bias {values[2].shape} does not fit {shape}")
    return Result(values[0].elem_type, (shape,), rows * columns * (inner + 1))


def matmul(call: Call) -> Result:
    """Multiply as ``numpy.matmul``."""
    values = call.values()
    a, b = values[0].shape, values[1].shape
    if not a or not b:
        raise call.refused("a scalar operand")
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if left[-1] != right[-2]:
        raise call.refused(f"operands {a} and {b} do not match")
    batch = call.broadcast(left[:-2], right[:-2])
    shape = batch + (left[-2:-1] if len(a) > 1 else ()) + (right[-1:] if len(b) > 1 else ())
    return Result(values[0].elem_type, (shape,), math.prod(shape) * left[-1])


def cast(call: Call) -> Result:
    """Convert numbers to a float type."""
    value, to = call.optional(0), call.integer("to", 0)
    if value is None or to not in FLOATS:
        raise call.refused(f"to element type {to}, allowed are {sorted(FLOATS)}")
    return Result(to, (value.shape,), math.prod(value.shape))


def moved(call: Call, *shapes: Shape) -> Result:
    """Yield ``shapes``, at one operation per element copied."""
    return Result(call.value(0).elem_type, shapes, sum(math.prod(s) for s in shapes))


def concat(call: Call) -> Result:
    """Join along one axis; all others must agree."""
    shapes = [v.shape for v in call.values()]
    if "axis" not in call.node.attributes or any(len(s) != len(shapes[0]) for s in shapes):
        raise call.refused(f"of shapes {shapes[:8]} without a common axis")
    axis = call.axis(call.integer("axis", 0), len(shapes[0]))
    if any(s[:axis] + s[axis + 1 :] != shapes[0][:axis] + shapes[0][axis + 1 :] for s in shapes):
        raise call.refused(f"shapes {shapes[:8]} differ off axis {axis}")
    return moved(call, (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :]))


def reshape(call: Call) -> Result:
    """Reshape into constant dimensions (0 copies, one may be -1)."""
    old, wanted = call.value(0).shape, call.indices(1)
    if wanted is None or call.integer("allowzero", 0):
        raise call.refused("needs a constant list of dimensions")
    shape = [old[i] if d == 0 and i < len(old) else d for i, d in enumerate(wanted)]
    known, count = math.prod(d for d in shape if d != -1), math.prod(old)
    if shape.count(-1) > 1 or any(d < 1 and d != -1 for d in shape) or count % known:
        raise call.refused(f"{old} into {wanted}")
    full = tuple(count // known if d == -1 else d for d in shape)
    if math.prod(full) != count:
        raise call.refused(f"{old} into {wanted}")
    return moved(call, full)


def flatten(call: Call) -> Result:
    """Flatten into a matrix."""
    shape = call.value(0).shape
    axis = call.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise call.refused(f"axis {axis} of {len(shape)} dimensions")
    axis += len(shape) if axis < 0 else 0
    return moved(call, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def unsqueeze(call: Call) -> Result:
    """Insert dimensions of 1 at constant axes."""
    shape, axes = list(call.value(0).shape), call.indices(1)
    if axes is None:
        raise call.refused("needs axes")
    for axis in sorted(call.axes(axes, len(shape) + len(axes))):
        shape.insert(axis, 1)
    return moved(call, tuple(shape))


def squeeze(call: Call) -> Result:
    """Drop dimensions of 1, all or those at constant axes."""
    shape, axes = call.value(0).shape, call.indices(1)
    drop = [i for i, d in enumerate(shape) if d == 1] if axes is None else call.axes(axes, len(shape))
    if any(shape[i] != 1 for i in drop):
        raise call.refused(f"axes {drop} of {shape} are not all 1")
    return moved(call, tuple(d for i, d in enumerate(shape) if i not in drop))


def sliced(call: Call) -> Result:
    """Slice by constant starts, ends, axes and positive steps."""
    shape, starts, ends = list(call.value(0).shape), call.indices(1), call.indices(2)
    if starts is None or ends is None:
        raise call.refused("needs starts and ends")
    axes, steps = call.indices(3), call.indices(4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or any(step < 1 for step in steps):
        raise call.refused(f"starts {starts}, ends {ends}, axes {axes}, steps {steps}")
    for axis, start, end, step in zip(call.axes(axes, len(shape)), starts, ends, steps, strict=True):
        shape[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
    return moved(call, tuple(shape))


def split(call: Call) -> Result:
    """Split along one axis into constant sizes, or evenly."""
    shape, sizes, parts = call.value(0).shape, call.indices(1), len(call.node.outputs)
    axis = call.axis(call.integer("axis", 0), len(shape))
    if sizes is None:
        if shape[axis] % parts or call.integer("num_outputs", parts) != parts:
            raise call.refused(f"{shape} into {parts} parts along axis {axis}")
        sizes = [shape[axis] // parts] * parts
    if len(sizes) != parts or sum(sizes) != shape[axis] or any(s < 1 for s in sizes):
        raise call.refused(f"{shape} into {sizes} along axis {axis}")
    return moved(call, *((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes))


def transpose(call: Call) -> Result:
    """Permute the dimensions."""
    shape = call.value(0).shape
    attribute = call.node.attributes.get("perm")
    perm = range(len(shape))[::-1] if attribute is None else attribute.value
    if not isinstance(perm, tuple | range) or sorted(perm) != list(range(len(shape))):
        raise call.refused(f"permutation {perm!r} of {len(shape)} dimensions")
    return moved(call, tuple(shape[int(i)] for i in perm))


def gather(call: Call) -> Result:
    """Pick constant indices, or those of an ArgMax, along one axis."""
    shape, picked = call.value(0).shape, call.optional(1)
    axis = call.axis(call.integer("axis", 0), len(shape))
    if picked is not None and picked.below:
        if picked.below > shape[axis]:
            raise call.refused(f"indices up to {picked.below - 1} of {shape[axis]} along axis {axis}")
    else:
        indices = call.indices(1, rank=0)
        if indices is None or any(not -shape[axis] <= i < shape[axis] for i in indices):
            raise call.refused(f"indices {indices} of {shape[axis]} along axis {axis}")
    assert picked is not None
    return moved(call, shape[:axis] + picked.shape + shape[axis + 1 :])


def arg_max(call: Call) -> Result:
    """Index of the largest element along one axis: of discrete actions, the best."""
    shape = call.value(0).shape
    axis = call.axis(call.integer("axis", 0), len(shape))
    kept = (1,) if call.integer("keepdims", 1) else ()
    operations = math.prod(shape)
    return Result(INT64, (shape[:axis] + kept + shape[axis + 1 :],), operations, below=shape[axis])


def layer_normalization(call: Call) -> Result:
    """Normalise over the last dimensions, with scale and bias of the same shape."""
    values = call.values()
    shape = values[0].shape
    axis = call.axis(call.integer("axis", -1), len(shape))
    if any(v.shape != shape[axis:] for v in values[1:]):
        raise call.refused(f"scale and bias {[v.shape for v in values[1:]]} do not fit {shape[axis:]}")
    return Result(values[0].elem_type, (shape,), 8 * math.prod(shape))
