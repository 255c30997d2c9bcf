"""Output shapes and operation counts of the allowed operators, as functions of input shapes and constants.

Each rule implements all or part of the operator's specification for operator sets 13 to 26, and rejects everything
else.
"""

from __future__ import annotations

import math

from onrig.runtime.policy.call import FLOATS, Call, Result, Shape, value_of
from onrig.runtime.policy.onnx_wire import FLOAT, INT64


def constant(call: Call) -> Result:
    """Return the node's constant."""
    value = value_of(call.constant())
    return Result(value.elem_type, (value.shape,), 0, value.constant)


def unary(call: Call) -> Result:
    """Return the input's shape, at one operation per element (Relu, Neg and the like)."""
    value = call.value(0)
    return Result(value.elem_type, (value.shape,), math.prod(value.shape))


def transcendental(call: Call) -> Result:
    """Return the input's shape, at 16 operations per element: Exp and the like were measured to take less than 16 times
    as long as Relu."""
    value = call.value(0)
    return Result(value.elem_type, (value.shape,), 16 * math.prod(value.shape))


def softmax(call: Call) -> Result:
    """Return the shape of the input, which is normalised along one axis, at the same cost as Exp."""
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
            raise call.refusal(
                f"bound {index} has shape {bound.shape} and type {bound.elem_type}; it must be a scalar of that type"
            )
    return Result(value.elem_type, (value.shape,), math.prod(value.shape))


def gemm(call: Call) -> Result:
    """Multiply two matrices, either of which may be transposed, and add an optional bias that broadcasts to the
    product."""
    values = call.values()
    a, b = values[0].shape, values[1].shape
    if len(a) != 2 or len(b) != 2:
        raise call.refusal(f"operands {a} and {b} are not matrices")
    rows, inner = a[::-1] if call.flag("transA", False) else a
    inner_b, columns = b[::-1] if call.flag("transB", False) else b
    if inner != inner_b:
        raise call.refusal(f"the inner dimensions of {a} and {b} differ")
    shape = (rows, columns)
    if len(values) == 3 and (len(values[2].shape) > 2 or call.broadcast(shape, values[2].shape) != shape):
        raise call.refusal(f"bias {values[2].shape} does not fit {shape}")
    return Result(values[0].elem_type, (shape,), rows * columns * (inner + 1))


def matmul(call: Call) -> Result:
    """Multiply like ``numpy.matmul``."""
    values = call.values()
    a, b = values[0].shape, values[1].shape
    if not a or not b:
        raise call.refusal("an operand is a scalar")
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if left[-1] != right[-2]:
        raise call.refusal(f"the inner dimensions of {a} and {b} differ")
    batch = call.broadcast(left[:-2], right[:-2])
    shape = batch + (left[-2:-1] if len(a) > 1 else ()) + (right[-1:] if len(b) > 1 else ())
    return Result(values[0].elem_type, (shape,), math.prod(shape) * left[-1])


