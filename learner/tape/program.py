"""A finished tape: the checked list of operations in the layout for executors, with packed scratch space."""

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
    scratch_size: int
    """Number of elements in the scratch space."""
    lines: tuple[str, ...]
    """Source line of each operation."""

    @property
    def sizes(self) -> Sizes:
        """Number of elements of state, record and scratch."""
        return np.array([self.state.size, self.record.size, self.scratch_size])


def finish_program(tape: Tape) -> Program:
    """Finish a tape; raise TapeError, with the operation's source line, if an operation is invalid."""
    new_offsets, size = _pack(tape)
    starts = sorted(new_offsets)
    operations = np.array([_encode(e, new_offsets, starts) for e in tape.operations], RECORD)
    program = Program(operations, tape.state, tape.record, size, tuple(e.line for e in tape.operations))
    check(program)
    return program


def _pack(tape: Tape) -> tuple[dict[int, int], int]:
    """Return a map from old to new scratch offsets, and the size; arrays with disjoint lifetimes share memory."""
    starts = [start for start, _ in tape.scratch_arrays]
    lifetimes: dict[int, tuple[int, int]] = {}
    for i, e in enumerate(tape.operations):
        for a in (e.out, *e.inputs):
            if a.space is Space.SCRATCH:
                index = bisect_right(starts, a.offset) - 1
                lifetimes[index] = (lifetimes.get(index, (i, i))[0], i)
    ending_allocations: dict[int, list[int]] = {}
    beginning_allocations: dict[int, list[int]] = {}
    for index, (first, last) in lifetimes.items():
        beginning_allocations.setdefault(first, []).append(index)
        ending_allocations.setdefault(last, []).append(index)
    free_gaps: list[tuple[int, int]] = []
    new_offsets: dict[int, int] = {}
    end = 0
    for i in range(len(tape.operations)):
        for index in beginning_allocations.get(i, ()):
            size = tape.scratch_arrays[index][1]
            fitting_gaps = [gap for gap in free_gaps if gap[1] == size]
            if fitting_gaps:
                free_gaps.remove(fitting_gaps[0])
                new_offsets[index] = fitting_gaps[0][0]
            else:
                new_offsets[index], end = end, end + size
        free_gaps += [(new_offsets[index], tape.scratch_arrays[index][1]) for index in ending_allocations.get(i, ())]
    return {tape.scratch_arrays[index][0]: offset for index, offset in new_offsets.items()}, end


def _encode(e: RecordedOperation, new_offsets: dict[int, int], starts: list[int]) -> tuple[object, ...]:
    spaces, offsets, row_strides, column_strides = [], [], [], []
    has_one_row = _has_one_row(e)
    for a in (e.out, *e.inputs):
        offset = a.offset
        if a.space is Space.SCRATCH:
            start = starts[bisect_right(starts, offset) - 1]
            offset += new_offsets[start] - start
        row, col = _strides(e, a)
        spaces.append(int(a.space))
        offsets.append(offset)
        row_strides.append(0 if has_one_row else row)
        column_strides.append((0 if row == col == 0 else 1) if has_one_row else col)
    n_unused = OPERANDS - len(spaces)
    rows, cols = (1, e.shape[0] * e.shape[1]) if has_one_row else e.shape
    return (
        CODES[e.name],
        e.section,
        rows,
        cols,
        e.inner,
        spaces + [int(Space.NONE)] * n_unused,
        offsets + [0] * n_unused,
        row_strides + [0] * n_unused,
        column_strides + [0] * n_unused,
        e.post,
        e.x,
        e.y,
        e.more,
    )


def _strides(e: RecordedOperation, a: Array) -> tuple[int, int]:
    """Return the strides between the rows and between the columns of an operand, 0 where one is repeated."""
    if OPERATIONS[CODES[e.name]].kind is not Kind.ELEMENTWISE:
        return a.strides
    row, col = (0 if n == 1 else stride for n, stride in zip(a.shape, a.strides, strict=True))
    return row, col


def _has_one_row(e: RecordedOperation) -> bool:
    """Return whether an elementwise operation can be encoded as a single row: all operands are contiguous, or have one
    element."""
    if OPERATIONS[CODES[e.name]].kind is not Kind.ELEMENTWISE:
        return False
    return all(
        a.size == 1 or (a.shape == e.shape and a.is_contiguous and 0 not in a.strides) for a in (e.out, *e.inputs)
    )


def check(program: Program) -> None:
    """Check that operands are inside their spaces, outputs do not overlap inputs, and elements are written before they
    are read.

    Raises TapeError for the first invalid operation.
    """
    operations, sizes = program.operations, program.sizes
    if sizes.max() > MAX_SIZE:
        raise TapeError(f"expected spaces of at most {MAX_SIZE} elements, got {', '.join(map(str, sizes))}")
    found_faults = faults(operations, sizes)
    if found_faults.any():
        number = int(np.flatnonzero(found_faults)[0])
        raise _error(program, number, describe(operations[number], int(found_faults[number]), sizes))
    index = first_uninitialised_read(operations, program.scratch_size)
    if index is not None:
        name = OPERATIONS[int(operations[index]["code"])].name
        raise _error(program, index, f"{name} reads elements that no operation in its section has written")


def _error(program: Program, index: int, problem: str) -> TapeError:
    line = program.lines[index] if index < len(program.lines) else "?"
    return TapeError(f"{line}: operation {index}: {problem}")
