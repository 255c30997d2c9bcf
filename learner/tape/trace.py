"""The tape, which records the operations of an update and derives gradients from them.

A gradient is derived by traversing the tape backwards and appending the operations that compute it.
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
        """Return the gradients of ``loss`` (1, 1) with respect to the parameters in each group, (1, size); all else is
        constant.

        Raises TapeError if the loss does not depend on a parameter, or was computed before a step changed a parameter.
        """
        return gradients(loss, groups)

    def mark_changed(self, group: Group) -> None:
        """Mark parameters as changed: gradients no longer pass through results computed with them."""
        changed_arrays: set[Array] = {self.read(f) for f in group.fields}
        for y in self.differentiable_arrays:
            if any(root_of(d.wrt)[0] in changed_arrays for d in y.derivatives):
                changed_arrays.add(y)
        self.stale_arrays |= changed_arrays - {self.read(f) for f in group.fields}


class PartialGradient(NamedTuple):
    """Gradient with respect to some columns of an array."""

    g: Gradient
    start: int
    stop: int


def root_of(a: Array) -> tuple[Array, int]:
    """Return the array that contains ``a`` as columns, or ``a`` itself, and the first of these columns."""
    start = 0
    while a.part_of is not None:
        a, first = a.part_of
        start += first
    return a, start


def gradients(loss: Array, groups: Sequence[Group]) -> list[Array]:
    """Append the gradients of ``loss`` with respect to the parameters in each group; see ``Tape.gradient``."""
    tape = loss.tape
    leaves = {tape.read(f): (g, f) for g in groups for f in g.fields}
    depends_on_parameters: set[Array] = set(leaves)
    for y in tape.differentiable_arrays:
        if any(root_of(d.wrt)[0] in depends_on_parameters for d in y.derivatives):
            depends_on_parameters.add(y)
    parts_by_array: dict[Array, list[PartialGradient]] = {loss: [PartialGradient(1.0, 0, 1)]}
    for y in reversed(tape.differentiable_arrays):
        if y not in depends_on_parameters or y not in parts_by_array:
            continue
        if y in tape.stale_arrays:
            raise tape.error("a gradient cannot pass through parameters that have changed since their use")
        g = _assemble(y, parts_by_array.pop(y))
        for d in y.derivatives:
            root, start = root_of(d.wrt)
            if root in depends_on_parameters:
                part_gradient = d.rule(g)
                if part_gradient != 0.0:
                    parts_by_array.setdefault(root, []).append(
                        PartialGradient(part_gradient, start, start + d.wrt.shape[1])
                    )
    flat_gradients = [tape.scratch_array(g.flat_field.shape) for g in groups]
    allocations = [
        tape.allocation(p.g) for leaf in leaves for p in parts_by_array.get(leaf, ()) if isinstance(p.g, Array)
    ]
    shared_allocations = {allocation for allocation, count in Counter(allocations).items() if count > 1}
    for flat_gradient, group in zip(flat_gradients, groups, strict=True):
        for f in group.fields:
            parts = parts_by_array.get(tape.read(f))
            if not parts:
                raise tape.error(f"the loss does not depend on {f.name}")
            _write(
                Array(tape, Space.SCRATCH, flat_gradient.offset + f.offset - group.flat_field.offset, f.shape),
                parts,
                shared_allocations,
            )
    return flat_gradients


def _assemble(y: Array, parts: Sequence[PartialGradient]) -> Gradient:
    """Sum the gradients with respect to ``y`` and with respect to its columns."""
    if all(p.start == 0 and p.stop == y.shape[1] for p in parts):
        g = parts[0].g
        for p in parts[1:]:
            g = _sum(g, p.g, y)
    else:
        g = _join(y, parts)
    is_masked = all(isinstance(p.g, Array) and p.g.applied_mask is y for p in parts)
    if not y.is_relu or is_masked:
        return g
    return y.tape.elementwise("where_positive", [y, y.tape.expand(g, y.shape)], [])


def _sum(a: Gradient, b: Gradient, y: Array) -> Gradient:
    if isinstance(a, float) and isinstance(b, float):
        return a + b
    return y.tape.elementwise("add", [y.tape.expand(a, y.shape), y.tape.expand(b, y.shape)], [])


def _join(target: Array, parts: Sequence[PartialGradient]) -> Array:
    """Combine gradients with respect to columns of an array into one."""
    tape, shape = target.tape, target.shape
    out = tape.scratch_array(shape)
    intervals = sorted((p.start, p.stop) for p in parts)
    is_partition = intervals[0][0] == 0 and intervals[-1][1] == shape[1]
    is_partition = is_partition and all(a[1] == b[0] for a, b in itertools.pairwise(intervals))
    if not is_partition:
        tape.emit("fill", shape, [], out=out, x=0.0)
    for p in parts:
        destination = out.columns(p.start, p.stop)
        g = tape.expand(p.g, destination.shape)
        if is_partition:
            tape.emit("copy", destination.shape, [g], out=destination)
        else:
            tape.emit("add_scaled", destination.shape, [g], out=destination, x=1.0)
    return out


def _write(destination: Array, parts: Sequence[PartialGradient], shared_allocations: Collection[int]) -> None:
    """Write the sum of gradients with respect to a parameter.

    The operation that computed the first gradient writes it directly, unless its array is in ``shared_allocations``.
    """
    tape = destination.tape
    first_gradient, *other_gradients = (p.g for p in parts)
    if any(p.stop - p.start != destination.shape[1] for p in parts):
        first_gradient, other_gradients = _join(destination, parts), []
    if isinstance(first_gradient, float):
        tape.emit("fill", destination.shape, [], out=destination, x=first_gradient)
    elif not _redirect(first_gradient, destination, shared_allocations):
        tape.emit("copy", destination.shape, [first_gradient], out=destination)
    for g in other_gradients:
        tape.emit("add_scaled", destination.shape, [tape.expand(g, destination.shape)], out=destination, x=1.0)


def _redirect(g: Array, destination: Array, fixed_allocations: Collection[int]) -> bool:
    """Redirect the only operation that writes ``g`` to ``destination`` if no operation reads ``g``; return whether it
    was done.

    ``fixed_allocations``: allocations that must not change.
    """
    if g.space is not Space.SCRATCH or g.shape != destination.shape or not g.is_contiguous:
        return False
    tape = g.tape
    allocation = tape.allocation(g)
    write_indices = [i for i, e in enumerate(tape.operations) if tape.allocation(e.out) == allocation]
    is_read = any(tape.allocation(a) == allocation for e in tape.operations for a in e.inputs)
    if (
        allocation in fixed_allocations
        or is_read
        or len(write_indices) != 1
        or tape.operations[write_indices[0]].out is not g
    ):
        return False
    tape.operations[write_indices[0]] = tape.operations[write_indices[0]]._replace(out=destination)
    return True
