"""Arrays of a tape, the operations recorded on them, and their derivatives.

All arrays are matrices.  Operands of an elementwise operation are (rows, cols), or (1, cols), (rows, 1) and (1, 1),
which repeat.  ``Tape`` (``onrig.learner.tape.trace``) derives gradients.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Union

from onrig.learner.tape.operations import Space, TapeError, source_line
from onrig.learner.tape.spaces import Field, Layout

ALIGN: Final = 16
"""Alignment of arrays in elements."""
Gradient = Union["Array", float]
"""Derivative of a loss by an array: of the same shape, or one number for all elements."""


Rule = Callable[["Gradient", "Array"], "Gradient"]
"""From a gradient and the operation's output to the gradient by one input."""


class Derivative(NamedTuple):
    """Derivative of an operation by one of its inputs."""

    towards: Array
    rule: Callable[[Gradient], Gradient]
    """From the gradient by the operation's output to the one by this input."""


class Array:
    """A matrix somewhere in a space of its tape."""

    def __init__(
        self, tape: Recorder, space: Space, at: int, shape: tuple[int, int], strides: tuple[int, int] | None = None
    ) -> None:
        self.tape, self.space, self.at, self.shape = tape, space, at, shape
        self.strides = (shape[1], 1) if strides is None else strides
        self.derivatives: Sequence[Derivative] = ()
        self.is_relu = False
        """Whether relu units made it: its gradient is 0 where it is 0."""
        self.masked_by: Array | None = None
        """Relu units whose mask this gradient has already; None for other arrays."""
        self.part_of: tuple[Array, int] | None = None
        """The array that this one is columns of, and the first of them."""

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements follow one another, row by row."""
        rows, cols = self.shape
        return (rows == 1 or self.strides[0] == cols) and (cols == 1 or self.strides[1] == 1)

    def columns(self, start: int, stop: int) -> Array:
        """View of columns [start, stop)."""
        if not 0 <= start < stop <= self.shape[1]:
            raise self.tape.error(f"columns {start} to {stop} of an array {self.shape}")
        view = Array(
            self.tape, self.space, self.at + start * self.strides[1], (self.shape[0], stop - start), self.strides
        )
        view.part_of = (self, start)
        return view

    def reshaped(self, rows: int, cols: int) -> Array:
        """The same elements, row by row, as (rows, cols)."""
        if rows * cols != self.size or not self.is_contiguous:
            raise self.tape.error(f"an array {self.shape} cannot become {(rows, cols)}")
        view, old = Array(self.tape, self.space, self.at, (rows, cols)), self.shape
        return self.tape.produced(
            view, [Derivative(self, lambda g: g if isinstance(g, float) else self.tape.whole(g).reshaped(*old))]
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
            "divide", [self, other], [lambda g, y: divided(g, other), lambda g, y: -divided(g * y, other)]
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
        """Sum of all elements, (1, 1)."""
        return self.tape.reduced("sum", self, (1, 1))

    def mean(self) -> Array:
        """Mean of all elements, (1, 1)."""
        return self.sum() * (1.0 / self.size)

    def row_sums(self) -> Array:
        """Sum of each row, (rows, 1)."""
        return self if self.shape[1] == 1 else self.tape.reduced("row_sum", self, (self.shape[0], 1))

    def column_sums(self) -> Array:
        """Sum of each column, (1, cols)."""
        return self if self.shape[0] == 1 else self.tape.reduced("column_sum", self, (1, self.shape[1]))

    def row_maxima(self) -> Array:
        """Largest element of each row, (rows, 1); a constant for gradients."""
        return self if self.shape[1] == 1 else self.tape.reduced("row_max", self, (self.shape[0], 1), passes=False)

    def row_argmaxima(self) -> Array:
        """Column of the largest element of each row, the first of equals, (rows, 1); a constant for gradients."""
        return self.tape.reduced("row_argmax", self, (self.shape[0], 1), passes=False)

    def folded(self, width: int) -> Array:
        """Sum of blocks of ``width`` columns, (rows, width)."""
        (rows, cols), tape = self.shape, self.tape
        if cols % width or not self.is_contiguous:
            raise tape.error(f"an array {self.shape} in blocks of {width} columns")
        out = tape.emit("fold", (rows, width), [self], of=self.shape, inner=width)
        rule = Derivative(self, lambda g: g if isinstance(g, float) else tape.whole(g).tiled(cols // width))
        return tape.produced(out, [rule])

    def tiled(self, times: int) -> Array:
        """``times`` copies side by side, (rows, times * cols)."""
        (rows, cols), tape = self.shape, self.tape
        out = tape.emit("tile", (rows, times * cols), [tape.whole(self)], inner=cols)
        rule = Derivative(self, lambda g: g * float(times) if isinstance(g, float) else tape.whole(g).folded(cols))
        return tape.produced(out, [rule])

    def detached(self) -> Array:
        """The same array, a constant for gradients."""
        return Array(self.tape, self.space, self.at, self.shape, self.strides)


def divided(g: Gradient, by: Array) -> Gradient:
    """A gradient by an array, for rules: the division derives no gradient itself."""
    if isinstance(g, float):
        return by.tape.elementwise("divide", [by.tape.filled(by.shape, g), by], [])
    return by.tape.elementwise("divide", [g, by], [])


class Emitted(NamedTuple):
    """An operation of the list."""

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
    """Its source line: ``file:line``."""


class Recorder:
    """Operations of one program, in order, and the arrays that they are on; ``Tape`` derives gradients from them."""

    def __init__(self, state: Layout, record: Layout) -> None:
        self.state, self.record = state, record
        self.emitted: list[Emitted] = []
        self.scratch: list[tuple[int, int]] = []
        """(start, size) of each array of the scratch, before packing."""
        self._starts: list[int] = []
        self._scratch_size = 0
        self._section = 0
        self.passing: list[Array] = []
        """Arrays through which gradients pass, in the order in which they were computed."""
        self.stale: set[Array] = set()
        """Those computed with parameters that have changed since."""
        self._read: dict[str, Array] = {}

    # Arrays

    def read(self, field: Field) -> Array:
        """The array of a field of the state or of the record."""
        if field.name not in self._read:
            space = Space.STATE if field.layout is self.state else Space.RECORD
            self._read[field.name] = Array(self, space, field.at, field.shape)
        return self._read[field.name]

    def scratch_array(self, shape: tuple[int, int]) -> Array:
        """A new array for intermediate results."""
        size = -(-shape[0] * shape[1] // ALIGN) * ALIGN
        start, self._scratch_size = self._scratch_size, self._scratch_size + size
        self.scratch.append((start, size))
        self._starts.append(start)
        return Array(self, Space.SCRATCH, start, shape)

    def allocation(self, a: Array) -> int:
        """Number of the scratch array that holds ``a``; -1 outside of the scratch."""
        return bisect_right(self._starts, a.at) - 1 if a.space is Space.SCRATCH else -1

    def filled(self, shape: tuple[int, int], value: float) -> Array:
        """Array filled with one number."""
        return self.emit("fill", shape, [], x=value)

    def full(self, g: Gradient, shape: tuple[int, int]) -> Array:
        """A gradient as an array, of one element where all are equal."""
        return self.filled((1, 1), g) if isinstance(g, float) else g

    def whole(self, a: Array) -> Array:
        """``a`` if contiguous, else a contiguous copy."""
        return a if a.is_contiguous else self.emit("copy", a.shape, [a])

    def error(self, what: str) -> TapeError:
        """An error at the line of the algorithm that is being traced."""
        return TapeError(f"{source_line()}: {what}")

    # Operations

    @contextmanager
    def section(self, number: int) -> Iterator[None]:
        """Context whose operations run only in updates with this section (1 to 31)."""
        before, self._section = self._section, number
        yield
        self._section = before

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
        """Append an operation with an output of this shape; ``of``: what its rows and columns count, if not those."""
        out = self.scratch_array(shape) if out is None else out
        self.emitted.append(
            Emitted(name, self._section, out, tuple(inputs), of or shape, inner, post, x, y, more, source_line())
        )
        return out

    def common_shape(self, arrays: Sequence[Array], name: str = "operation") -> tuple[int, int]:
        """Shape of an elementwise operation's output."""
        rows, cols = (max(a.shape[axis] for a in arrays) for axis in (0, 1))
        for a in arrays:
            if a.shape[0] not in (1, rows) or a.shape[1] not in (1, cols):
                raise self.error(f"{name} of arrays {' and '.join(str(b.shape) for b in arrays)}")
        return rows, cols

    def elementwise(
        self, name: str, inputs: Sequence[Array], rules: Sequence[Rule], *, x: float = 0.0, y: float = 0.0
    ) -> Array:
        """Append an elementwise operation; ``rules`` derive the gradients by its inputs, in the output's shape."""
        shape = self.common_shape(inputs, name)
        out = self.emit(name, shape, inputs, x=x, y=y)

        def fitted(a: Array, rule: Rule) -> Callable[[Gradient], Gradient]:
            return lambda g: self._fitted(a, rule(g, out), shape)

        return self.produced(out, [Derivative(a, fitted(a, rule)) for a, rule in zip(inputs, rules, strict=False)])

    def produced(self, out: Array, derivatives: Sequence[Derivative]) -> Array:
        """Register the derivatives of ``out``, and return it."""
        out.derivatives = derivatives
        self.passing.append(out)
        return out

    def _fitted(self, a: Array, g: Gradient, shape: tuple[int, int]) -> Gradient:
        """Sum a gradient over the repeated dimensions of ``a``."""
        if isinstance(g, float):
            return g * (shape[0] * shape[1] / a.size)
        if g.shape != shape:  # of one element, where all are equal
            g = self.emit("copy", shape, [g])
        if a.shape == shape:
            return g
        if a.shape == (1, 1):
            return g.sum()
        return g.column_sums() if a.shape[0] == 1 else g.row_sums()

    def reduced(self, name: str, a: Array, shape: tuple[int, int], *, passes: bool = True) -> Array:
        """Append a reduction; the gradient of a sum is the same for all that it was taken over."""
        # Kernels read rows whose elements are next to one another, not one that is repeated.
        source = a if 0 not in a.strides else self.emit("copy", a.shape, [a])
        out = self.emit(name, shape, [source], of=a.shape)
        rule = Derivative(a, lambda g: g if isinstance(g, float) else self._repeated(g, a.shape))
        return self.produced(out, [rule] if passes else [])

    def _repeated(self, g: Array, shape: tuple[int, int]) -> Array:
        (rows, cols), (by_row, by_col) = g.shape, g.strides
        strides = (0 if rows < shape[0] else by_row, 0 if cols < shape[1] else by_col)
        return Array(self, g.space, g.at, shape, strides)
