"""The tape: records the operations of an update as it is written, and derives gradients from them.

A gradient is derived by traversing the tape backwards, which appends the operations that compute it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from onrig.learner.tape.array import Array, Gradient, Recorder
from onrig.learner.tape.operations import Space
from onrig.learner.tape.spaces import Field, Group


class Tape(Recorder):
    """One program on the state of a trial and the record of an update.

    ``state`` and ``record`` name the arrays of these spaces; several programs share a state.
    """

    def output(self, field: Field, value: Array) -> None:
        """Report ``value`` in a field of the record."""
        if field.layout is not self.record:
            raise self.error(f"{field.name} is not a field of the record")
        self.emit("copy", field.shape, [value], out=self.read(field))

    def gradient(self, loss: Array, groups: Sequence[Group]) -> list[Array]:
        """Gradient of ``loss`` (1, 1) with respect to the parameters in each group, (1, size); all else is constant.

        Raises TapeError if the loss does not depend on a parameter, or was computed before a step changed one.
        """
        return gradients(loss, groups)

    def mark_changed(self, group: Group) -> None:
        """Mark parameters as changed: gradients no longer pass through results computed with them."""
        changed: set[Array] = {self.read(f) for f in group.fields}
        for y in self.differentiable:
            if any(root_of(d.wrt)[0] in changed for d in y.derivatives):
                changed.add(y)
        self.stale |= changed - {self.read(f) for f in group.fields}


class Part(NamedTuple):
    """Gradient with respect to some columns of an array."""

    g: Gradient
    start: int
    stop: int


def root_of(a: Array) -> tuple[Array, int]:
    """Return the array that contains ``a`` as columns, or ``a`` itself, and its first column there."""
    start = 0
    while a.part_of is not None:
        a, first = a.part_of
        start += first
    return a, start


def gradients(loss: Array, groups: Sequence[Group]) -> list[Array]:
    """Append the gradient of ``loss`` with respect to the parameters in each group: ``Tape.gradient``."""
    tape = loss.tape
    leaves = {tape.read(f): (g, f) for g in groups for f in g.fields}
    active: set[Array] = set(leaves)
    for y in tape.differentiable:
        if any(root_of(d.wrt)[0] in active for d in y.derivatives):
            active.add(y)
    found: dict[Array, list[Part]] = {loss: [Part(1.0, 0, 1)]}
    for y in reversed(tape.differentiable):
        if y not in active or y not in found:
            continue
        if y in tape.stale:
            raise tape.error("a gradient cannot pass through parameters that have changed since their use")
        g = _assemble(y, found.pop(y))
        for d in y.derivatives:
            root, start = root_of(d.wrt)
            if root in active:
                part = d.rule(g)
                if part != 0.0:
                    found.setdefault(root, []).append(Part(part, start, start + d.wrt.shape[1]))
    flats = [tape.scratch_array(g.flat.shape) for g in groups]
    places = [tape.allocation(p.g) for leaf in leaves for p in found.get(leaf, ()) if isinstance(p.g, Array)]
    shared = {place for place, count in Counter(places).items() if count > 1}
    for flat, group in zip(flats, groups, strict=True):
        for f in group.fields:
            parts = found.get(tape.read(f))
            if not parts:
                raise tape.error(f"the loss does not depend on {f.name}")
            _write(Array(tape, Space.SCRATCH, flat.at + f.at - group.flat.at, f.shape), parts, shared)
    return flats


def _assemble(y: Array, parts: Sequence[Part]) -> Gradient:
    """Sum the gradients with respect to ``y`` and to its columns."""
    if all(p.start == 0 and p.stop == y.shape[1] for p in parts):
        g = parts[0].g
        for p in parts[1:]:
            g = _sum(g, p.g, y)
    else:
        g = _join(y, parts)
    masked = all(isinstance(p.g, Array) and p.g.masked_by is y for p in parts)
    if not y.is_relu or masked:
        return g
    return y.tape.elementwise("where_positive", [y, y.tape.expand(g, y.shape)], [])


def _sum(a: Gradient, b: Gradient, y: Array) -> Gradient:
    if isinstance(a, float) and isinstance(b, float):
        return a + b
    return y.tape.elementwise("add", [y.tape.expand(a, y.shape), y.tape.expand(b, y.shape)], [])


def _join(like: Array, parts: Sequence[Part]) -> Array:
    """Combine gradients with respect to columns of an array into one."""
    tape, shape = like.tape, like.shape
    out = tape.scratch_array(shape)
    covered = sorted((p.start, p.stop) for p in parts)
    exact = covered[0][0] == 0 and covered[-1][1] == shape[1]
    exact = exact and all(a[1] == b[0] for a, b in itertools.pairwise(covered))
    if not exact:
        tape.emit("fill", shape, [], out=out, x=0.0)
    for p in parts:
        into = out.columns(p.start, p.stop)
        g = tape.expand(p.g, into.shape)
        if exact:
            tape.emit("copy", into.shape, [g], out=into)
        else:
            tape.emit("add_scaled", into.shape, [g], out=into, x=1.0)
    return out


def _write(into: Array, parts: Sequence[Part], shared: Collection[int]) -> None:
    """Write the sum of gradients with respect to a parameter.

    The operation that computed the first one writes it directly, unless it is ``shared`` with another.
    """
    tape = into.tape
    first, *rest = (p.g for p in parts)
    if any(p.stop - p.start != into.shape[1] for p in parts):
        first, rest = _join(into, parts), []
    if isinstance(first, float):
        tape.emit("fill", into.shape, [], out=into, x=first)
    elif not _redirect(first, into, shared):
        tape.emit("copy", into.shape, [first], out=into)
    for g in rest:
        tape.emit("add_scaled", into.shape, [tape.expand(g, into.shape)], out=into, x=1.0)


def _redirect(g: Array, into: Array, kept: Collection[int]) -> bool:
    """Redirect the only operation that writes ``g`` to ``into``, if no other operation reads ``g``.

    ``kept``: allocations that must not change.
    """
    if g.space is not Space.SCRATCH or g.shape != into.shape or not g.is_contiguous:
        return False
    tape = g.tape
    place = tape.allocation(g)
    writes = [i for i, e in enumerate(tape.emitted) if tape.allocation(e.out) == place]
    reads = any(tape.allocation(a) == place for e in tape.emitted for a in e.inputs)
    if place in kept or reads or len(writes) != 1 or tape.emitted[writes[0]].out is not g:
        return False
    tape.emitted[writes[0]] = tape.emitted[writes[0]]._replace(out=into)
    return True
