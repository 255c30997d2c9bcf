"""Validator for lists of operations, which executors run unchecked.

It reads the packed form that executors receive.  ``faults`` checks any number of operations at once, each on its own;
``first_uninitialised_read`` follows a list in order.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.operations import (
    CODES,
    DIMENSIONS,
    MASKED,
    OPERANDS,
    OPERATIONS,
    Kind,
    Space,
    operand_shapes,
)

Sizes = NDArray[np.int64]
"""Number of elements of the three spaces, in the order of ``Space``."""
MAX_SIZE: Final = 1 << 30
"""Maximum number of elements in a space, limited because offsets are 32-bit numbers."""

_MAX_IMAGE_SIDE: Final = 1 << 12
"""Maximum number of rows and columns of pixels, so that no product of sizes exceeds 64 bits."""

_SHAPES: Final = np.zeros((len(OPERATIONS), OPERANDS, 2), np.intp)
"""Indices of each operand's rows and columns in ``DIMENSIONS``."""
_HAS_OPERAND: Final = np.zeros((len(OPERATIONS), OPERANDS), np.bool_)
for _code, _operation in enumerate(OPERATIONS):
    for _i, _shape in enumerate(_operation.shapes.split()):
        _SHAPES[_code, _i] = [DIMENSIONS.index(letter) for letter in _shape]
        _HAS_OPERAND[_code, _i] = True
_IS_READ: Final = _HAS_OPERAND.copy()
_IS_READ[:, 0] = [0 in o.written_operands for o in OPERATIONS]
_IS_ELEMENTWISE: Final = np.array([o.kind is Kind.ELEMENTWISE for o in OPERATIONS])
_HAS_INNER: Final = np.array(["i" in o.shapes for o in OPERATIONS])
_IS_MASKABLE: Final = np.array([MASKED in o.posts for o in OPERATIONS])
_ALLOWED_POSTS: Final = np.array([sum(1 << post for post in o.posts) for o in OPERATIONS])
_HAS_BLOCKS: Final = np.array([o.name in ("fold", "tile") for o in OPERATIONS])
_ALLOWS_ANY_LAYOUT: Final = np.zeros((len(OPERATIONS), OPERANDS), np.bool_)
_ALLOWS_ANY_LAYOUT[CODES["product"], 1] = True  # kernels use its strides
_PROJECT, _ADAM, _CLAMP, _DROP = (CODES[name] for name in ("project", "adam", "clamp", "drop"))
_MOMENTS: Final = OPERATIONS[_ADAM].written_operands[1]


class Fault(IntEnum):
    """Defects of an operation."""

    NONE = 0
    CODE = 1
    EXTENT = 2
    BLOCKS = 3
    ATOMS = 4
    BOUNDS = 5
    POST = 6
    OPERANDS = 7
    SPACE = 8
    REACH = 9
    ROWS = 10
    COLUMNS = 11
    OVERWRITES = 12
    RATE = 13
    WINDOWS = 14


_MESSAGES: Final = {
    Fault.NONE: "",
    Fault.CODE: "operation with unknown code {code}",
    Fault.EXTENT: "{name} has invalid dimensions: {rows} rows, {cols} columns, inner {inner}, section {section}",
    Fault.BLOCKS: "{name} cannot split {cols} columns into blocks of {inner}",
    Fault.ATOMS: "{name} has invalid atoms: {cols} from {x} to {y}",
    Fault.BOUNDS: "{name} has invalid bounds {x} and {y}",
    Fault.POST: "{name} has invalid post {post}",
    Fault.OPERANDS: "{name} does not have {operands} operands",
    Fault.SPACE: "{name} has an operand in an unknown space",
    Fault.REACH: "{name} reaches beyond its space: {reach}",
    Fault.ROWS: "{name} has an operand that is not laid out row by row",
    Fault.COLUMNS: "{name} has an operand whose elements are neither adjacent nor repeated",
    Fault.OVERWRITES: "{name} overwrites its own inputs",
    Fault.WINDOWS: "{name} has invalid windows: {x} by {x}, {y} apart, in images of {more}",
    Fault.RATE: "{name} has the invalid rate {x}: expected at least 0 and below 1",
}


class Operands(NamedTuple):
    """Operands of n operations; numbers are clipped so that no product of two exceeds 64 bits."""

    code: NDArray[np.intp]
    is_known_code: NDArray[np.bool_]
    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    inner: NDArray[np.int64]
    height: NDArray[np.int64]
    """(n, OPERANDS)"""
    width: NDArray[np.int64]
    has_operand: NDArray[np.bool_]
    """Whether the operation has this operand."""