def conv(call: Call) -> Result:
    """Convolve images (batch, channels, rows, columns) with filters (outputs, channels, rows, columns), and add an
    optional bias (outputs,).

    Groups and dilations are not supported, and the padding at each edge must be smaller than the filters.
    """
    values = call.values()
    x, filters = values[0].shape, values[1].shape
    if values[0].elem_type != FLOAT or len(x) != 4 or len(filters) != 4 or x[1] != filters[1]:
        raise call.refusal(f"images {x} and filters {filters} do not fit, or are not float32")
    if len(values) == 3 and values[2].shape != filters[:1]:
        raise call.refusal(f"bias {values[2].shape} does not fit {filters[0]} filters")
    kernel = filters[2:]
    if call.integer("group", 1) != 1 or call.integers("dilations", (1, 1)) != (1, 1):
        raise call.refusal("groups and dilations must be 1")
    if call.integers("kernel_shape", kernel) != kernel:
        raise call.refusal(f"attribute 'kernel_shape' differs from the filters {filters}")
    pads, strides = call.integers("pads", (0,) * 4), call.integers("strides", (1, 1))
    padded_shape = [
        size + pad_before + pad_after for size, pad_before, pad_after in zip(x[2:], pads[:2], pads[2:], strict=True)
    ]
    if not all(0 <= pad < side for pad, side in zip(pads, kernel * 2, strict=True)):
        raise call.refusal(f"pads {pads} are negative, or as large as the filters {filters}")
    if not all(1 <= stride <= size for stride, size in zip(strides, padded_shape, strict=True)):
        raise call.refusal(f"strides {strides} are outside 1 to the size of the padded image, {padded_shape}")
    grid = [(size - side) // stride + 1 for size, side, stride in zip(padded_shape, kernel, strides, strict=True)]
    if min(grid) < 1:
        raise call.refusal(f"filters {filters} exceed the padded image, {padded_shape}")
    shape = (x[0], filters[0], *grid)
    return Result(FLOAT, (shape,), math.prod(shape) * (math.prod(filters[1:]) + 1))


def cast(call: Call) -> Result:
    """Convert a tensor to a float type."""
    value, to = call.optional(0), call.integer("to", 0)
    if value is None or to not in FLOATS:
        raise call.refusal(f"cannot cast to element type {to}; allowed: {sorted(FLOATS)}")
    return Result(to, (value.shape,), math.prod(value.shape))


def copy_result(call: Call, *shapes: Shape) -> Result:
    """Return a result with these ``shapes``, at one operation per copied element."""
    return Result(call.value(0).elem_type, shapes, sum(math.prod(s) for s in shapes))


def concat(call: Call) -> Result:
    """Join along one axis; all other dimensions must agree."""
    shapes = [v.shape for v in call.values()]
    if "axis" not in call.node.attributes or any(len(s) != len(shapes[0]) for s in shapes):
        raise call.refusal(f"shapes {shapes[:8]} have no common axis")
    axis = call.axis(call.integer("axis", 0), len(shapes[0]))
    if any(s[:axis] + s[axis + 1 :] != shapes[0][:axis] + shapes[0][axis + 1 :] for s in shapes):
        raise call.refusal(f"shapes {shapes[:8]} differ along axes other than {axis}")
    return copy_result(call, (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :]))


