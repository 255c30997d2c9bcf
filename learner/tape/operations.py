"""Operations of a tape: what each computes, and how a list of them is laid out for the executors.

Every operand is a matrix in one of three spaces, given by its first element and the distances between rows and between
columns; a distance of 0 repeats the row or the column.  Executors (``onrig.learner.tape.numpy_executor`` and its
neighbours) run a list without looking at anything else.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np


class Space(IntEnum):
    """Where an operand lies."""

    NONE = -1
    STATE = 0
    """Of one trial: parameters, moments, whatever survives an update."""
    RECORD = 1
    """Of one update of one trial: its minibatch, and what the update reports."""
    SCRATCH = 2
    """Intermediate results, valid within one update."""


class Kind(IntEnum):
    """How an operation's operands relate to its shape (rows, cols)."""

    ELEMENTWISE = 0
    """All (rows, cols), repeated where a distance is 0."""
    PRODUCT = 1
    """Matrices with a common inner dimension."""
    ROWS = 2
    """One (rows, cols) operand is reduced to (rows, 1)."""
    COLUMNS = 3
    """One (rows, cols) operand is reduced to (1, cols)."""
    ALL = 4
    """One (rows, cols) operand is reduced to (1, 1)."""
    OWN = 5
    """As the operation says."""


class Operation(NamedTuple):
    """One kind of operation."""

    name: str
    kind: Kind
    operands: int
    """Number of inputs."""
    in_place: bool = False
    """Whether it updates its output instead of overwriting it."""


_E, _P = Kind.ELEMENTWISE, Kind.PRODUCT

OPERATIONS: Final = (
    # Products, out (rows, cols); x is 1 for relu behind the sum, 2 for 0 where the last operand is not positive.
    Operation("product", _P, 3),  # a (rows, inner) b (inner, cols) + bias (1, cols)
    Operation("product_nt", _P, 3),  # a (rows, inner) b (cols, inner)'; mask (rows, cols)
    Operation("product_tn", _P, 2),  # a (inner, rows)' b (inner, cols)
    # Elementwise; x and y are constants.
    Operation("copy", _E, 1),
    Operation("fill", _E, 0),  # x
    Operation("add", _E, 2),
    Operation("subtract", _E, 2),
    Operation("multiply", _E, 2),
    Operation("divide", _E, 2),
    Operation("minimum", _E, 2),  # NaN if either is
    Operation("affine", _E, 1),  # a x + y
    Operation("clamp", _E, 1),  # a within [x, y]; NaN stays
    Operation("exp", _E, 1),
    Operation("log", _E, 1),
    Operation("sqrt", _E, 1),
    Operation("tanh", _E, 1),
    Operation("sigmoid", _E, 1),
    Operation("softplus", _E, 1),  # ln(1 + e^a), a itself beyond 20
    Operation("softsign", _E, 1),  # a / (1 + |a|)
    Operation("inside", _E, 2),  # b where a is within [x, y], else 0
    Operation("where_positive", _E, 2),  # b where a > 0, else 0
    Operation("where_less", _E, 3),  # c where a <= b, else 0
    Operation("where_more", _E, 3),  # c where a > b, else 0
    Operation("tanh_slope", _E, 2),  # b (1 - a a)
    Operation("sigmoid_slope", _E, 2),  # b a (1 - a)
    Operation("softsign_slope", _E, 2),  # b (1 - |a|)^2
    Operation("equal", _E, 2),  # 1 where a = b, else 0
    # Reductions.
    Operation("sum", Kind.ALL, 1),
    Operation("sum_of_squares", Kind.ALL, 1),
    Operation("row_sum", Kind.ROWS, 1),
    Operation("row_max", Kind.ROWS, 1),  # NaN if any is
    Operation("row_argmax", Kind.ROWS, 1),  # column of the first of the largest
    Operation("column_sum", Kind.COLUMNS, 1),
    # Of distributions over atoms: p (rows, cols) of reward (rows, 1) + discount (rows, 1) z, on z itself, x to y.
    Operation("project", Kind.OWN, 3),
    # Blocks of ``inner`` columns: their sum (rows, inner) of (rows, cols), and copies of (rows, inner) as (rows, cols).
    Operation("fold", Kind.OWN, 1),
    Operation("tile", Kind.OWN, 1),
    # In place.
    Operation("add_scaled", _E, 1, in_place=True),  # += x a
    Operation("follow", _E, 1, in_place=True),  # += x (a - out)
    # Parameters (1, cols), gradient, moments (1, 2 cols + 1), factor of the step size (1, 1); constants in ``more``.
    Operation("adam", Kind.OWN, 3, in_place=True),
)
CODES: Final = {operation.name: code for code, operation in enumerate(OPERATIONS)}

OPERANDS: Final = 4
"""Output and inputs of an operation, at most."""
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
"""An operation in the list that executors run; the first operand is its output."""