def read_operands(operations: NDArray[np.void]) -> Operands:
    """Return the operands of n operations, with their shapes."""
    code = operations["code"].astype(np.intp)
    is_known_code = (code >= 0) & (code < len(OPERATIONS))
    code[~is_known_code] = 0
    rows, cols, inner = (
        np.clip(operations[key].astype(np.int64), -1, MAX_SIZE + 1) for key in ("rows", "cols", "inner")
    )
    dimensions = np.stack((np.ones_like(rows), rows, cols, inner, 2 * cols + 1), axis=1)
    shapes = dimensions[np.arange(len(code))[:, None, None], _SHAPES[code]]
    has_operand = _HAS_OPERAND[code]
    has_operand[:, OPERANDS - 1] &= ~_IS_MASKABLE[code] | (operations["post"] == MASKED)
    return Operands(code, is_known_code, rows, cols, inner, shapes[..., 0], shapes[..., 1], has_operand)


def faults(operations: NDArray[np.void], sizes: Sizes) -> NDArray[np.intp]:
    """Return the first ``Fault`` of each of n operations; ``describe`` returns its message.

    ``sizes``: (3,), or (n, 3) if each operation has its own spaces.
    """
    code, is_known_code, rows, cols, inner, height, width, has_operand = read_operands(operations)
    section, post, x, y = (operations[key] for key in ("section", "post", "x", "y"))
    space, at = operations["space"].astype(np.intp), operations["at"].astype(np.int64)
    row, col = (np.clip(operations[key].astype(np.int64), -1, MAX_SIZE + 1) for key in ("by_row", "by_col"))
    extent = (width - 1) * col + 1
    last = at + (height - 1) * row + extent - 1
    has_space = (space >= 0) & (space < len(Space) - 1)
    size = np.take_along_axis(np.broadcast_to(sizes, (len(code), 3)), np.where(has_space, space, 0), axis=1)
    exceeds_space = (at < 0) | (row < 0) | (col < 0) | (row > MAX_SIZE) | (col > MAX_SIZE) | (last >= size)
    is_row_major = ((width == 1) | (col == 1)) & ((height == 1) | (row >= width)) | _ALLOWS_ANY_LAYOUT[code]
    is_elementwise = _IS_ELEMENTWISE[code]
    is_row_major[:, 1:] |= is_elementwise[:, None]
    has_valid_size = (
        (rows >= 1) & (cols >= 1) & (rows * cols <= MAX_SIZE) & (inner >= _HAS_INNER[code]) & (inner <= MAX_SIZE)
    )
    defects = {
        Fault.CODE: ~is_known_code,
        Fault.EXTENT: ~(has_valid_size & (section >= 0) & (section < 32)),
        Fault.BLOCKS: _HAS_BLOCKS[code] & (cols % np.maximum(inner, 1) != 0),
        Fault.ATOMS: (code == _PROJECT) & ~((cols >= 2) & np.isfinite(x) & np.isfinite(y) & (x < y)),
        Fault.BOUNDS: (code == _CLAMP) & ~(x <= y),
        Fault.RATE: (code == _DROP) & ~((x >= 0.0) & (x < 1.0)),
        Fault.WINDOWS: _have_invalid_windows(operations, code, cols, inner),
        Fault.POST: (post < 0) | (post > 31) | (_ALLOWED_POSTS[code] >> np.clip(post, 0, 31) & 1 == 0),
        Fault.OPERANDS: ((space != Space.NONE) != has_operand).any(axis=1),
        Fault.SPACE: (has_operand & ~has_space).any(axis=1),
        Fault.REACH: (has_operand & exceeds_space).any(axis=1),
        Fault.ROWS: (has_operand & ~is_row_major).any(axis=1),
        Fault.COLUMNS: is_elementwise & (has_operand & (col > 1)).any(axis=1),
        Fault.OVERWRITES: _overwrites(code, has_operand, _Spans(space, at, last, row, col, extent)),
    }
    first_faults = np.zeros(len(code), np.intp)
    for fault in reversed(Fault):
        if fault:
            first_faults[defects[fault]] = fault
    return first_faults