def reshape(call: Call) -> Result:
    """Reshape to constant dimensions (0 keeps the input's dimension; one may be -1)."""
    input_shape, target_shape = call.value(0).shape, call.indices(1)
    if target_shape is None or call.flag("allowzero", False):
        raise call.refusal("expected a constant list of dimensions")
    shape = [input_shape[i] if d == 0 and i < len(input_shape) else d for i, d in enumerate(target_shape)]
    known_size, size = math.prod(d for d in shape if d != -1), math.prod(input_shape)
    if shape.count(-1) > 1 or any(d < 1 and d != -1 for d in shape) or size % known_size:
        raise call.refusal(f"cannot reshape {input_shape} to {target_shape}")
    output_shape = tuple(size // known_size if d == -1 else d for d in shape)
    if math.prod(output_shape) != size:
        raise call.refusal(f"cannot reshape {input_shape} to {target_shape}")
    return copy_result(call, output_shape)


def flatten(call: Call) -> Result:
    """Flatten a tensor into a matrix, split before ``axis``."""
    shape = call.value(0).shape
    axis = call.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise call.refusal(f"axis {axis} is outside {len(shape)} dimensions")
    axis += len(shape) if axis < 0 else 0
    return copy_result(call, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def unsqueeze(call: Call) -> Result:
    """Insert dimensions of 1 at constant axes."""
    shape, axes = list(call.value(0).shape), call.indices(1)
    if axes is None:
        raise call.refusal("expected constant axes")
    for axis in sorted(call.axes(axes, len(shape) + len(axes))):
        shape.insert(axis, 1)
    return copy_result(call, tuple(shape))


def squeeze(call: Call) -> Result:
    """Drop dimensions of 1: all of them, or those at constant axes."""
    shape, axes = call.value(0).shape, call.indices(1)
    dropped_axes = [i for i, d in enumerate(shape) if d == 1] if axes is None else call.axes(axes, len(shape))
    if any(shape[i] != 1 for i in dropped_axes):
        raise call.refusal(f"axes {dropped_axes} of {shape} do not all have length 1")
    return copy_result(call, tuple(d for i, d in enumerate(shape) if i not in dropped_axes))


def slice_tensor(call: Call) -> Result:
    """Slice by constant starts, ends, axes and positive steps."""
    shape, starts, ends = list(call.value(0).shape), call.indices(1), call.indices(2)
    if starts is None or ends is None:
        raise call.refusal("expected constant starts and ends")
    axes, steps = call.indices(3), call.indices(4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or any(step < 1 for step in steps):
        raise call.refusal(f"invalid slice: starts {starts}, ends {ends}, axes {axes}, steps {steps}")
    for axis, start, end, step in zip(call.axes(axes, len(shape)), starts, ends, steps, strict=True):
        shape[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
    return copy_result(call, tuple(shape))


def split(call: Call) -> Result:
    """Split along one axis, into parts of constant sizes or evenly."""
    shape, sizes, n_parts = call.value(0).shape, call.indices(1), len(call.node.outputs)
    axis = call.axis(call.integer("axis", 0), len(shape))
    if sizes is None:
        if shape[axis] % n_parts or call.integer("num_outputs", n_parts) != n_parts:
            raise call.refusal(f"cannot split {shape} into {n_parts} equal parts along axis {axis}")
        sizes = [shape[axis] // n_parts] * n_parts
    if len(sizes) != n_parts or sum(sizes) != shape[axis] or any(s < 1 for s in sizes):
        raise call.refusal(f"cannot split {shape} into {sizes} along axis {axis}")
    return copy_result(call, *((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes))


def transpose(call: Call) -> Result:
    """Permute the dimensions."""
    shape = call.value(0).shape
    attribute = call.node.attributes.get("perm")
    perm = range(len(shape))[::-1] if attribute is None else attribute.value
    if not isinstance(perm, tuple | range) or sorted(perm) != list(range(len(shape))):
        raise call.refusal(f"{perm!r} is not a permutation of {len(shape)} dimensions")
    return copy_result(call, tuple(shape[int(i)] for i in perm))


def gather(call: Call) -> Result:
    """Select constant indices, or those of an ArgMax, along one axis."""
    shape, index_input = call.value(0).shape, call.optional(1)
    axis = call.axis(call.integer("axis", 0), len(shape))
    if index_input is not None and index_input.bound:
        if index_input.bound > shape[axis]:
            raise call.refusal(f"indices up to {index_input.bound - 1} exceed {shape[axis]} elements along axis {axis}")
    else:
        indices = call.indices(1, rank=0)
        if indices is None or any(not -shape[axis] <= i < shape[axis] for i in indices):
            raise call.refusal(f"indices {indices} are outside {shape[axis]} elements along axis {axis}")
    assert index_input is not None
    return copy_result(call, shape[:axis] + index_input.shape + shape[axis + 1 :])


def arg_max(call: Call) -> Result:
    """Return the index of the largest element along one axis, such as the best discrete action."""
    shape = call.value(0).shape
    axis = call.axis(call.integer("axis", 0), len(shape))
    reduced_axis = (1,) if call.flag("keepdims", True) else ()
    operations = math.prod(shape)
    return Result(INT64, (shape[:axis] + reduced_axis + shape[axis + 1 :],), operations, bound=shape[axis])


def layer_normalization(call: Call) -> Result:
    """Normalise over the last dimensions, with a scale and an optional bias of their shape."""
    values = call.values()
    shape = values[0].shape
    axis = call.axis(call.integer("axis", -1), len(shape))
    if any(v.shape != shape[axis:] for v in values[1:]):
        raise call.refusal(f"scale and bias {[v.shape for v in values[1:]]} do not fit {shape[axis:]}")
    return Result(values[0].elem_type, (shape,), 8 * math.prod(shape))
