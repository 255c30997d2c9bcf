"""The tape: records the operations of an update as it is written, and derives gradients from them."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from onrig.learner.tape.array import Array, Derivative, Gradient
from onrig.learner.tape.gradients import gradients, root_of
from onrig.learner.tape.operations import Space
from onrig.learner.tape.spaces import Field, Group, Layout

ALIGN: Final = 16
"""Alignment of arrays in elements."""
_HERE: Final = str(Path(__file__).parent)
Rule = Callable[[Gradient, Array], Gradient]


class TapeError(Exception):
    """An update that cannot be traced; the message names the operation and the line that wrote it."""


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


class Tape:
    """One program over the state of a trial and the record of an update.

    ``state`` and ``record`` name the arrays of these spaces; several programs share a state.
    """

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
        return TapeError(f"{_line()}: {what}")

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
            Emitted(name, self._section, out, tuple(inputs), of or shape, inner, post, x, y, more, _line())
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

    def dense(self, x: Array, weight: Array, bias: Array, *, relu: bool = False) -> Array:
        """x weight + bias, optionally followed by relu units: (rows, in) (in, out) + (1, out)."""
        (rows, inner), cols = x.shape, weight.shape[1]
        if weight.shape[0] != inner or bias.shape != (1, cols):
            raise self.error(f"a layer of {x.shape}, weights {weight.shape} and biases {bias.shape}")
        out = self.emit("product", (rows, cols), [x, weight, bias], inner=inner, post=int(relu))
        out.is_relu = relu

        def towards_x(g: Gradient) -> Array:
            g = self._materialised(g, out.shape)
            mask = [x] if x.is_relu else []
            back = self.emit("product_nt", x.shape, [g, weight, *mask], inner=cols, post=2 if mask else 0)
            back.masked_by = x if mask else None
            return back

        def towards_weight(g: Gradient) -> Array:
            return self.emit("product_tn", weight.shape, [x, self._materialised(g, out.shape)], inner=rows)

        def towards_bias(g: Gradient) -> Array:
            return self._materialised(g, out.shape).column_sums()

        return self.produced(
            out, [Derivative(x, towards_x), Derivative(weight, towards_weight), Derivative(bias, towards_bias)]
        )

    def _materialised(self, g: Gradient, shape: tuple[int, int]) -> Array:
        if isinstance(g, float):
            return self.filled(shape, g)
        return g if g.is_contiguous and g.shape == shape else self.emit("copy", shape, [g])

    def concatenated(self, *parts: Array) -> Array:
        """Columns of all parts, concatenated."""
        rows, starts = parts[0].shape[0], [0]
        for part in parts:
            if part.shape[0] != rows:
                raise self.error(f"columns of arrays {' and '.join(str(p.shape) for p in parts)}")
            starts.append(starts[-1] + part.shape[1])
        out = self.scratch_array((rows, starts[-1]))
        for part, start in zip(parts, starts, strict=False):
            self.emit("copy", part.shape, [part], out=out.columns(start, start + part.shape[1]))

        def cut(start: int, stop: int) -> Callable[[Gradient], Gradient]:
            return lambda g: g if isinstance(g, float) else g.columns(start, stop).detached()

        return self.produced(out, [Derivative(p, cut(a, a + p.shape[1])) for p, a in zip(parts, starts, strict=False)])

    def output(self, field: Field, value: Array) -> None:
        """Report ``value`` in a field of the record."""
        if field.layout is not self.record:
            raise self.error(f"{field.name} is no field of the record")
        self.emit("copy", field.shape, [value], out=self.read(field))

    # Gradients

    def gradient(self, loss: Array, groups: Sequence[Group]) -> list[Array]:
        """Gradient of ``loss`` (1, 1) by the parameters in each group, (1, size); all else is constant.

        Raises TapeError where the loss does not depend on a parameter, or was computed before a step changed one.
        """
        return gradients(loss, groups)

    def allocation(self, a: Array) -> int:
        """Number of the scratch array that holds ``a``; -1 outside of the scratch."""
        return bisect_right(self._starts, a.at) - 1 if a.space is Space.SCRATCH else -1

    def moved(self, group: Group) -> None:
        """Mark parameters as changed: gradients no longer pass results computed with them."""
        changed: set[Array] = {self.read(f) for f in group.fields}
        for y in self.passing:
            if any(root_of(d.towards)[0] in changed for d in y.derivatives):
                changed.add(y)
        self.stale |= changed - {self.read(f) for f in group.fields}


def _line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