def _have_invalid_windows(
    operations: NDArray[np.void], code: NDArray[np.intp], cols: NDArray[np.int64], inner: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return whether windows do not fit their images, or patches do not have the windows' size."""
    has_windows = np.isin(code, [CODES["patches"], CODES["patches_slope"]])
    values = np.concatenate((operations["more"], operations["x"][:, None], operations["y"][:, None]), axis=1)
    are_integers = ((values >= 1.0) & (values <= _MAX_IMAGE_SIDE) & (values == np.floor(values))).all(axis=1)
    height, width, side, stride = np.where(are_integers[:, None], values, 1.0).astype(np.int64).T
    is_slope = code == CODES["patches_slope"]
    image, patches = np.where(is_slope, cols, inner), np.where(is_slope, inner, cols)
    channels = image // (height * width)
    grid_height, grid_width = (height - side) // stride + 1, (width - side) // stride + 1
    has_patch_size = (image == channels * height * width) & (
        patches == grid_height * grid_width * side * side * channels
    )
    is_invalid: NDArray[np.bool_] = has_windows & ~(
        are_integers & (channels >= 1) & (side <= height) & (side <= width) & has_patch_size
    )
    return is_invalid


class _Spans(NamedTuple):
    """Extents of operands, (n, OPERANDS) each."""

    space: NDArray[np.intp]
    at: NDArray[np.int64]
    last: NDArray[np.int64]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    extent: NDArray[np.int64]
    """Number of elements that a row spans from its first to its last one."""


def _overwrites(code: NDArray[np.intp], has_operand: NDArray[np.bool_], spans: _Spans) -> NDArray[np.bool_]:
    """Return whether a written operand shares elements with another one, other than in an elementwise operation in
    place."""
    overwrites = np.zeros(len(code), np.bool_)
    pairs = [(0, i) for i in range(1, OPERANDS)]
    if (code == _ADAM).any():
        pairs += [(_MOMENTS, i) for i in range(1, OPERANDS) if i != _MOMENTS]
    for written_operand, read_operand in pairs:
        a, b = (_Spans(*(field[:, i] for field in spans)) for i in (written_operand, read_operand))
        overlaps = has_operand[:, read_operand] & (a.space == b.space) & (a.at <= b.last) & (b.at <= a.last)
        is_in_place = _IS_ELEMENTWISE[code] & (a.at == b.at) & (a.row == b.row) & (a.col == b.col)
        # Separate columns of the same rows may interleave.
        offset = (b.at - a.at) % np.maximum(a.row, 1)
        is_interleaved = (a.row == b.row) & (offset >= a.extent) & (offset + b.extent <= a.row)
        overwrites |= overlaps & ~is_in_place & ~is_interleaved & ((written_operand == 0) | (code == _ADAM))
    return overwrites


def describe(op: np.void, fault: int, sizes: Sizes) -> str:
    """Describe an operation's defect."""
    code = int(op["code"])
    if fault == Fault.CODE:
        return _MESSAGES[Fault.CODE].format(code=code)
    shapes, excesses = operand_shapes(op), []
    for i, (rows, cols) in enumerate(shapes):
        space, at, row, col = (int(op[key][i]) for key in ("space", "at", "by_row", "by_col"))
        size = int(sizes[space]) if 0 <= space < len(sizes) else 0
        last = at + (rows - 1) * row + (cols - 1) * col
        if at < 0 or row < 0 or col < 0 or last >= size:
            excesses.append(f"operand {i} from {at} to {last} of {size}")
    fields = {key: op[key] for key in ("rows", "cols", "inner", "section", "x", "y", "post", "more")}
    return _MESSAGES[Fault(fault)].format(
        name=OPERATIONS[code].name, operands=len(shapes), reach=", ".join(excesses), **fields
    )


def first_uninitialised_read(operations: NDArray[np.void], scratch: int) -> int | None:
    """Return the index of the first operation that reads scratch elements not yet written in the update, or None.

    Such elements would come from a different update or trial.  Values written in a section are available only in that
    section. The operations must be valid according to ``faults``.
    """
    operands = read_operands(operations)
    columns = [operands.code, operations["section"], operands.height, operands.width]
    columns += [operations[key] for key in ("space", "at", "by_row", "by_col")]
    is_scratch_read = _IS_READ[operands.code] & (operations["space"] == Space.SCRATCH)
    written_sections = np.zeros(scratch, np.uint32)  # the sections in which an element has been written
    rows = zip(*(column.tolist() for column in (*columns, is_scratch_read)), strict=True)
    for index, (_, section, heights, widths, spaces, *layout, are_read) in enumerate(rows):
        operand = list(zip(heights, widths, *layout, strict=True))
        for i, is_read in enumerate(are_read):
            sections = _elements(written_sections, *operand[i]) if is_read else None
            if sections is not None and not int(np.bitwise_and.reduce(sections, axis=None)) >> section & 1:
                return index
        if spaces[0] == Space.SCRATCH:
            _elements(written_sections, *operand[0])[:] |= np.uint32(1 << section if section else 0xFFFFFFFF)
    return None


def _elements(
    scratch: NDArray[np.uint32], rows: int, cols: int, offset: int, row_stride: int, col_stride: int
) -> NDArray[np.uint32]:
    """Return a view of an operand's elements, each appearing once."""
    rows, cols = rows if row_stride else 1, cols if col_stride else 1
    if (cols == 1 or col_stride == 1) and (rows == 1 or row_stride == cols):
        return scratch[offset : offset + rows * cols]
    return np.ndarray((rows, cols), np.uint32, scratch, 4 * offset, (4 * row_stride, 4 * col_stride))
