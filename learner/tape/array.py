"""Arrays of a tape, and the elementary operations on them with their derivatives.

All arrays are matrices.  Operands of an elementwise operation are (rows, cols), or (1, cols), (rows, 1) and (1, 1),
which repeat.  ``Tape`` (``onrig.learner.tape.trace``) makes arrays and derives gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Union

from onrig.learner.tape.operations import Space

if TYPE_CHECKING:
    from onrig.learner.tape.trace import Tape

Gradient = Union["Array", float]
"""Derivative of a loss by an array: of the same shape, or one number for all elements."""


class Derivative(NamedTuple):
    """Derivative of an operation by one of its inputs."""

    towards: Array
    rule: Callable[[Gradient], Gradient]
    """From the gradient by the operation's output to the one by this input."""


class Array:
    """A matrix somewhere in a space of its tape."""

    def __init__(
        self, tape: Tape, space: Space, at: int, shape: tuple[int, int], strides: tuple[int, int] | None = None
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
            "divide", [self, other], [lambda g, y: _divided(g, other), lambda g, y: -_divided(g * y, other)]
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


def _divided(g: Gradient, by: Array) -> Gradient:
    if isinstance(g, float):
        return by.tape.elementwise("divide", [by.tape.filled(by.shape, g), by], [])
    return by.tape.elementwise("divide", [g, by], [])


def _slope(name: str, g: Gradient, y: Array) -> Array:
    return y.tape.elementwise(name, [y, y.tape.full(g, y.shape)], [])


def exp(a: Array) -> Array:
    """e^a."""
    return a.tape.elementwise("exp", [a], [lambda g, y: g * y])


def log(a: Array) -> Array:
    """Natural logarithm."""
    return a.tape.elementwise("log", [a], [lambda g, y: _divided(g, a)])


def sqrt(a: Array) -> Array:
    """Square root."""
    return a.tape.elementwise("sqrt", [a], [lambda g, y: _divided(g * 0.5, y)])


def square(a: Array) -> Array:
    """a a."""
    return a.tape.elementwise("multiply", [a, a], [lambda g, y: (g * 2.0) * a, lambda g, y: 0.0])


def tanh(a: Array) -> Array:
    """Hyperbolic tangent."""
    return a.tape.elementwise("tanh", [a], [lambda g, y: _slope("tanh_slope", g, y)])


def sigmoid(a: Array) -> Array:
    """1 / (1 + e^-a)."""
    return a.tape.elementwise("sigmoid", [a], [lambda g, y: _slope("sigmoid_slope", g, y)])


def softplus(a: Array) -> Array:
    """ln(1 + e^a)."""
    return a.tape.elementwise("softplus", [a], [lambda g, y: g * a.tape.elementwise("sigmoid", [a], [])])


def softsign(a: Array) -> Array:
    """a / (1 + |a|)."""
    return a.tape.elementwise("softsign", [a], [lambda g, y: _slope("softsign_slope", g, y)])


def relu(a: Array) -> Array:
    """max(a, 0)."""
    return a.tape.elementwise("clamp", [a], [lambda g, y: _slope("where_positive", g, y)], x=0.0, y=float("inf"))


def clip(a: Array, low: float, high: float) -> Array:
    """a within [low, high]; no gradient passes outside."""

    def rule(g: Gradient, y: Array) -> Gradient:
        return a.tape.elementwise("inside", [a, a.tape.full(g, a.shape)], [], x=low, y=high)

    return a.tape.elementwise("clamp", [a], [rule], x=low, y=high)


def minimum(a: Array, b: Array) -> Array:
    """The smaller of both; where they are equal the gradient passes to the first."""
    tape, shape = a.tape, a.tape.common_shape([a, b])

    def towards(name: str) -> Callable[[Gradient, Array], Gradient]:
        return lambda g, y: tape.elementwise(name, [a, b, tape.full(g, shape)], [])

    return tape.elementwise("minimum", [a, b], [towards("where_less"), towards("where_more")])


def maximum(a: Array, b: Array) -> Array:
    """The larger of both."""
    return -minimum(-a, -b)


def equal(a: Array, b: Array) -> Array:
    """1 where both are equal, else 0; a constant for gradients."""
    return a.tape.elementwise("equal", [a, b], [])


def greater(a: Array, b: Array) -> Array:
    """1 where a > b, else 0, also for NaN; a constant for gradients."""
    return a.tape.elementwise("where_more", [a, b, a.tape.filled((1, 1), 1.0)], [])


def softmax(a: Array) -> Array:
    """Softmax of each row."""
    e = exp(a - a.row_maxima())
    return e / e.row_sums()


def log_softmax(a: Array) -> Array:
    """Logarithm of the softmax of each row."""
    shifted = a - a.row_maxima()
    return shifted - log(exp(shifted).row_sums())


def project(p: Array, reward: Array, discount: Array, low: float, high: float) -> Array:
    """Project distributions (rows, atoms) of reward + discount z onto the atoms z, uniform on [low, high]
    (Bellemare et al. 2017); a constant for gradients.  Mass beyond the atoms is assigned to the outermost ones."""
    return p.tape.emit("project", p.shape, [p, reward, discount], x=low, y=high)
