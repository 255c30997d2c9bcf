"""The tape: records the operations of an update as it is written, and derives gradients from them."""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from onrig.learner.tape.array import Array, Derivative, Gradient
from onrig.learner.tape.operations import Space
from onrig.learner.tape.spaces import Field, Group, Layout

ALIGN: Final = 16
"""Arrays begin at multiples of as many elements."""
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
    """Where it was written: ``file:line``."""


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
        self._produced: list[Array] = []
        """Arrays through which gradients pass, in the order in which they were computed."""
        self._stale: set[Array] = set()
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
        """An array of one number."""
        return self.emit("fill", shape, [], x=value)

    def full(self, g: Gradient, shape: tuple[int, int]) -> Array:
        """A gradient as an array, of one element where all are equal."""
        return self.filled((1, 1), g) if isinstance(g, float) else g

    def whole(self, a: Array) -> Array:
        """``a``, or a contiguous copy of it."""
        return a if a.is_contiguous else self.emit("copy", a.shape, [a])

    def error(self, what: str) -> TapeError:
        """An error at the line of the algorithm that is being traced."""
        return TapeError(f"{_line()}: {what}")

    # Operations

    @contextmanager
    def section(self, number: int) -> Iterator[None]:
        """Operations written within run only in updates that ask for this section (1 to 31)."""
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
        """Note how gradients pass ``out``, and return it."""
        out.derivatives = derivatives
        self._produced.append(out)
        return out

    def _fitted(self, a: Array, g: Gradient, shape: tuple[int, int]) -> Gradient:
        """Sum a gradient over what was repeated of ``a``."""
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
        """x weight + bias, with relu units behind it where wanted: (rows, in) (in, out) + (1, out)."""
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
        """Columns of all parts, one behind the other."""
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
        leaves = {self.read(f): (g, f) for g in groups for f in g.fields}
        active: set[Array] = set(leaves)
        for y in self._produced:
            if any(root_of(d.towards)[0] in active for d in y.derivatives):
                active.add(y)
        found: dict[Array, list[Part]] = {loss: [Part(1.0, 0, 1)]}
        for y in reversed(self._produced):
            if y not in active or y not in found:
                continue
            if y in self._stale:
                raise self.error("a gradient through parameters that have changed since they were used")
            g = self._assembled(y, found.pop(y))
            for d in y.derivatives:
                root, start = root_of(d.towards)
                if root in active:
                    part = d.rule(g)
                    if part != 0.0:
                        found.setdefault(root, []).append(Part(part, start, start + d.towards.shape[1]))
        flats = [self.scratch_array(g.flat.shape) for g in groups]
        places = [self._allocation(p.g) for leaf in leaves for p in found.get(leaf, ()) if isinstance(p.g, Array)]
        shared = {place for place, count in Counter(places).items() if count > 1}
        for flat, group in zip(flats, groups, strict=True):
            for f in group.fields:
                parts = found.get(self.read(f))
                if not parts:
                    raise self.error(f"the loss does not depend on {f.name}")
                self._written(Array(self, Space.SCRATCH, flat.at + f.at - group.flat.at, f.shape), parts, shared)
        return flats

    def _assembled(self, y: Array, parts: Sequence[Part]) -> Gradient:
        """Sum of the gradients by ``y`` and by columns of it."""
        if all(p.start == 0 and p.stop == y.shape[1] for p in parts):
            g = parts[0].g
            for p in parts[1:]:
                g = self._sum(g, p.g, y.shape)
        else:
            g = self._joined(y.shape, parts)
        masked = all(isinstance(p.g, Array) and p.g.masked_by is y for p in parts)
        return self.elementwise("where_positive", [y, self.full(g, y.shape)], []) if y.is_relu and not masked else g

    def _sum(self, a: Gradient, b: Gradient, shape: tuple[int, int]) -> Gradient:
        if isinstance(a, float) and isinstance(b, float):
            return a + b
        return self.elementwise("add", [self.full(a, shape), self.full(b, shape)], [])

    def _joined(self, shape: tuple[int, int], parts: Sequence[Part]) -> Array:
        out = self.scratch_array(shape)
        covered = sorted((p.start, p.stop) for p in parts)
        exact = covered[0][0] == 0 and covered[-1][1] == shape[1]
        if not (exact and all(a[1] == b[0] for a, b in itertools.pairwise(covered))):
            self.emit("fill", shape, [], out=out, x=0.0)
            exact = False
        else:
            exact = True
        for p in parts:
            into = out.columns(p.start, p.stop)
            g = self.full(p.g, into.shape)
            if exact:
                self.emit("copy", into.shape, [g], out=into)
            else:
                self.emit("add_scaled", into.shape, [g], out=into, x=1.0)
        return out

    def _written(self, into: Array, parts: Sequence[Part], shared: Collection[int]) -> None:
        """Write the sum of gradients by a parameter; the first by the operation that computed it, unless it is
        ``shared`` with another."""
        first, *rest = (p.g for p in parts)
        if any(p.stop - p.start != into.shape[1] for p in parts):
            first, rest = self._joined(into.shape, parts), []
        if isinstance(first, float):
            self.emit("fill", into.shape, [], out=into, x=first)
        elif not self._redirected(first, into, shared):
            self.emit("copy", into.shape, [first], out=into)
        for g in rest:
            self.emit("add_scaled", into.shape, [self.full(g, into.shape)], out=into, x=1.0)

    def _redirected(self, g: Array, into: Array, kept: Collection[int]) -> bool:
        """Let the only operation that writes ``g``, which nothing else reads, write ``into`` instead.

        ``kept``: allocations that must stay as they are.
        """
        if g.space is not Space.SCRATCH or g.shape != into.shape or not g.is_contiguous:
            return False
        place = self._allocation(g)
        writes = [i for i, e in enumerate(self.emitted) if self._allocation(e.out) == place]
        reads = any(self._allocation(a) == place for e in self.emitted for a in e.inputs)
        if place in kept or reads or len(writes) != 1 or self.emitted[writes[0]].out is not g:
            return False
        self.emitted[writes[0]] = self.emitted[writes[0]]._replace(out=into)
        return True

    def _allocation(self, a: Array) -> int:
        """Number of the scratch array that holds ``a``; -1 outside of the scratch."""
        return bisect_right(self._starts, a.at) - 1 if a.space is Space.SCRATCH else -1

    def moved(self, group: Group) -> None:
        """Note that parameters have changed: gradients no longer pass what was computed with them."""
        changed: set[Array] = {self.read(f) for f in group.fields}
        for y in self._produced:
            if any(root_of(d.towards)[0] in changed for d in y.derivatives):
                changed.add(y)
        self._stale |= changed - {self.read(f) for f in group.fields}


class Part(NamedTuple):
    """A gradient by some columns of an array."""

    g: Gradient
    start: int
    stop: int


def root_of(a: Array) -> tuple[Array, int]:
    """The array that ``a`` is columns of, or itself, and its first column there."""
    start = 0
    while a.part_of is not None:
        a, first = a.part_of
        start += first
    return a, start


def _line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
