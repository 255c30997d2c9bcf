"""Operations of a tape, and the layout of the list of operations that executors receive.

Every operand is a matrix in one of three spaces, given by the offset of its first element and the strides between rows
and between columns; a stride of 0 repeats the row or the column.  Executors such as
``onrig.learner.tape.numpy_executor`` need only this list.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

_TAPE_FOLDER: Final = str(Path(__file__).parent)


class TapeError(Exception):
    """Raised for an update that cannot be traced; the message names the operation and its source line."""


class Space(IntEnum):
    """Address space of an operand."""

    NONE = -1
    STATE = 0
    """State of one trial: parameters, moments, everything that survives an update."""
    RECORD = 1
    """Record of one update of one trial: its minibatch and the reported values."""
    SCRATCH = 2
    """Intermediate results, valid within one update."""


class Kind(IntEnum):
    """Relation between the shapes of an operation's operands."""

    ELEMENTWISE = 0
    """All (rows, cols), repeated where a stride is 0."""
    PRODUCT = 1
    """Matrices with a common inner dimension."""
    SPECIFIC = 2
    """Shapes defined by the operation."""


class Operation(NamedTuple):
    """One kind of operation."""

    name: str
    kind: Kind
    shapes: str
    """Rows and columns of the output and of each input, each one of ``DIMENSIONS``."""
    written_operands: tuple[int, ...] = ()
    """Indices of the operands that the operation both reads and writes; all others except the output are only read."""
    posts: tuple[int, ...] = (0,)
    """Valid values of ``post``."""


DIMENSIONS: Final = "1rcim"
"""Letters for dimensions: one, rows, columns, the inner dimension, and the moments of one parameter per column
(2 columns + 1)."""
MASKED: Final = 2
"""``post`` of a product whose last operand is a mask; with other values, the product does not have that operand."""

N_SEEDS: Final = 1 << 24
"""Number of seeds of ``drop``, which are integers that single precision represents exactly."""
COLUMNS: Final = 1
"""``post`` of an operation on each column; it is 0 for an operation on each row."""


def _elementwise(name: str, inputs: int, written_operands: tuple[int, ...] = ()) -> Operation:
    return Operation(name, Kind.ELEMENTWISE, " ".join(["rc"] * (1 + inputs)), written_operands)


