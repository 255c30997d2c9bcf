"""A finished tape: the list of operations in the layout for executors, with packed scratch space, fully checked."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.array import Array, RecordedOperation
from onrig.learner.tape.checks import MAX_SIZE, Sizes, describe, faults, first_uninitialised_read
from onrig.learner.tape.operations import CODES, OPERANDS, OPERATIONS, RECORD, Kind, Space, TapeError
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape


@dataclass(frozen=True)
class Program:
    """Operations on the state of a trial and on the record of an update."""

    operations: NDArray[np.void]
    """(n,) of ``RECORD``."""
    state: Layout
    record: Layout
    scratch: int
    """Number of elements."""
    lines: tuple[str, ...]
    """Source line of each operation."""

    @property
    def sizes(self) -> Sizes:
        """Number of elements of state, record and scratch."""
        return np.array([self.state.size, self.record.size, self.scratch])


def program_of(tape: Tape) -> Program:
    """Finish a tape; raises TapeError, with the source line of the operation, if one is invalid."""
    places, size = _pack(tape)
    starts = sorted(places)
    operations = np.array([_encode(e, places, starts) for e in tape.emitted], RECORD)
    program = Program(operations, tape.state, tape.record, size, tuple(e.line for e in tape.emitted))
    check(program)
    return program


def _pack(tape: Tape) -> tuple[dict[int, int], int]:
    """Map old scratch offsets to new ones, and return the size; arrays with disjoint lifetimes share memory."""
    starts = [start for start, _ in tape.scratch]
    lifetimes: dict[int, tuple[int, int]] = {}
    for i, e in enumerate(tape.emitted):
        for a in (e.out, *e.inputs):
            if a.space is Space.SCRATCH:
                which = bisect_right(starts, a.at) - 1
                lifetimes[which] = (lifetimes.get(which, (i, i))[0], i)
    ends: dict[int, list[int]] = {}
    begins: dict[int, list[int]] = {}
    for which, (first, last) in lifetimes.items():
        begins.setdefault(first, []).append(which)
        ends.setdefault(last, []).append(which)
    free: list[tuple[int, int]] = []
    new: dict[int, int] = {}
    top = 0
    for i in range(len(tape.emitted)):
        for which in begins.get(i, ()):
            size = tape.scratch[which][1]
            fits = [gap for gap in free if gap[1] == size]
            if fits:
                free.remove(fits[0])
                new[which] = fits[0][0]
            else:
                new[which], top = top, top + size
        free += [(new[which], tape.scratch[which][1]) for which in ends.get(i, ())]
    return {tape.scratch[which][0]: place for which, place in new.items()}, top


def _encode(e: RecordedOperation, places: dict[int, int], starts: list[int]) -> tuple[object, ...]:
    spaces, ats, by_row, by_col = [], [], [], []
    flat = _has_one_row(e)
    for a in (e.out, *e.inputs):
        at = a.at
        if a.space is Space.SCRATCH:
            start = starts[bisect_right(starts, at) - 1]
            at += places[start] - start
        row, col = _strides(e, a)
        spaces.append(int(a.space))
        ats.append(at)
        by_row.append(0 if flat else row)
        by_col.append((0 if row == col == 0 else 1) if flat else col)
    pad = OPERANDS - len(spaces)
    rows, cols = (1, e.shape[0] * e.shape[1]) if flat else e.shape
    return (
        CODES[e.name],
        e.section,
        rows,
        cols,
        e.inner,
        spaces + [int(Space.NONE)] * pad,
        ats + [0] * pad,
        by_row + [0] * pad,
        by_col + [0] * pad,
        e.post,
        e.x,
        e.y,
        e.more,
    )


def _strides(e: RecordedOperation, a: Array) -> tuple[int, int]:
    """Strides between the rows and between the columns of an operand, 0 where one is repeated."""
    if OPERATIONS[CODES[e.name]].kind is not Kind.ELEMENTWISE:
        return a.strides
    row, col = (0 if n == 1 else stride for n, stride in zip(a.shape, a.strides, strict=True))
    return row, col


def _has_one_row(e: RecordedOperation) -> bool:
    """Whether an elementwise operation has a single row: all operands are contiguous, or have one element."""
    if OPERATIONS[CODES[e.name]].kind is not Kind.ELEMENTWISE:
        return False
    return all(
        a.size == 1 or (a.shape == e.shape and a.is_contiguous and 0 not in a.strides) for a in (e.out, *e.inputs)
    )


def check(program: Program) -> None:
    """Check that operands are inside their spaces, outputs do not overlap inputs, and elements are written before
    reading.

    Raises TapeError for the first invalid operation.
    """
    operations, sizes = program.operations, program.sizes
    if sizes.max() > MAX_SIZE:
        raise TapeError(f"expected spaces of at most {MAX_SIZE} elements, got {', '.join(map(str, sizes))}")
    found = faults(operations, sizes)
    if found.any():
        number = int(np.flatnonzero(found)[0])
        raise _error(program, number, describe(operations[number], int(found[number]), sizes))
    early = first_uninitialised_read(operations, program.scratch)
    if early is not None:
        name = OPERATIONS[int(operations[early]["code"])].name
        raise _error(program, early, f"{name} reads elements that no operation in its section has written")


def _error(program: Program, number: int, problem: str) -> TapeError:
    line = program.lines[number] if number < len(program.lines) else "?"
    return TapeError(f"{line}: operation {number}: {problem}")
