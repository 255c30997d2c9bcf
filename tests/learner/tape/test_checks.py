"""The validator: operations that would leave their spaces or read what they overwrite, and lists that would read values
of another trial."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.tape.array import Array
from onrig.learner.tape.checks import describe, faults, first_uninitialised_read
from onrig.learner.tape.operations import CODES, OPERATIONS, RECORD, Space, TapeError
from onrig.learner.tape.program import finish_program
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape

SIZES = np.array([400, 400, 400])


def _operation(name: str, **changes: float | tuple[float, float]) -> np.void:
    """An operation on 4 rows and 6 columns whose operands follow one another in the scratch."""
    op: np.void = np.zeros(1, RECORD)[0]
    op["code"], op["rows"], op["cols"], op["inner"] = CODES[name], 4, 6, 3
    op["space"] = -1
    shapes = {
        "multiply": [(4, 6)] * 3,
        "follow": [(4, 6)] * 2,
        "clamp": [(4, 6)] * 2,
        "project": [(4, 6), (4, 6), (4, 1), (4, 1)],
        "standardise": [(4, 6)] * 2,
        "drop": [(4, 6), (4, 6), (1, 1)],
    }
    shapes |= {"product_nt": [(4, 6), (4, 3), (6, 3)], "product_tn": [(4, 6), (3, 4), (3, 6)]}
    shapes["patches"] = [(4, 8), (4, 15)]
    shapes |= {"row_sum": [(4, 1), (4, 6)], "fold": [(4, 3), (4, 6)], "adam": [(1, 6), (1, 6), (1, 13), (1, 1)]}
    if name == "patches":  # two windows of 2 by 2, in images of 5 rows and 3 columns
        op["cols"], op["inner"], op["x"], op["more"] = 8, 15, 2.0, (5.0, 3.0)
    for i, (_, cols) in enumerate(shapes[name]):
        op["space"][i], op["at"][i], op["by_row"][i], op["by_col"][i] = 2, 40 * i, cols, 1
    op["y"] = 2.0 if name == "patches" else 1.0
    for key, value in changes.items():
        op[key] = value
    return op


def _problem(op: np.void) -> str:
    (fault,) = faults(np.array([op]), SIZES)
    return describe(op, int(fault), SIZES) if fault else ""


@pytest.mark.parametrize(
    "name",
    [
        "multiply",
        "follow",
        "project",
        "product_nt",
        "product_tn",
        "row_sum",
        "fold",
        "adam",
        "standardise",
        "drop",
        "patches",
    ],
)
def test_operations_inside_their_spaces_are_valid(name: str) -> None:
    assert _problem(_operation(name)) == ""


def _set_operand(key: str, i: int, value: int) -> Callable[[np.void], None]:
    def change_field(op: np.void) -> None:
        op[key][i] = value

    return change_field


@pytest.mark.parametrize(
    ("name", "change_field", "problem"),
    [
        ("multiply", _set_operand("at", 1, 390), "operand 1 from 390 to 413 of 400"),
        ("multiply", _set_operand("at", 2, -1), "reaches"),
        ("multiply", _set_operand("by_row", 1, 1 << 30), "reaches"),
        ("multiply", _set_operand("by_col", 1, 2), "neither adjacent nor repeated"),
        ("multiply", _set_operand("by_col", 0, 0), "not laid out"),
        ("multiply", _set_operand("space", 1, 3), "unknown space"),
        ("multiply", _set_operand("space", 2, -1), "operands"),
        ("multiply", _set_operand("at", 1, 1), "overwrites"),
        ("product_nt", _set_operand("by_col", 1, 0), "not laid out"),
        ("product_tn", _set_operand("by_col", 1, 0), "not laid out"),
        ("product_tn", _set_operand("at", 2, 3), "overwrites"),
        ("row_sum", _set_operand("by_col", 1, 0), "not laid out"),
        ("adam", _set_operand("at", 1, 85), "overwrites"),  # the gradient in the moments, which are also written
        ("adam", _set_operand("at", 3, 92), "overwrites"),
    ],
)
def test_operands_that_leave_their_space_or_their_layout_are_refused(
    name: str, change_field: Callable[[np.void], None], problem: str
) -> None:
    op = _operation(name)
    change_field(op)
    assert problem in _problem(op)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("multiply", {"code": len(OPERATIONS)}, "unknown code"),
        ("multiply", {"rows": 0}, "0 rows"),
        ("multiply", {"section": 32}, "section 32"),
        ("multiply", {"post": 1}, "has invalid post 1"),
        ("fold", {"inner": 4}, "into blocks of 4"),
        ("project", {"cols": 1}, "invalid atoms: 1 from"),
        ("project", {"x": 1.0}, "atoms: 6 from 1.0 to 1.0"),
        ("clamp", {"x": 2.0}, "bounds 2.0 and 1.0"),
        ("clamp", {"y": float("nan")}, "bounds 0.0 and nan"),
        ("project", {"y": float("inf")}, "atoms: 6 from 0.0 to inf"),
        ("drop", {"x": 1.0}, "invalid rate 1.0"),
        ("drop", {"x": float("nan")}, "invalid rate nan"),
        ("patches", {"y": 1.0}, "invalid windows: 2.0 by 2.0, 1.0 apart"),  # there would be eight
        ("patches", {"x": 2.5}, "invalid windows: 2.5"),
        ("patches", {"x": float("nan")}, "invalid windows: nan"),
        ("patches", {"more": (5.0, 0.0)}, "in images of [5. 0.]"),
        ("patches", {"more": (1e300, 3.0)}, "invalid windows"),
        ("standardise", {"post": 2}, "has invalid post 2"),
    ],
)
def test_sizes_that_kernels_do_not_support_are_refused(
    name: str, changes: dict[str, float | tuple[float, float]], problem: str
) -> None:
    assert problem in _problem(_operation(name, **changes))


def test_columns_of_the_same_rows_may_be_adjacent_but_rows_may_not_overlap() -> None:
    op = _operation("follow")
    op["by_row"][:2], op["at"][:2] = 12, [40, 46]
    assert _problem(op) == ""
    op["at"][1] = 45
    assert "overwrites" in _problem(op)
    single_row = _operation("follow", rows=1, cols=4)  # a row whose elements reach beyond its distance to the next
    single_row["by_row"][:2], single_row["at"][:2] = 3, [40, 41]
    assert "overwrites" in _problem(single_row)


def test_many_operations_are_checked_at_once_each_against_its_own_spaces() -> None:
    ops = np.array([_operation("multiply"), _operation("multiply", rows=0), _operation("multiply")])
    sizes = np.array([[0, 0, 104], [0, 0, 104], [0, 0, 103]])
    assert [describe(op, int(f), s)[:10] for op, f, s in zip(ops, faults(ops, sizes), sizes, strict=True)] == [
        "",
        "multiply h",
        "multiply r",
    ]


def _operation_run(*outputs: tuple[str, int, int]) -> NDArray[np.void]:
    """Operations (name, section, position of the output); each reads what is at 0."""
    ops = np.zeros(len(outputs), RECORD)
    for op, (name, section, place) in zip(ops, outputs, strict=True):
        op["code"], op["section"], op["rows"], op["cols"], op["space"] = CODES[name], section, 1, 4, Space.NONE
        for i in range(len(OPERATIONS[CODES[name]].shapes.split())):
            op["space"][i], op["at"][i], op["by_row"][i], op["by_col"][i] = Space.SCRATCH, 0 if i else place, 4, 1
    return ops


@pytest.mark.parametrize(
    ("outputs", "first_fault"),
    [
        ([("fill", 0, 0), ("copy", 3, 4)], None),
        ([("fill", 3, 0), ("copy", 3, 4)], None),
        ([("copy", 0, 4)], 0),
        ([("fill", 3, 0), ("copy", 0, 4)], 1),
        ([("fill", 3, 0), ("copy", 2, 4)], 1),
        ([("fill", 0, 1), ("copy", 0, 5)], 1),  # one element of four is missing
        ([("fill", 0, 0), ("add_scaled", 0, 4)], 1),  # in place, on missing values
    ],
)
def test_reads_from_another_trial_or_update_are_found(
    outputs: list[tuple[str, int, int]], first_fault: int | None
) -> None:
    assert first_uninitialised_read(_operation_run(*outputs), 20) == first_fault


def test_an_error_names_the_operation_and_the_line_that_wrote_it() -> None:
    tape = Tape(Layout(), Layout())
    with tape.section(1):
        constant = tape.filled((2, 2), 1.0)
    tape.output(tape.record.add("seen", 2, 2), constant)
    with pytest.raises(
        TapeError, match=r"test_checks\.py:\d+: operation 1: copy reads elements that no operation in its section"
    ):
        finish_program(tape)
    invalid_array = Array(tape, Space.STATE, 0, (2, 2))
    tape.emit("copy", (2, 2), [invalid_array])
    with pytest.raises(
        TapeError, match=r"test_checks\.py:\d+: operation 2: copy reaches .*: operand 1 from 0 to 3 of 0"
    ):
        finish_program(tape)