OPERATIONS: Final = (
    # Products.  If post is 1, relu follows the sum; if it is 2, the result is 0 where the last operand is not positive.
    Operation("product", Kind.PRODUCT, "rc ri ic 1c", posts=(0, 1)),  # a b + bias
    Operation("product_nt", Kind.PRODUCT, "rc ri ci rc", posts=(0, MASKED)),  # a b'; mask
    Operation("product_tn", Kind.PRODUCT, "rc ir ic"),  # a' b
    # Elementwise; x and y are constants.
    _elementwise("copy", 1),
    _elementwise("fill", 0),  # x
    _elementwise("add", 2),
    _elementwise("subtract", 2),
    _elementwise("multiply", 2),
    _elementwise("divide", 2),
    _elementwise("minimum", 2),  # NaN if either operand is NaN
    _elementwise("affine", 1),  # a x + y
    _elementwise("clamp", 1),  # a within [x, y]; NaN is preserved
    _elementwise("exp", 1),
    _elementwise("log", 1),
    _elementwise("sqrt", 1),
    _elementwise("tanh", 1),
    _elementwise("sigmoid", 1),
    _elementwise("softplus", 1),  # ln(1 + e^a); a itself above 20
    _elementwise("softsign", 1),  # a / (1 + |a|)
    _elementwise("inside", 2),  # b where a is within [x, y], else 0
    _elementwise("where_positive", 2),  # b where a > 0, else 0
    _elementwise("where_less", 3),  # c where a <= b, else 0
    _elementwise("where_more", 3),  # c where a > b, else 0
    _elementwise("tanh_slope", 2),  # b (1 - a a)
    _elementwise("sigmoid_slope", 2),  # b a (1 - a)
    _elementwise("softsign_slope", 2),  # b (1 - |a|)^2
    _elementwise("equal", 2),  # 1 where a = b, else 0
    # Reductions.
    Operation("sum", Kind.SPECIFIC, "11 rc"),
    Operation("sum_of_squares", Kind.SPECIFIC, "11 rc"),
    Operation("row_sum", Kind.SPECIFIC, "r1 rc"),
    Operation("row_max", Kind.SPECIFIC, "r1 rc"),  # NaN if any element is NaN
    Operation("row_argmax", Kind.SPECIFIC, "r1 rc"),  # column of the largest element, the first on a tie
    Operation("column_sum", Kind.SPECIFIC, "1c rc"),
    # Distributions over atoms z from x to y: projects p of reward + discount z onto z.
    Operation("project", Kind.SPECIFIC, "rc rc r1 r1"),
    # (a - mean) / sqrt(variance + y) over each row, or over each column if post is 1.  The derivative takes a and a
    # gradient.
    Operation("standardise", Kind.SPECIFIC, "rc rc", posts=(0, COLUMNS)),
    Operation("standardise_slope", Kind.SPECIFIC, "rc rc rc", posts=(0, COLUMNS)),
    # a / (1 - x) or 0, with probability x, by a hash of the element, ``inner`` and the seed (an integer below 2^24).
    Operation("drop", Kind.SPECIFIC, "rc rc 11"),
    # Blocks of ``inner`` columns: their sum, and copies.
    Operation("fold", Kind.SPECIFIC, "ri rc"),
    Operation("tile", Kind.SPECIFIC, "rc ri"),
    # The patches of an image in each row (``Windows``), one after the other, and the sum of patches into an image.
    Operation("patches", Kind.SPECIFIC, "rc ri"),
    Operation("patches_slope", Kind.SPECIFIC, "rc ri"),
    # In-place operations.
    _elementwise("add_scaled", 1, written_operands=(0,)),  # += x a
    _elementwise("follow", 1, written_operands=(0,)),  # += x (a - out)
    # Operands: parameters, gradient, moments, factor of the step size x.  y is added to roots; ``more`` has the betas.
    Operation("adam", Kind.SPECIFIC, "1c 1c 1m 11", written_operands=(0, 2)),
)
CODES: Final = {operation.name: code for code, operation in enumerate(OPERATIONS)}

OPERANDS: Final = 4
"""Maximum number of outputs and inputs of an operation."""
RECORD: Final = np.dtype(
    [
        ("code", "<i4"),
        ("section", "<i4"),
        ("rows", "<i4"),
        ("cols", "<i4"),
        ("inner", "<i4"),
        ("space", "<i4", OPERANDS),
        ("at", "<i4", OPERANDS),
        ("by_row", "<i4", OPERANDS),
        ("by_col", "<i4", OPERANDS),
        ("post", "<i4"),
        ("x", "<f8"),
        ("y", "<f8"),
        ("more", "<f8", 2),
    ],
    align=True,
)
"""Operation in the list that executors run; the first operand is its output."""


def operand_shapes(op: np.void) -> list[tuple[int, int]]:
    """Return the shapes of the output and the inputs of an operation in a list."""
    operation = OPERATIONS[int(op["code"])]
    rows, cols, inner = (int(op[key]) for key in ("rows", "cols", "inner"))
    sizes = dict(zip(DIMENSIONS, (1, rows, cols, inner, 2 * cols + 1), strict=True))
    shapes = [(sizes[shape[0]], sizes[shape[1]]) for shape in operation.shapes.split()]
    return shapes[:-1] if MASKED in operation.posts and int(op["post"]) != MASKED else shapes


def source_line() -> str:
    """Return the source line of the algorithm being traced, ``file:line``: the innermost one outside this folder."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_TAPE_FOLDER):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
