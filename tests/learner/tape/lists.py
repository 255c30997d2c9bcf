"""Random lists of operations in packed form, valid ones and mutants, and the conditions for an operation to be safe.

All lists of a batch have the same number of operations; the first one of each list fills its scratch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.checks import faults, first_uninitialised_read, read_operands
from onrig.learner.tape.operations import CODES, MASKED, OPERANDS, OPERATIONS, RECORD, Kind, Space, operand_shapes

Ints = NDArray[np.int64]
_ELEMENTWISE: Final = np.array([o.kind is Kind.ELEMENTWISE for o in OPERATIONS])
_EDGE_VALUES: Final = np.array([0, 1, -1, 2, 3, 7, 16, 17, 31, 32, 255, 1 << 16, 1 << 30, (1 << 31) - 1, -(1 << 31)])
"""Values to which a mutation sets a number."""
_N_INTEGERS: Final = 5 + 4 * OPERANDS + 1
"""32-bit numbers of an operation, before its constants."""


class OperationLists(NamedTuple):
    """N lists of L operations."""

    operations: NDArray[np.void]
    """(N, L) of ``RECORD``."""
    sizes: Ints
    """Elements of state, record and scratch, (N, 3)."""


def draw_lists(rng: np.random.Generator, count: int, length: int) -> OperationLists:
    """Valid lists of all kinds of operations, with odd sizes, views of columns, transposed and repeated operands, and
    operations in place; a space ends with the last element that an operand uses."""
    ops = np.zeros((count, length), RECORD)
    ops[:, 1:] = _draw_shapes(rng, count * (length - 1)).reshape(count, length - 1)
    sizes = _place_operands(rng, ops)
    fill = ops[:, 0]
    fill["code"], fill["rows"], fill["cols"] = CODES["fill"], 1, sizes[:, Space.SCRATCH]
    fill["space"], fill["at"], fill["by_row"], fill["by_col"] = Space.NONE, 0, 0, 0
    fill["space"][:, 0], fill["by_col"][:, 0], fill["x"] = Space.SCRATCH, 1, rng.normal(size=count)
    return OperationLists(ops, sizes)


def _draw_shapes(rng: np.random.Generator, n: int) -> NDArray[np.void]:
    """Operations without positions: mostly small, some around the widths of vectors and tiles and beyond."""
    ops, draws = np.zeros(n, RECORD), rng.random((3, n))
    code = ops["code"] = rng.integers(0, len(OPERATIONS), n)
    small, middle, large = (rng.integers(*bounds, (3, n)) for bounds in ((1, 10), (8, 36), (36, 80)))
    rows, cols, inner = np.where(draws < 0.75, small, np.where(draws < 0.97, middle, large))
    has_blocks = np.isin(code, [CODES["fold"], CODES["tile"]])
    inner = np.where(has_blocks, np.minimum(inner, 20), inner)
    cols = np.where(has_blocks, inner * rng.integers(1, 5, n), cols)
    ops["rows"], ops["cols"], ops["inner"] = rows, np.maximum(cols, 1 + (code == CODES["project"])), inner
    ops["section"] = np.where(rng.random(n) < 0.8, 0, rng.integers(1, 32, n))
    max_posts = np.array([max(o.posts) for o in OPERATIONS])[code]
    ops["post"] = np.where(rng.random(n) < 0.5, max_posts, 0)
    x, y = np.sort(rng.normal(size=(2, n)), axis=0)
    ops["x"] = np.where(code == CODES["drop"], np.abs(np.tanh(x)), x)
    ops["y"] = np.where(np.isin(code, [CODES["standardise"], CODES["standardise_slope"]]), 0.1 + np.abs(y), y)
    ops["more"] = rng.random((n, 2))
    _add_windows(rng, ops)
    return ops


def _add_windows(rng: np.random.Generator, ops: NDArray[np.void]) -> None:
    """Give images and patches their sizes."""
    for codes_back, name in enumerate(("patches", "patches_slope")):
        indices = np.flatnonzero(ops["code"] == CODES[name])
        patch_side, stride, channels = (rng.integers(1, upper_bound, len(indices)) for upper_bound in (4, 4, 3))
        height, width = patch_side + rng.integers(0, 5, (2, len(indices)))
        windows = ((height - patch_side) // stride + 1) * ((width - patch_side) // stride + 1)
        sizes = windows * patch_side * patch_side * channels, height * width * channels
        ops["cols"][indices], ops["inner"][indices] = sizes[codes_back], sizes[1 - codes_back]
        ops["x"][indices], ops["y"][indices], ops["more"][indices] = (
            patch_side,
            stride,
            np.stack((height, width), axis=1),
        )


def _strides(rng: np.random.Generator, code: Ints, i: int, height: Ints, width: Ints) -> tuple[Ints, Ints]:
    """Strides that an operand may have: of a view of columns, repeated, or transposed."""
    n = len(code)
    row, col = width + np.where(rng.random(n) < 0.6, 0, rng.integers(0, 40, n)), np.ones_like(width)
    if i:
        is_repeated = _ELEMENTWISE[code] & (rng.random((2, n)) < 0.2)
        row, col = np.where(is_repeated[0], 0, row), np.where(is_repeated[1], 0, col)
        is_loose, is_transposed = (code == CODES["product"]) & (i == 1) & (rng.random(n) < 0.5), rng.random(n) < 0.7
        row = np.where(is_loose, np.where(is_transposed, 1, rng.integers(0, 9, n)), row)
        col = np.where(is_loose, np.where(is_transposed, height, rng.integers(0, 9, n)), col)
    return row, col


def _place_operands(rng: np.random.Generator, ops: NDArray[np.void]) -> Ints:
    """Position the operands of all operations except the first; returns the sizes of the spaces."""
    count, length = len(ops), ops.shape[1]
    list_indices, space_ends = np.arange(count), rng.integers(1, 3, (count, 3))
    for k in range(1, length):
        op, operands = ops[:, k], read_operands(ops[:, k])
        for i in range(OPERANDS):
            height, width, has_operand = operands.height[:, i], operands.width[:, i], operands.has_operand[:, i]
            row, col = _strides(rng, operands.code, i, height, width)
            space = rng.integers(0, 3, count)
            offset = space_ends[list_indices, space] + rng.integers(0, 3, count)
            if i == 1:  # in place, or columns to the right of the output's in the same rows
                output_space, output_offset, output_row_stride = (
                    op[key][:, 0].astype(np.int64) for key in ("space", "at", "by_row")
                )
                draws, gap_width = rng.random(count), rng.integers(0, 2, count)
                is_in_place = _ELEMENTWISE[operands.code] & (draws < 0.2)
                is_adjacent = (
                    ~is_in_place
                    & (draws < 0.4)
                    & (operands.width[:, 0] + gap_width + width <= output_row_stride)
                    & (col <= 1)
                )
                is_adjacent &= (operands.code != CODES["adam"]) & (operands.code != CODES["product"])
                space = np.where(is_in_place | is_adjacent, output_space, space)
                offset = np.where(
                    is_in_place,
                    output_offset,
                    np.where(is_adjacent, output_offset + operands.width[:, 0] + gap_width, offset),
                )
                row, col = np.where(is_in_place | is_adjacent, output_row_stride, row), np.where(is_in_place, 1, col)
            last_offset = offset + (height - 1) * row + (width - 1) * col
            for key, values, absent_value in (
                ("space", space, -1),
                ("at", offset, 0),
                ("by_row", row, 0),
                ("by_col", col, 0),
            ):
                op[key][:, i] = np.where(has_operand, values, absent_value)
            space_ends[list_indices, space] = np.where(
                has_operand,
                np.maximum(space_ends[list_indices, space], last_offset + 1),
                space_ends[list_indices, space],
            )
    return space_ends


def mutate(rng: np.random.Generator, lists: OperationLists) -> OperationLists:
    """The same lists with one number of one operation changed; some remain valid."""
    ops, (count, length) = lists.operations.copy(), lists.operations.shape
    words = ops.view(np.int32).reshape(count, length, -1)
    position = np.arange(count), rng.integers(0, length, count), rng.integers(0, _N_INTEGERS, count)
    mutation_draws, nearby_value = rng.random(count), words[position] + rng.integers(-2, 3, count)
    new_value = np.where(
        mutation_draws < 0.4,
        nearby_value,
        np.where(mutation_draws < 0.8, rng.choice(_EDGE_VALUES, count), rng.integers(0, 100, count)),
    )
    words[position] = new_value.astype(np.int64).astype(np.int32)
    return OperationLists(ops, lists.sizes)


def is_accepted(lists: OperationLists) -> NDArray[np.bool_]:
    """Which lists the validator accepts, (N,)."""
    count, length = lists.operations.shape
    fault_codes = faults(lists.operations.reshape(-1), lists.sizes.repeat(length, axis=0)).reshape(count, length)
    is_valid: NDArray[np.bool_] = (fault_codes == 0).all(axis=1)
    for i in np.flatnonzero(is_valid):
        is_valid[i] = first_uninitialised_read(lists.operations[i], int(lists.sizes[i, Space.SCRATCH])) is None
    return is_valid


def is_safe(op: np.void, sizes: Ints) -> bool:
    """Whether all elements of an operation's operands are in their spaces, and none that it writes belongs to another
    operand, determined element by element."""
    if not 0 <= op["code"] < len(OPERATIONS) or min(op["rows"], op["cols"]) < 1 or not 0 <= op["section"] < 32:
        return False
    operation, operands = OPERATIONS[int(op["code"])], list[tuple[int, Ints]]()
    for i, (rows, cols) in enumerate(operand_shapes(op)):
        space, offset, row, col = (int(op[key][i]) for key in ("space", "at", "by_row", "by_col"))
        if rows < 1 or cols < 1 or not 0 <= space < 3:
            return False
        corners = [offset + r * row + c * col for r in (0, rows - 1) for c in (0, cols - 1)]
        if min(corners) < 0 or max(corners) >= sizes[space] or rows * cols > 1 << 24:
            return False
        operands.append((space, offset + row * np.arange(rows)[:, None] + col * np.arange(cols)))
    for written_operand in {0, *operation.written_operands}:
        space, elements = operands[written_operand]
        if len(np.unique(elements)) != elements.size:
            return False
        for i, (other, elements_read) in enumerate(operands):
            is_in_place = operation.kind is Kind.ELEMENTWISE and np.array_equal(elements_read, elements)
            if (
                i != written_operand
                and other == space
                and not is_in_place
                and np.intersect1d(elements_read, elements).size
            ):
                return False
    return all(int(op["space"][i]) == Space.NONE for i in range(len(operands), OPERANDS)) and op["post"] <= MASKED
