"""Random lists of operations in their packed form, valid ones and mutants, and what makes an operation safe to run.

The lists of a batch have equally many operations; the first of each fills its scratch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.checks import faults, first_uninitialised_read, read_operands
from onrig.learner.tape.operations import CODES, MASKED, OPERANDS, OPERATIONS, RECORD, Kind, Space, operand_shapes

Ints = NDArray[np.int64]
_ELEMENTWISE: Final = np.array([o.kind is Kind.ELEMENTWISE for o in OPERATIONS])
_ODD: Final = np.array([0, 1, -1, 2, 3, 7, 16, 17, 31, 32, 255, 1 << 16, 1 << 30, (1 << 31) - 1, -(1 << 31)])
"""What a mutation sets a number to."""
_INTEGERS: Final = 5 + 4 * OPERANDS + 1
"""32-bit numbers of an operation, before its constants."""


class Lists(NamedTuple):
    """N lists of L operations."""

    operations: NDArray[np.void]
    """(N, L) of ``RECORD``."""
    sizes: Ints
    """Elements of state, record and scratch, (N, 3)."""


def drawn(rng: np.random.Generator, count: int, length: int) -> Lists:
    """Valid lists of all kinds of operations, with odd sizes, views of columns, turned and repeated operands, and
    operations in place; a space ends with the last element that an operand uses."""
    ops = np.zeros((count, length), RECORD)
    ops[:, 1:] = _shaped(rng, count * (length - 1)).reshape(count, length - 1)
    sizes = _placed(rng, ops)
    fill = ops[:, 0]
    fill["code"], fill["rows"], fill["cols"] = CODES["fill"], 1, sizes[:, Space.SCRATCH]
    fill["space"], fill["at"], fill["by_row"], fill["by_col"] = Space.NONE, 0, 0, 0
    fill["space"][:, 0], fill["by_col"][:, 0], fill["x"] = Space.SCRATCH, 1, rng.normal(size=count)
    return Lists(ops, sizes)


def _shaped(rng: np.random.Generator, n: int) -> NDArray[np.void]:
    """Operations without places: mostly small, some around the widths of vectors and tiles and beyond."""
    ops, chance = np.zeros(n, RECORD), rng.random((3, n))
    code = ops["code"] = rng.integers(0, len(OPERATIONS), n)
    small, middle, large = (rng.integers(*bounds, (3, n)) for bounds in ((1, 10), (8, 36), (36, 80)))
    rows, cols, inner = np.where(chance < 0.75, small, np.where(chance < 0.97, middle, large))
    in_blocks = np.isin(code, [CODES["fold"], CODES["tile"]])
    inner = np.where(in_blocks, np.minimum(inner, 20), inner)
    cols = np.where(in_blocks, inner * rng.integers(1, 5, n), cols)
    ops["rows"], ops["cols"], ops["inner"] = rows, np.maximum(cols, 1 + (code == CODES["project"])), inner
    ops["section"] = np.where(rng.random(n) < 0.8, 0, rng.integers(1, 32, n))
    after = np.array([max(o.posts) for o in OPERATIONS])[code]
    ops["post"] = np.where(rng.random(n) < 0.5, after, 0)
    x, y = np.sort(rng.normal(size=(2, n)), axis=0)
    ops["x"] = np.where(code == CODES["drop"], np.abs(np.tanh(x)), x)
    ops["y"] = np.where(np.isin(code, [CODES["standardise"], CODES["standardise_slope"]]), 0.1 + np.abs(y), y)
    ops["more"] = rng.random((n, 2))
    _add_windows(rng, ops)
    return ops


def _add_windows(rng: np.random.Generator, ops: NDArray[np.void]) -> None:
    """Give images and patches their sizes."""
    for back, name in enumerate(("patches", "patches_slope")):
        which = np.flatnonzero(ops["code"] == CODES[name])
        side, stride, channels = (rng.integers(1, top, len(which)) for top in (4, 4, 3))
        height, width = side + rng.integers(0, 5, (2, len(which)))
        windows = ((height - side) // stride + 1) * ((width - side) // stride + 1)
        sizes = windows * side * side * channels, height * width * channels
        ops["cols"][which], ops["inner"][which] = sizes[back], sizes[1 - back]
        ops["x"][which], ops["y"][which], ops["more"][which] = side, stride, np.stack((height, width), axis=1)


def _strides(rng: np.random.Generator, code: Ints, i: int, height: Ints, width: Ints) -> tuple[Ints, Ints]:
    """Distances that an operand may have: of a view of columns, repeated, or turned."""
    n = len(code)
    row, col = width + np.where(rng.random(n) < 0.6, 0, rng.integers(0, 40, n)), np.ones_like(width)
    if i:
        repeated = _ELEMENTWISE[code] & (rng.random((2, n)) < 0.2)
        row, col = np.where(repeated[0], 0, row), np.where(repeated[1], 0, col)
        loose, turned = (code == CODES["product"]) & (i == 1) & (rng.random(n) < 0.5), rng.random(n) < 0.7
        row = np.where(loose, np.where(turned, 1, rng.integers(0, 9, n)), row)
        col = np.where(loose, np.where(turned, height, rng.integers(0, 9, n)), col)
    return row, col


def _placed(rng: np.random.Generator, ops: NDArray[np.void]) -> Ints:
    """Place the operands of all operations but the first; the sizes of the spaces."""
    count, length = len(ops), ops.shape[1]
    each, ends = np.arange(count), rng.integers(1, 3, (count, 3))
    for k in range(1, length):
        op, of = ops[:, k], read_operands(ops[:, k])
        for i in range(OPERANDS):
            height, width, present = of.height[:, i], of.width[:, i], of.has_operand[:, i]
            row, col = _strides(rng, of.code, i, height, width)
            space = rng.integers(0, 3, count)
            at = ends[each, space] + rng.integers(0, 3, count)
            if i == 1:  # in place, or columns to the right of the output's in the same rows
                out_space, out_at, out_row = (op[key][:, 0].astype(np.int64) for key in ("space", "at", "by_row"))
                chance, gap = rng.random(count), rng.integers(0, 2, count)
                in_place = _ELEMENTWISE[of.code] & (chance < 0.2)
                beside = ~in_place & (chance < 0.4) & (of.width[:, 0] + gap + width <= out_row) & (col <= 1)
                beside &= (of.code != CODES["adam"]) & (of.code != CODES["product"])
                space = np.where(in_place | beside, out_space, space)
                at = np.where(in_place, out_at, np.where(beside, out_at + of.width[:, 0] + gap, at))
                row, col = np.where(in_place | beside, out_row, row), np.where(in_place, 1, col)
            last = at + (height - 1) * row + (width - 1) * col
            for key, values, none in (("space", space, -1), ("at", at, 0), ("by_row", row, 0), ("by_col", col, 0)):
                op[key][:, i] = np.where(present, values, none)
            ends[each, space] = np.where(present, np.maximum(ends[each, space], last + 1), ends[each, space])
    return ends


def mutated(rng: np.random.Generator, lists: Lists) -> Lists:
    """The same lists with one number of one operation changed; some remain valid."""
    ops, (count, length) = lists.operations.copy(), lists.operations.shape
    words = ops.view(np.int32).reshape(count, length, -1)
    at = np.arange(count), rng.integers(0, length, count), rng.integers(0, _INTEGERS, count)
    how, near = rng.random(count), words[at] + rng.integers(-2, 3, count)
    chosen = np.where(how < 0.4, near, np.where(how < 0.8, rng.choice(_ODD, count), rng.integers(0, 100, count)))
    words[at] = chosen.astype(np.int64).astype(np.int32)
    return Lists(ops, lists.sizes)


def accepted(lists: Lists) -> NDArray[np.bool_]:
    """Which lists the validator accepts, (N,)."""
    count, length = lists.operations.shape
    found = faults(lists.operations.reshape(-1), lists.sizes.repeat(length, axis=0)).reshape(count, length)
    valid: NDArray[np.bool_] = (found == 0).all(axis=1)
    for i in np.flatnonzero(valid):
        valid[i] = first_uninitialised_read(lists.operations[i], int(lists.sizes[i, Space.SCRATCH])) is None
    return valid


def is_safe(op: np.void, sizes: Ints) -> bool:
    """Whether all elements of an operation's operands are in their spaces, and none that it writes is another
    operand's, from the elements themselves."""
    if not 0 <= op["code"] < len(OPERATIONS) or min(op["rows"], op["cols"]) < 1 or not 0 <= op["section"] < 32:
        return False
    operation, operands = OPERATIONS[int(op["code"])], list[tuple[int, Ints]]()
    for i, (rows, cols) in enumerate(operand_shapes(op)):
        space, at, row, col = (int(op[key][i]) for key in ("space", "at", "by_row", "by_col"))
        if rows < 1 or cols < 1 or not 0 <= space < 3:
            return False
        corners = [at + r * row + c * col for r in (0, rows - 1) for c in (0, cols - 1)]
        if min(corners) < 0 or max(corners) >= sizes[space] or rows * cols > 1 << 24:
            return False
        operands.append((space, at + row * np.arange(rows)[:, None] + col * np.arange(cols)))
    for written in {0, *operation.written_operands}:
        space, elements = operands[written]
        if len(np.unique(elements)) != elements.size:
            return False
        for i, (other, read) in enumerate(operands):
            in_place = operation.kind is Kind.ELEMENTWISE and np.array_equal(read, elements)
            if i != written and other == space and not in_place and np.intersect1d(read, elements).size:
                return False
    return all(int(op["space"][i]) == Space.NONE for i in range(len(operands), OPERANDS)) and op["post"] <= MASKED
