"""Arrays of a tape, the operations recorded on them, and their derivatives.

All arrays are matrices.  Operands of an elementwise operation have the shape (rows, cols), or (1, cols), (rows, 1) or
(1, 1), which are broadcast.  ``Tape`` (``onrig.learner.tape.trace``) derives gradients.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Union

from onrig.learner.tape.operations import Space, TapeError, source_line
from onrig.learner.tape.spaces import Field, Layout
from onrig.learner.tape.windows import Windows

ALIGN: Final = 16
"""Alignment of arrays, in elements."""
Gradient = Union["Array", float]
"""Derivative of a loss with respect to an array: of the same shape, or one number for all elements."""


GradientRule = Callable[["Gradient", "Array"], "Gradient"]
"""Function from a gradient and the operation's output to the gradient with respect to one input."""


class Derivative(NamedTuple):
    """Derivative of an operation with respect to one of its inputs."""

    wrt: Array
    rule: Callable[[Gradient], Gradient]
    """Function from the gradient with respect to the output to the gradient with respect to this input."""


class Array:
    """Matrix within a space of its tape."""

    def __init__(
        self, tape: Recorder, space: Space, offset: int, shape: tuple[int, int], strides: tuple[int, int] | None = None
    ) -> None:
        self.tape, self.space, self.offset, self.shape = tape, space, offset, shape
        self.strides = (shape[1], 1) if strides is None else strides
        self.derivatives: Sequence[Derivative] = ()
        self.is_relu = False
        """Whether the array is the output of relu units; if so, its gradient is 0 where the output is 0."""
        self.applied_mask: Array | None = None
        """Relu units whose mask is already applied to this gradient; None for other arrays."""
        self.part_of: tuple[Array, int] | None = None
        """Array of which this one is a range of columns, and the index of the range's first column in it."""
        self.parts: Sequence[Array] = ()
        """Arrays whose columns this one concatenates; empty for other arrays."""

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are consecutive, row by row."""
        rows, cols = self.shape
        return (rows == 1 or self.strides[0] == cols) and (cols == 1 or self.strides[1] == 1)

    def columns(self, start: int, stop: int) -> Array:
        """Return a view of columns [start, stop)."""
        if not 0 <= start < stop <= self.shape[1]:
            raise self.tape.error(f"columns {start} to {stop} exceed an array of shape {self.shape}")
        view = Array(
            self.tape, self.space, self.offset + start * self.strides[1], (self.shape[0], stop - start), self.strides
        )
        view.part_of = (self, start)
        return view

    def rows(self, start: int, stop: int) -> Array:
        """Return a view of rows [start, stop)."""
        tape, shape = self.tape, self.shape
        view = self.row_view(start, stop)

        def rule(g: Gradient) -> Array:
            out = tape.filled(shape, 0.0)
            tape.emit("copy", view.shape, [tape.expand(g, view.shape)], out=out.row_view(start, stop))
            return out

        return tape.register_output(view, [Derivative(self, rule)])

    def row_view(self, start: int, stop: int) -> Array:
        """Return a view of rows [start, stop) that is a constant for gradients."""
        if not 0 <= start < stop <= self.shape[0]:
            raise self.tape.error(f"rows {start} to {stop} exceed an array of shape {self.shape}")
        shape = stop - start, self.shape[1]
        return Array(self.tape, self.space, self.offset + start * self.strides[0], shape, self.strides)

    def reshape(self, rows: int, cols: int) -> Array:
        """Reshape to (rows, cols), keeping the order of the elements row by row."""
        if rows * cols != self.size or not self.is_contiguous:
            raise self.tape.error(f"an array {self.shape} cannot become {(rows, cols)}")
        view, old_shape = Array(self.tape, self.space, self.offset, (rows, cols)), self.shape
        return self.tape.register_output(
            view,
            [
                Derivative(
                    self, lambda g: g if isinstance(g, float) else self.tape.make_contiguous(g).reshape(*old_shape)
                )
            ],
        )

    def __add__(self, other: Array | float) -> Array:
        if not isinstance(other, Array):
            return self.affine(1.0, float(other))
        return self.tape.elementwise("add", [self, other], [lambda g, y: g, lambda g, y: g])

    def __sub__(self, other: Array | float) -> Array:
        if not isinstance(other, Array):
            return self.affine(1.0, -float(other))
        return self.tape.elementwise("subtract", [self, other], [lambda g, y: g, lambda g, y: -g])

    def __mul__(self, other: Array | float) -> Array:
        if not isinstance(other, Array):
            return self.affine(float(other), 0.0)
        return self.tape.elementwise("multiply", [self, other], [lambda g, y: g * other, lambda g, y: g * self])

    def __truediv__(self, other: Array | float) -> Array:
        if not isinstance(other, Array):
            return self.affine(1.0 / float(other), 0.0)
        return self.tape.elementwise(
            "divide",
            [self, other],
            [lambda g, y: divide_gradient(g, other), lambda g, y: -divide_gradient(g * y, other)],
        )

    def __rsub__(self, other: float) -> Array:
        return self.affine(-1.0, float(other))

    def __rtruediv__(self, other: float) -> Array:
        return self.tape.filled((1, 1), float(other)) / self

    def __neg__(self) -> Array:
        return self.affine(-1.0, 0.0)

    __radd__, __rmul__ = __add__, __mul__

    def affine(self, factor: float, offset: float) -> Array:
        return self.tape.elementwise("affine", [self], [lambda g, y: g * factor], x=factor, y=offset)

    def sum(self) -> Array:
        """Return the sum of all elements, (1, 1)."""
        return self.tape.add_reduction("sum", self, (1, 1))

    def mean(self) -> Array:
        """Return the mean of all elements, (1, 1)."""
        return self.sum() * (1.0 / self.size)

    def row_sums(self) -> Array:
        """Return the sum of each row, (rows, 1)."""
        return self if self.shape[1] == 1 else self.tape.add_reduction("row_sum", self, (self.shape[0], 1))

    def column_sums(self) -> Array:
        """Return the sum of each column, (1, cols)."""
        return self if self.shape[0] == 1 else self.tape.add_reduction("column_sum", self, (1, self.shape[1]))

    def row_maxima(self) -> Array:
        """Return the largest element of each row, (rows, 1), as a constant for gradients."""
        return (
            self
            if self.shape[1] == 1
            else self.tape.add_reduction("row_max", self, (self.shape[0], 1), differentiable=False)
        )

    def row_argmaxima(self) -> Array:
        """Return the column of each row's largest element, the first one on a tie, (rows, 1), as a constant for
        gradients."""
        return self.tape.add_reduction("row_argmax", self, (self.shape[0], 1), differentiable=False)

    def fold(self, width: int) -> Array:
        """Return the sum of all blocks of ``width`` columns, (rows, width)."""
        (rows, cols), tape = self.shape, self.tape
        if cols % width or not self.is_contiguous:
            raise tape.error(f"cannot split an array of shape {self.shape} into blocks of {width} columns")
        out = tape.emit("fold", (rows, width), [self], of=self.shape, inner=width)
        rule = Derivative(self, lambda g: g if isinstance(g, float) else tape.make_contiguous(g).tile(cols // width))
        return tape.register_output(out, [rule])

    def tile(self, times: int) -> Array:
        """Return ``times`` copies side by side, (rows, times * cols)."""
        (rows, cols), tape = self.shape, self.tape
        out = tape.emit("tile", (rows, times * cols), [tape.make_contiguous(self)], inner=cols)
        rule = Derivative(
            self, lambda g: g * float(times) if isinstance(g, float) else tape.make_contiguous(g).fold(cols)
        )
        return tape.register_output(out, [rule])

    def detach(self) -> Array:
        """Return this array as a constant for gradients."""
        return Array(self.tape, self.space, self.offset, self.shape, self.strides)


def divide_gradient(g: Gradient, divisor: Array) -> Gradient:
    """Divide a gradient by an array, within a rule; the division is not differentiated."""
    if isinstance(g, float):
        return divisor.tape.elementwise("divide", [divisor.tape.filled(divisor.shape, g), divisor], [])
    return divisor.tape.elementwise("divide", [g, divisor], [])


class RecordedOperation(NamedTuple):
    """Operation in the list, with its arrays."""

    name: str
    section: int
    out: Array
    inputs: tuple[Array, ...]
    shape: tuple[int, int]
    inner: int
    post: int
    x: float
    y: float
    more: tuple[float, float]
    line: str
    """Source line of the operation, ``file:line``."""


class Recorder:
    """Operations of one program, in order, and their arrays; ``Tape`` derives gradients from them."""

    def __init__(self, state: Layout, record: Layout) -> None:
        self.state, self.record = state, record
        self.operations: list[RecordedOperation] = []
        self.scratch_arrays: list[tuple[int, int]] = []
        """(start, size) of each array in the scratch space, before packing."""
        self._starts: list[int] = []
        self._scratch_size = 0
        self.current_section = 0
        self.differentiable_arrays: list[Array] = []
        """Arrays through which gradients are propagated, in order of computation."""
        self.stale_arrays: set[Array] = set()
        """Arrays computed with parameters that have changed since."""
        self._field_arrays: dict[str, Array] = {}
        self.patches: dict[tuple[Array, Windows], tuple[int, Array]] = {}
        """Windows of images in the record, each with the section that computes it."""

    # Arrays

    def read(self, field: Field) -> Array:
        """Return the array of a field of the state or of the record."""
        if field.name not in self._field_arrays:
            space = Space.STATE if field.layout is self.state else Space.RECORD
            self._field_arrays[field.name] = Array(self, space, field.offset, field.shape)
        return self._field_arrays[field.name]

    def scratch_array(self, shape: tuple[int, int]) -> Array:
        """Allocate an array for intermediate results."""
        size = -(-shape[0] * shape[1] // ALIGN) * ALIGN
        start, self._scratch_size = self._scratch_size, self._scratch_size + size
        self.scratch_arrays.append((start, size))
        self._starts.append(start)
        return Array(self, Space.SCRATCH, start, shape)

    def allocation(self, a: Array) -> int:
        """Return the index of the scratch array that contains ``a``; -1 if ``a`` is not in the scratch space."""
        return bisect_right(self._starts, a.offset) - 1 if a.space is Space.SCRATCH else -1

    def filled(self, shape: tuple[int, int], value: float) -> Array:
        """Return a constant array in which every element is ``value``."""
        return self.emit("fill", shape, [], x=value)

    def expand(self, g: Gradient, shape: tuple[int, int]) -> Array:
        """Return a gradient as an array, which has a single element if the gradient is a number."""
        return self.filled((1, 1), g) if isinstance(g, float) else g

    def make_contiguous(self, a: Array) -> Array:
        """Return ``a`` if contiguous, else a contiguous copy."""
        return a if a.is_contiguous else self.emit("copy", a.shape, [a])

    def expand_repeats(self, a: Array) -> Array:
        """Return ``a``, or a copy if it repeats elements, because the kernels of reductions read rows of adjacent
        elements."""
        return a if 0 not in a.strides else self.emit("copy", a.shape, [a])

    def error(self, problem: str) -> TapeError:
        """Return an error that names the line of the algorithm being traced."""
        return TapeError(f"{source_line()}: {problem}")

    # Operations

    @contextmanager
    def section(self, number: int) -> Iterator[None]:
        """Open a context whose operations run only in updates with this section (1 to 31)."""
        outer_section, self.current_section = self.current_section, number
        yield
        self.current_section = outer_section

    def emit(
        self,
        name: str,
        shape: tuple[int, int],
        inputs: Sequence[Array],
        *,
        out: Array | None = None,
        of: tuple[int, int] | None = None,
        inner: int = 0,
        post: int = 0,
        x: float = 0.0,
        y: float = 0.0,
        more: tuple[float, float] = (0.0, 0.0),
    ) -> Array:
        """Append an operation whose output has this shape, and return the output.

        ``of``: number of rows and columns of the operation, if they differ from the output's.
        """
        out = self.scratch_array(shape) if out is None else out
        self.operations.append(
            RecordedOperation(
                name, self.current_section, out, tuple(inputs), of or shape, inner, post, x, y, more, source_line()
            )
        )
        return out

    def common_shape(self, arrays: Sequence[Array], name: str = "operation") -> tuple[int, int]:
        """Return the shape of an elementwise operation's output."""
        rows, cols = (max(a.shape[axis] for a in arrays) for axis in (0, 1))
        for a in arrays:
            if a.shape[0] not in (1, rows) or a.shape[1] not in (1, cols):
                raise self.error(f"{name} of arrays {' and '.join(str(b.shape) for b in arrays)}")
        return rows, cols

    def elementwise(
        self, name: str, inputs: Sequence[Array], rules: Sequence[GradientRule], *, x: float = 0.0, y: float = 0.0
    ) -> Array:
        """Append an elementwise operation; ``rules`` derive the gradients with respect to its inputs, in the output's
        shape."""
        shape = self.common_shape(inputs, name)
        out = self.emit(name, shape, inputs, x=x, y=y)

        def sum_to_input(a: Array, rule: GradientRule) -> Callable[[Gradient], Gradient]:
            return lambda g: self._sum_to_shape(a, rule(g, out), shape)

        return self.register_output(
            out, [Derivative(a, sum_to_input(a, rule)) for a, rule in zip(inputs, rules, strict=False)]
        )

    def register_output(self, out: Array, derivatives: Sequence[Derivative]) -> Array:
        """Register the derivatives of ``out``, and return ``out``."""
        out.derivatives = derivatives
        self.differentiable_arrays.append(out)
        return out

    def _sum_to_shape(self, a: Array, g: Gradient, shape: tuple[int, int]) -> Gradient:
        """Sum a gradient over the repeated dimensions of ``a``."""
        if isinstance(g, float):
            return g * (shape[0] * shape[1] / a.size)
        if g.shape != shape:  # a uniform gradient has a single element
            g = self.emit("copy", shape, [g])
        if a.shape == shape:
            return g
        if a.shape == (1, 1):
            return g.sum()
        return g.column_sums() if a.shape[0] == 1 else g.row_sums()

    def add_reduction(self, name: str, a: Array, shape: tuple[int, int], *, differentiable: bool = True) -> Array:
        """Append a reduction; the gradient of a sum is the same for all its terms."""
        out = self.emit(name, shape, [self.expand_repeats(a)], of=a.shape)
        rule = Derivative(a, lambda g: g if isinstance(g, float) else self._broadcast(g, a.shape))
        return self.register_output(out, [rule] if differentiable else [])

    def _broadcast(self, g: Array, shape: tuple[int, int]) -> Array:
        (rows, cols), (row_stride, col_stride) = g.shape, g.strides
        strides = (0 if rows < shape[0] else row_stride, 0 if cols < shape[1] else col_stride)
        return Array(self, g.space, g.offset, shape, strides)
