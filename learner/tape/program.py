"""A finished tape: the list of operations in the layout that executors run, its scratch packed, everything checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.array import Array
from onrig.learner.tape.operations import CODES, OPERANDS, OPERATIONS, RECORD, Kind, Space
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Emitted, Tape, TapeError

MOST: Final = 1 << 30
"""Elements of a space, at most: places are 32-bit numbers."""


@dataclass(frozen=True)
class Program:
    """Operations on the state of a trial and on the record of an update."""

    operations: NDArray[np.void]
    """(n,) of ``RECORD``."""
    state: Layout
    record: Layout
    scratch: int
    """Elements."""
    lines: tuple[str, ...]
    """Where each operation was written."""


def program_of(tape: Tape) -> Program:
    """Finish a tape; raises TapeError, with the line that wrote an operation, if one is not valid."""
    places, size = _packed(tape)
    operations = np.array([_encoded(e, places) for e in tape.emitted], RECORD)
    program = Program(operations, tape.state, tape.record, size, tuple(e.line for e in tape.emitted))
    check(program)
    return program


def _packed(tape: Tape) -> tuple[dict[int, int], int]:
    """New places of the arrays of the scratch, by their old ones, and its size: those not alive together share."""
    starts = np.array([start for start, _ in tape.scratch] or [0])
    lives: dict[int, tuple[int, int]] = {}
    for i, e in enumerate(tape.emitted):
        for a in (e.out, *e.inputs):
            if a.space is Space.SCRATCH:
                which = int(np.searchsorted(starts, a.at, side="right")) - 1
                lives[which] = (lives.get(which, (i, i))[0], i)
    ends: dict[int, list[int]] = {}
    begins: dict[int, list[int]] = {}
    for which, (first, last) in lives.items():
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


def _encoded(e: Emitted, places: dict[int, int]) -> tuple[object, ...]:
    starts = sorted(places)
    spaces, ats, by_row, by_col = [], [], [], []
    flat = _flattened(e)
    for a in (e.out, *e.inputs):
        at = a.at
        if a.space is Space.SCRATCH:
            start = starts[np.searchsorted(starts, at, side="right") - 1]
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


def _strides(e: Emitted, a: Array) -> tuple[int, int]:
    """Distances between the rows and between the columns of an operand, 0 where one is repeated."""
    if OPERATIONS[CODES[e.name]].kind is not Kind.ELEMENTWISE:
        return a.strides
    row, col = (0 if n == 1 else stride for n, stride in zip(a.shape, a.strides, strict=True))
    return row, col


def _flattened(e: Emitted) -> bool:
    """Whether an elementwise operation is one over a single row: all operands are contiguous, or of one element."""
    if OPERATIONS[CODES[e.name]].kind is not Kind.ELEMENTWISE:
        return False
    return all(
        a.size == 1 or (a.shape == e.shape and a.is_contiguous and 0 not in a.strides) for a in (e.out, *e.inputs)
    )


def check(program: Program) -> None:
    """Check that all that the operations touch is inside its space, and that what they write is not read askew.

    Raises TapeError with the first operation that is not valid.
    """
    for number, op in enumerate(program.operations):
        problem = problem_of(op, _sizes(program))
        if problem is not None:
            line = program.lines[number] if number < len(program.lines) else "?"
            raise TapeError(f"{line}: operation {number}: {problem}")


def _sizes(program: Program) -> dict[int, int]:
    return {
        int(Space.STATE): program.state.size,
        int(Space.RECORD): program.record.size,
        int(Space.SCRATCH): program.scratch,
    }


def problem_of(op: np.void, sizes: dict[int, int]) -> str | None:
    """What is wrong with one operation; None if nothing is."""
    code = int(op["code"])
    if not 0 <= code < len(OPERATIONS):
        return f"unknown code {code}"
    operation = OPERATIONS[code]
    rows, cols, inner, section = (int(op[key]) for key in ("rows", "cols", "inner", "section"))
    name = operation.name
    if not (rows >= 1 and cols >= 1 and rows * cols <= MOST and 0 <= inner <= MOST and 0 <= section < 32):
        return f"{name} of {rows} rows, {cols} columns, inner {inner}, section {section}"
    if name in ("fold", "tile") and (inner < 1 or cols % inner):
        return f"{name} of {cols} columns in blocks of {inner}"
    if name == "project" and cols < 2:
        return f"{name} onto {cols} atom"
    post = int(op["post"])
    if post not in {"product": (0, 1), "product_nt": (0, 2)}.get(name, (0,)):
        return f"{name} followed by {post}"
    shapes = _shapes(name, operation.kind, rows, cols, inner, post)
    used = [int(space) != Space.NONE for space in op["space"]]
    if used != [i < len(shapes) for i in range(OPERANDS)]:
        return f"{name} with other than {len(shapes)} operands"
    spans = []
    for i, shape in enumerate(shapes):
        space, at, row, col = (int(op[key][i]) for key in ("space", "at", "by_row", "by_col"))
        last = at + (shape[0] - 1) * row + (shape[1] - 1) * col
        if space not in sizes:
            return f"{name} in unknown space {space}"
        if at < 0 or row < 0 or col < 0 or max(row, col) > MOST or last >= sizes[space]:
            return f"{name}: operand {i} reaches {last} of {sizes[space]}"
        if (i == 0 or operation.kind is not Kind.ELEMENTWISE) and not _is_plain(name, i, shape, row, col):
            return f"{name}: operand {i} is not laid out row by row"
        if operation.kind is Kind.ELEMENTWISE and col > 1:
            return f"{name}: elements of operand {i} are {col} apart"
        spans.append((space, at, last, row, col))
    for space, at, last, row, col in spans[1:]:
        out = spans[0]
        overlaps = space == out[0] and at <= out[2] and out[1] <= last
        same = operation.kind is Kind.ELEMENTWISE and (at, row, col) == (out[1], out[3], out[4])
        if overlaps and not same and _interleaved(out, (space, at, last, row, col)):
            return f"{name} overwrites what it reads"
    return None


def shapes_of(op: np.void) -> Sequence[tuple[int, int]]:
    """Shapes of output and inputs of an operation."""
    operation, inner, post = OPERATIONS[int(op["code"])], int(op["inner"]), int(op["post"])
    return _shapes(operation.name, operation.kind, int(op["rows"]), int(op["cols"]), inner, post)


def _shapes(name: str, kind: Kind, rows: int, cols: int, inner: int, post: int) -> Sequence[tuple[int, int]]:
    whole = (rows, cols)
    match name:
        case "product":
            return whole, (rows, inner), (inner, cols), (1, cols)
        case "product_nt":
            return (whole, (rows, inner), (cols, inner), *((whole,) if post == 2 else ()))
        case "product_tn":
            return whole, (inner, rows), (inner, cols)
        case "adam":
            return (1, cols), (1, cols), (1, 2 * cols + 1), (1, 1)
        case "fold":
            return (rows, inner), whole
        case "tile":
            return whole, (rows, inner)
        case "project":
            return whole, whole, (rows, 1), (rows, 1)
    out = {Kind.ROWS: (rows, 1), Kind.COLUMNS: (1, cols), Kind.ALL: (1, 1)}.get(kind, whole)
    return (out, *((whole,) * OPERATIONS[CODES[name]].operands))


def _is_plain(name: str, i: int, shape: tuple[int, int], row: int, col: int) -> bool:
    """Whether an operand is laid out as kernels expect it: elements of a row next to one another, rows apart."""
    if name == "product" and i == 1:
        return True  # kernels read it by strides
    return (shape[1] == 1 or col == 1) and (shape[0] == 1 or row >= shape[1])


def _interleaved(out: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two operands share elements: columns of the same rows may lie side by side."""
    (_, at, _, row, _), (_, begin, _, step, _) = out, other
    if row == step and row > 0:
        return not _apart((begin - at) % row, out, other)
    return True


def _apart(offset: int, out: tuple[int, ...], other: tuple[int, ...]) -> bool:
    def width(span: tuple[int, ...]) -> int:
        _, at, last, row, _ = span
        return (last - at) % row + 1

    return offset >= width(out) and offset + width(other) <= out[3]
