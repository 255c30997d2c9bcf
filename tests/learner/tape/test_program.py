"""Checks of operations before anything runs, and what a tape refuses to trace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onrig.learner.tape.array import square
from onrig.learner.tape.executors import executor_for
from onrig.learner.tape.operations import CODES, OPERATIONS, RECORD
from onrig.learner.tape.optimiser import Adam, descend, follow
from onrig.learner.tape.program import problem_of, program_of
from onrig.learner.tape.spaces import Layout, rows_of
from onrig.learner.tape.trace import Tape, TapeError

SIZES = {0: 400, 1: 400, 2: 400}


def _operation(name: str, **changes: int) -> np.void:
    """An operation on 4 rows and 6 columns whose operands lie behind one another in the scratch."""
    op: np.void = np.zeros(1, RECORD)[0]
    op["code"], op["rows"], op["cols"], op["inner"] = CODES[name], 4, 6, 3
    op["space"] = -1
    shapes = {"multiply": [(4, 6)] * 3, "follow": [(4, 6)] * 2, "project": [(4, 6), (4, 6), (4, 1), (4, 1)]}
    shapes |= {"product_nt": [(4, 6), (4, 3), (6, 3)], "product_tn": [(4, 6), (3, 4), (3, 6)]}
    shapes |= {"row_sum": [(4, 1), (4, 6)], "fold": [(4, 3), (4, 6)]}
    for i, (_, cols) in enumerate(shapes[name]):
        op["space"][i], op["at"][i], op["by_row"][i], op["by_col"][i] = 2, 40 * i, cols, 1
    for key, value in changes.items():
        op[key] = value
    return op


@pytest.mark.parametrize("name", ["multiply", "follow", "project", "product_nt", "product_tn", "row_sum", "fold"])
def test_operations_inside_their_spaces_are_valid(name: str) -> None:
    assert problem_of(_operation(name), SIZES) is None


def _with(key: str, i: int, value: int) -> Callable[[np.void], None]:
    def change(op: np.void) -> None:
        op[key][i] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("multiply", _with("at", 1, 390), "reaches"),
        ("multiply", _with("at", 2, -1), "reaches"),
        ("multiply", _with("by_row", 1, 1 << 30), "reaches"),
        ("multiply", _with("by_col", 1, 2), "apart"),
        ("multiply", _with("by_col", 0, 0), "not laid out"),
        ("multiply", _with("space", 1, 3), "unknown space"),
        ("multiply", _with("space", 2, -1), "operands"),
        ("multiply", _with("at", 1, 1), "overwrites"),
        ("product_nt", _with("by_col", 1, 0), "not laid out"),
        ("product_tn", _with("by_col", 1, 0), "not laid out"),
        ("product_tn", _with("at", 2, 3), "overwrites"),
        ("row_sum", _with("by_col", 1, 0), "not laid out"),
    ],
)
def test_operands_that_leave_their_space_or_their_layout_are_refused(
    name: str, change: Callable[[np.void], None], problem: str
) -> None:
    op = _operation(name)
    change(op)
    assert problem in str(problem_of(op, SIZES))


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("multiply", {"code": len(OPERATIONS)}, "unknown code"),
        ("multiply", {"rows": 0}, "0 rows"),
        ("multiply", {"section": 32}, "section 32"),
        ("multiply", {"post": 1}, "followed by 1"),
        ("fold", {"inner": 4}, "in blocks of 4"),
        ("project", {"cols": 1}, "onto 1 atom"),
    ],
)
def test_sizes_that_kernels_do_not_take_are_refused(name: str, changes: dict[str, int], problem: str) -> None:
    assert problem in str(problem_of(_operation(name, **changes), SIZES))


def _tape() -> tuple[Tape, Layout]:
    state = Layout()
    return Tape(state, Layout()), state


def test_a_number_repeated_into_a_sum_and_a_target_counts_as_often_as_it_is() -> None:
    tape, state = _tape()
    group, target = state.group("p", {"a": (1, 1)}), state.group("t", {"a": (1, 5)})
    a = tape.read(group.fields[0])
    repeated = tape.elementwise("add", [a, tape.filled((4, 5), 0.0)], [lambda g, y: g])
    (gradient,) = tape.gradient(square(repeated).row_sums().sum(), [group])
    found = tape.record.add("g", 1, 1)
    tape.output(found, gradient)
    tape.emit("follow", (1, 5), [a], out=tape.read(target.fields[0]), x=0.5)
    executor = executor_for(np.float64)
    rows, records = rows_of(1, state, executor.dtype), rows_of(1, tape.record, executor.dtype)[:, None]
    rows[0, group.flat.slice] = 3.0
    executor.bind(program_of(tape))(rows, records, None)
    assert records[0, 0, found.slice].tolist() == [2.0 * 3.0 * 20]
    assert rows[0, target.flat.slice].tolist() == [1.5] * 5


def test_a_gradient_through_parameters_that_have_moved_names_the_line() -> None:
    tape, state = _tape()
    one, other = (state.group(name, {"p": (1, 2)}) for name in ("one", "other"))
    adams = [Adam(state, group, lr=0.1) for group in (one, other)]
    loss = (tape.read(one.fields[0]) * tape.read(other.fields[0])).sum()
    descend(tape, loss, adams[:1])
    with pytest.raises(TapeError, match=r"test_program\.py:\d+: a gradient through parameters that have changed"):
        descend(tape, loss, adams[1:])


def test_a_loss_without_a_parameter_and_shapes_that_do_not_fit_are_refused() -> None:
    tape, state = _tape()
    one, other = state.group("one", {"p": (2, 3)}), state.group("other", {"p": (2, 2)})
    a, b = tape.read(one.fields[0]), tape.read(other.fields[0])
    with pytest.raises(TapeError, match="the loss does not depend on other/p"):
        tape.gradient(a.sum(), [other])
    with pytest.raises(TapeError, match=r"multiply of arrays \(2, 3\) and \(2, 2\)"):
        a * b
    with pytest.raises(TapeError, match="columns 2 to 4"):
        a.columns(2, 4)
    follow(tape, one, one, 1.0)


def test_arrays_of_another_shape_or_type_do_not_reach_the_kernels() -> None:
    tape, state = _tape()
    group, seen = state.group("p", {"a": (1, 5)}), tape.record.add("x", 1, 5)
    tape.output(seen, tape.read(group.fields[0]))
    run = executor_for(np.float64).bind(program_of(tape))
    state_rows, records = np.zeros((1, state.size)), np.zeros((1, 1, tape.record.size))
    run(state_rows, records, None)
    for wrong in (
        np.zeros((2, state.size)),
        np.zeros((1, 3)),
        state_rows.astype(np.float32),
        np.zeros((1, 32))[:, ::2],
    ):
        with pytest.raises(ValueError, match="expected"):
            run(wrong, records, None)
    with pytest.raises(ValueError, match="sections"):
        run(state_rows, records, np.zeros(2, np.uint32))
