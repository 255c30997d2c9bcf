"""What a tape refuses to trace, and arrays on which a program does not run."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.learner.tape.elementary import square
from onrig.learner.tape.executors import executor_for
from onrig.learner.tape.operations import TapeError
from onrig.learner.tape.optimiser import Adam, descend, polyak_average
from onrig.learner.tape.program import finish_program
from onrig.learner.tape.spaces import Layout, allocate_rows
from onrig.learner.tape.trace import Tape


def _tape() -> tuple[Tape, Layout]:
    state = Layout()
    return Tape(state, Layout()), state


def test_a_number_repeated_in_a_sum_and_a_target_counts_each_time() -> None:
    tape, state = _tape()
    group, target = state.group("p", {"a": (1, 1)}), state.group("t", {"a": (1, 5)})
    a = tape.read(group.fields[0])
    repeated_sum = tape.elementwise("add", [a, tape.filled((4, 5), 0.0)], [lambda g, y: g])
    (gradient,) = tape.gradient(square(repeated_sum).row_sums().sum(), [group])
    gradient_field = tape.record.add("g", 1, 1)
    tape.output(gradient_field, gradient)
    tape.emit("follow", (1, 5), [a], out=tape.read(target.fields[0]), x=0.5)
    executor = executor_for(np.float64)
    rows, records = allocate_rows(1, state, executor.dtype), allocate_rows(1, tape.record, executor.dtype)[:, None]
    rows[0, group.flat_field.slice] = 3.0
    executor.bind(finish_program(tape))(rows, records, None)
    assert records[0, 0, gradient_field.slice].tolist() == [2.0 * 3.0 * 20]
    assert rows[0, target.flat_field.slice].tolist() == [1.5] * 5


def test_a_gradient_through_parameters_that_have_changed_names_the_line() -> None:
    tape, state = _tape()
    first_group, second_group = (state.group(name, {"p": (1, 2)}) for name in ("one", "other"))
    adams = [Adam(state, group, lr=0.1) for group in (first_group, second_group)]
    loss = (tape.read(first_group.fields[0]) * tape.read(second_group.fields[0])).sum()
    descend(tape, loss, adams[:1])
    with pytest.raises(
        TapeError, match=r"test_program\.py:\d+: a gradient cannot pass through parameters that have changed"
    ):
        descend(tape, loss, adams[1:])


def test_a_loss_without_a_parameter_and_mismatched_shapes_are_refused() -> None:
    tape, state = _tape()
    first_group, second_group = state.group("one", {"p": (2, 3)}), state.group("other", {"p": (2, 2)})
    a, b = tape.read(first_group.fields[0]), tape.read(second_group.fields[0])
    with pytest.raises(TapeError, match="the loss does not depend on other/p"):
        tape.gradient(a.sum(), [second_group])
    with pytest.raises(TapeError, match=r"multiply of arrays \(2, 3\) and \(2, 2\)"):
        a * b
    with pytest.raises(TapeError, match="columns 2 to 4"):
        a.columns(2, 4)
    polyak_average(tape, first_group, first_group, 1.0)


def test_arrays_of_another_shape_or_type_do_not_reach_the_kernels() -> None:
    tape, state = _tape()
    group, record_field = state.group("p", {"a": (1, 5)}), tape.record.add("x", 1, 5)
    tape.output(record_field, tape.read(group.fields[0]))
    run = executor_for(np.float64).bind(finish_program(tape))
    state_rows, records = np.zeros((1, state.size)), np.zeros((1, 1, tape.record.size))
    run(state_rows, records, None)
    for wrong_array in (
        np.zeros((2, state.size)),
        np.zeros((1, 3)),
        state_rows.astype(np.float32),
        np.zeros((1, 32))[:, ::2],
    ):
        with pytest.raises(ValueError, match="expected"):
            run(wrong_array, records, None)
    with pytest.raises(ValueError, match="sections"):
        run(state_rows, records, np.zeros(2, np.uint32))
