"""Every operation: its derivative against finite differences, and the executors compared with each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.hw.native import library, variant
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import (
    Dropout,
    clip,
    concatenate,
    dense,
    equal,
    exp,
    log,
    log_softmax,
    maximum,
    minimum,
    patches,
    project,
    relu,
    sigmoid,
    softmax,
    softplus,
    softsign,
    sqrt,
    square,
    stack,
    standardise,
    tanh,
)
from onrig.learner.tape.executor import Executor
from onrig.learner.tape.native_executor import NativeExecutor
from onrig.learner.tape.numpy_kernels import dropout_mask
from onrig.learner.tape.operations import OPERATIONS
from onrig.learner.tape.optimiser import Adam, clip_norm, descend, polyak_average
from onrig.learner.tape.program import Program, finish_program
from onrig.learner.tape.spaces import Field, Group, Layout, allocate_rows
from onrig.learner.tape.trace import Tape
from onrig.learner.tape.windows import Windows
from tests.learner.tape.evaluation import executors

Floats = NDArray[np.float64]
Shape = tuple[int, int]
Function = Callable[..., Array]


class OperationCase(NamedTuple):
    """A function of arrays of these shapes, drawn from [low, high]."""

    function: Function
    shapes: Sequence[Shape]
    low: float = -2.0
    high: float = 2.0


CASES = {
    "add": OperationCase(lambda a, b: a + b, [(5, 3), (5, 3)]),
    "add a row": OperationCase(lambda a, b: a + b, [(5, 3), (1, 3)]),
    "add a column": OperationCase(lambda a, b: b + a, [(5, 3), (5, 1)]),
    "subtract a scalar": OperationCase(lambda a, b: a - b, [(5, 3), (1, 1)]),
    "from a number": OperationCase(lambda a: 2.0 - a, [(4, 17)]),
    "multiply": OperationCase(lambda a, b: a * b, [(7, 9), (7, 9)]),
    "multiply columns by a row": OperationCase(lambda a, b: a * b, [(6, 1), (1, 5)]),
    "divide": OperationCase(lambda a, b: a / b, [(5, 4), (5, 4)], 0.5),
    "divide by a column": OperationCase(lambda a, b: a / b, [(5, 4), (5, 1)], 0.5),
    "one over": OperationCase(lambda a: 1.0 / a, [(5, 4)], 0.5),
    "minimum": OperationCase(minimum, [(5, 3), (5, 3)]),
    "maximum with a column": OperationCase(maximum, [(5, 3), (5, 1)]),
    "clip": OperationCase(lambda a: clip(a, -0.7, 0.4), [(9, 5)]),
    "relu": OperationCase(relu, [(9, 5)]),
    "exp": OperationCase(exp, [(9, 5)]),
    "log": OperationCase(log, [(9, 5)], 0.2),
    "sqrt": OperationCase(sqrt, [(9, 5)], 0.2),
    "square": OperationCase(square, [(9, 5)]),
    "tanh": OperationCase(tanh, [(9, 5)]),
    "sigmoid": OperationCase(sigmoid, [(9, 5)], -4.0, 4.0),
    "softplus": OperationCase(softplus, [(9, 5)], -4.0, 4.0),
    "softsign": OperationCase(softsign, [(9, 5)]),
    "softmax": OperationCase(softmax, [(6, 7)]),
    "log softmax": OperationCase(log_softmax, [(6, 7)]),
    "sums": OperationCase(lambda a: a.sum() * a.row_sums() + a.column_sums(), [(5, 5)]),
    "mean": OperationCase(lambda a: a.mean() * a, [(5, 3)]),
    "columns": OperationCase(lambda a: a.columns(1, 3) * a.columns(0, 2) + a.columns(4, 5), [(5, 6)]),
    "columns that leave none out": OperationCase(lambda a: a.columns(0, 2).sum() * exp(a.columns(2, 5)), [(4, 5)]),
    "concatenated": OperationCase(lambda a, b: square(concatenate(a, b, a)), [(5, 2), (5, 3)]),
    "rows, stacked": OperationCase(
        lambda a, b: square(stack(stack(a, b).rows(1, 4), a)) + stack(b, a).rows(0, 6).row_sums(), [(3, 4), (5, 4)]
    ),
    "reshaped": OperationCase(lambda a: softmax(a.reshape(10, 3)).reshape(5, 6) * a, [(5, 6)]),
    "folded": OperationCase(lambda a: square(a.fold(3)), [(4, 12)]),
    "tiled": OperationCase(lambda a: square(a.tile(3) + a.tile(3).fold(2).row_sums()), [(4, 2)]),
    "dense": OperationCase(lambda x, w, b: dense(x, w, b), [(9, 5), (5, 4), (1, 4)]),
    "dense, wide": OperationCase(lambda x, w, b: tanh(dense(x, w, b)), [(11, 21), (21, 37), (1, 37)], -0.5, 0.5),
    "dense, one row": OperationCase(lambda x, w, b: dense(x, w, b), [(1, 3), (3, 1), (1, 1)]),
    "layers": OperationCase(
        lambda x, w, b, v, c: dense(dense(x, w, b, relu=True), v, c),
        [(8, 5), (5, 19), (1, 19), (19, 2), (1, 2)],
    ),
    "units that go two ways": OperationCase(
        lambda x, w, b, v, c: (lambda h: dense(h, v, c) + h.columns(0, 2) * h.row_sums())(dense(x, w, b, relu=True)),
        [(8, 5), (5, 19), (1, 19), (19, 2), (1, 2)],
    ),
    "a layer of columns": OperationCase(lambda x, w, b: dense(x.columns(1, 4), w, b), [(7, 5), (3, 18), (1, 18)]),
    "standardised rows": OperationCase(lambda a: tanh(standardise(a, 0.01)), [(4, 37)]),
    "standardised columns": OperationCase(lambda a: tanh(standardise(a, 0.01, columns=True)), [(3, 66)]),
    "standardised columns of a view": OperationCase(lambda a: square(standardise(a.columns(1, 4), 0.1)), [(5, 6)]),
    "patches that overlap": OperationCase(lambda a: square(patches(a, Windows(4, 5, 2, 3, 1))), [(3, 40)]),
    "patches with gaps, and a rest": OperationCase(lambda a: tanh(patches(a, Windows(7, 6, 1, 2, 3))), [(2, 42)]),
    "patches of a view": OperationCase(lambda a: square(patches(a.columns(1, 13), Windows(3, 4, 1, 2, 1))), [(2, 14)]),
    "two convolutions": OperationCase(
        lambda x, w, b, v, c: dense(
            patches(dense(patches(x, Windows(6, 6, 1, 2, 2)), w, b, relu=True).reshape(2, 27), Windows(3, 3, 3, 2, 1)),
            v,
            c,
        ),
        [(2, 36), (4, 3), (1, 3), (12, 2), (1, 2)],
    ),
    "dropout, twice": OperationCase(
        lambda a, b: (lambda drop: tanh(drop(a)) * drop(b.columns(0, 3)))(Dropout(0.3, a.tape.filled((1, 1), 12345.0))),
        [(11, 3), (11, 4)],
    ),
    "layer normalisation": OperationCase(
        lambda a: (lambda d: d / sqrt(square(d).row_sums() * 0.2 + 1e-5))(a - a.row_sums() * 0.2), [(6, 5)]
    ),
    "batch normalisation": OperationCase(
        lambda a: (lambda d: d / sqrt(square(d).column_sums() * (1 / 6) + 1e-5))(a - a.column_sums() * (1 / 6)),
        [(6, 5)],
    ),
}


class BuiltProgram(NamedTuple):
    """A program that reports the value of a function and its gradients by parameters of the state."""

    program: Program
    state: Layout
    record: Layout
    group: Group
    value: Field
    gradient: Field


def _build(case: OperationCase) -> BuiltProgram:
    state, record = Layout(), Layout()
    group = state.group("x", {str(i): shape for i, shape in enumerate(case.shapes)})
    tape = Tape(state, record)
    out = case.function(*(tape.read(f) for f in group.fields))
    value, gradient = record.add("value", *out.shape), record.add("gradient", 1, group.flat_field.size)
    weight = Layout()  # each output counts differently
    assert weight.size == 0
    tape.output(value, out)
    factors = record.add("factors", *out.shape)
    (gradient_field,) = tape.gradient((out * tape.read(factors)).sum(), [group])
    tape.output(gradient, gradient_field)
    return BuiltProgram(finish_program(tape), state, record, group, value, gradient)


def _run(program: BuiltProgram, executor: Executor, x: Floats, factors: Floats) -> tuple[Floats, Floats]:
    rows = allocate_rows(1, program.state, executor.dtype)
    records = allocate_rows(1, program.record, executor.dtype)[:, None]
    rows[0, program.group.flat_field.slice] = x
    records[0, 0, program.record.fields["factors"].slice] = factors.reshape(-1)
    executor.bind(program.program)(rows, records, None)
    return tuple(records[0, 0, f.slice].astype(np.float64) for f in (program.value, program.gradient))  # type: ignore[return-value]


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_finite_differences_in_every_executor(name: str) -> None:
    case = CASES[name]
    program, rng = _build(case), np.random.default_rng(3)
    x = rng.uniform(case.low, case.high, program.group.flat_field.size)
    factors = rng.uniform(0.5, 1.5, program.value.size)
    expected = []
    for i in range(len(x)):
        step = 1e-6 * (np.arange(len(x)) == i)
        value_above, value_below = (
            _run(program, executors(np.float64)[0], x + sign * step, factors)[0] @ factors for sign in (1, -1)
        )
        expected.append((value_above - value_below) / 2e-6)
    results = [_run(program, executor, x, factors) for executor in executors(np.float64)]
    for value, gradient in results:
        np.testing.assert_allclose(gradient, expected, rtol=2e-6, atol=1e-7)
        np.testing.assert_allclose(value, results[0][0], rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(gradient, results[0][1], rtol=1e-12, atol=1e-12)
    for value, gradient in (_run(program, executor, x, factors) for executor in executors(np.float32)):
        np.testing.assert_allclose(value, results[0][0], rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(gradient, results[0][1], rtol=2e-4, atol=2e-4)


def test_these_tests_cover_all_operations() -> None:
    operations_used = {
        OPERATIONS[code].name for case in CASES.values() for code in _build(case).program.operations["code"]
    }
    tested_below = {"row_argmax", "equal", "project", "adam", "follow", "sum_of_squares"}  # those below
    assert operations_used | tested_below == {operation.name for operation in OPERATIONS}


def _evaluate(trace: Callable[[Array], Array], x: Floats, executor: Executor) -> Floats:
    """Output of a function of one field of a record."""
    record = Layout()
    field = record.add("x", *x.shape)
    tape = Tape(Layout(), record)
    out = trace(tape.read(field))
    result = record.add("out", *out.shape)
    tape.output(result, out)
    rows = allocate_rows(1, record, executor.dtype)[:, None]
    rows[0, 0, field.slice] = x.reshape(-1)
    executor.bind(finish_program(tape))(allocate_rows(1, tape.state, executor.dtype), rows, None)
    return rows[0, 0, result.slice].reshape(result.shape).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_first_of_several_maxima_is_found_and_nan_is_the_maximum(dtype: type[np.floating]) -> None:
    x = np.array([[1.0, 3.0, 3.0, 2.0], [-1.0, -1.0, -2.0, -5.0], [0.0, np.nan, 7.0, np.nan]])
    for executor in executors(dtype):
        assert _evaluate(lambda a: a.row_argmaxima(), x, executor)[:, 0].tolist() == [1, 0, 1]
        indices = _evaluate(lambda a: a.row_maxima(), x, executor)[:, 0]
        assert indices[:2].tolist() == [3.0, -1.0]
        assert np.isnan(indices[2])
        assert _evaluate(lambda a: equal(a, a.row_maxima()), x, executor)[0].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_is_preserved_and_infinities_have_their_limits(dtype: type[np.floating]) -> None:
    x = np.array([[np.nan, -np.inf, np.inf]])
    limits = {
        "exp": (exp, 0.0, np.inf),
        "tanh": (tanh, -1.0, 1.0),
        "sigmoid": (sigmoid, 0.0, 1.0),
        "softplus": (softplus, 0.0, np.inf),
        "relu": (relu, 0.0, np.inf),
        "clip": (lambda a: clip(a, -3.0, 4.0), -3.0, 4.0),
        "log": (log, np.nan, np.inf),
        "minimum": (lambda a: minimum(a, a * 0.0 + 1.0), np.nan, np.nan),
    }
    for executor in executors(dtype):
        for name, (function, low, high) in limits.items():
            gradient_field = _evaluate(function, x, executor)[0]
            np.testing.assert_array_equal(gradient_field, [np.nan, low, high], err_msg=f"{name}, {executor.name}")


def test_elementary_functions_are_exact_to_a_few_ulp() -> None:
    native = library()
    if native is None:
        pytest.skip("the C library is not built")
    executor = NativeExecutor(native, variant(), np.dtype(np.float32))
    rng = np.random.default_rng(0)
    inputs = np.concatenate((rng.uniform(-87.0, 88.0, 20_000), rng.normal(size=20_000), rng.normal(size=20_000) * 1e-3))
    checks: list[tuple[Callable[[Array], Array], Callable[[Floats], Floats], Floats, float]] = [
        (exp, np.exp, inputs, 2.0),
        (log, np.log, np.exp(rng.uniform(-86.0, 88.0, 60_000)), 2.0),
        (tanh, np.tanh, inputs, 3.0),
        (sigmoid, lambda x: 1.0 / (1.0 + np.exp(-x)), inputs, 4.0),
        (softplus, lambda x: np.logaddexp(0.0, x), inputs, 4.0),
    ]
    for function, exact, x, units in checks:
        x_float32 = x.astype(np.float32).astype(np.float64)
        expected = exact(x_float32)
        gradient_field = _evaluate(function, x_float32[:, None], executor)[:, 0]
        error = np.abs(gradient_field - expected) / np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
        assert error.max() <= units, (function, error.max(), x_float32[error.argmax()])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_coupled", [True, False])
def test_adam_matches_its_paper_with_both_decays_and_a_norm(dtype: type[np.floating], is_coupled: bool) -> None:
    state, record = Layout(), Layout()
    group = state.group("net", {"weight": (3, 5), "bias": (1, 5)})
    adam = Adam(
        state,
        group,
        lr=0.1,
        betas=(0.8, 0.99),
        eps=1e-3,
        decay=0.3,
        is_coupled=is_coupled,
        decayed_fields=group.fields[:1],
    )
    target = state.group("target", {"weight": (3, 5), "bias": (1, 5)})
    tape = Tape(state, record)
    x, factor = record.add("x", 4, 3), record.add("factor", 1, 1)
    loss = square(dense(tape.read(x), *(tape.read(f) for f in group.fields))).mean()
    (gradient,) = tape.gradient(loss, [group])
    clip_norm(tape, [gradient], 0.5)
    adam.step(tape, gradient, tape.read(factor))
    polyak_average(tape, target, group, 0.25)
    program, rng = finish_program(tape), np.random.default_rng(0)
    start, inputs = rng.normal(size=20), rng.normal(size=(6, 4, 3))
    p, mean, square_, decayed = start.copy(), np.zeros(20), np.zeros(20), np.zeros(20)
    for k, x_float32 in enumerate(inputs):
        out = x_float32 @ p[:15].reshape(3, 5) + p[15:]
        g = np.concatenate(((x_float32.T @ out).reshape(-1), out.sum(axis=0))) * 2.0 / out.size
        g *= 0.5 / max(float(np.linalg.norm(g)), 0.5)
        lr = 0.1 * (1.0 - 0.1 * k)
        if is_coupled:
            g[:15] += 0.3 * p[:15]
        else:
            p[:15] *= 1.0 - lr * 0.3
        mean, square_ = 0.8 * mean + 0.2 * g, 0.99 * square_ + 0.01 * g * g
        p = p - lr * (mean / (1 - 0.8 ** (k + 1))) / (np.sqrt(square_ / (1 - 0.99 ** (k + 1))) + 1e-3)
        decayed += 0.25 * (p - decayed)
    for executor in executors(dtype):
        rows, records = allocate_rows(1, state, executor.dtype), allocate_rows(6, record, executor.dtype)[None]
        rows[0, group.flat_field.slice] = start
        records[0, :, x.slice] = inputs.reshape(6, -1)
        records[0, :, factor.slice] = (1.0 - 0.1 * np.arange(6))[:, None]
        executor.bind(program)(rows, records, None)
        tolerance = 1e-12 if dtype is np.float64 else 2e-5
        np.testing.assert_allclose(rows[0, group.flat_field.slice], p, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(rows[0, target.flat_field.slice], decayed, rtol=tolerance, atol=tolerance)
        assert rows[0, adam.moments.slice][-1] == 6.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dropout_keeps_the_same_elements_in_every_executor_independently_and_at_its_rate(
    dtype: type[np.floating],
) -> None:
    ones = np.ones((40, 500))

    def dropout_masks(executor: Executor, seed: float, rate: float = 0.1) -> tuple[Floats, Floats]:
        """Masks of the first and of the second use."""

        def apply_twice(a: Array) -> Array:
            drop = Dropout(rate, a.tape.filled((1, 1), seed))
            return concatenate(drop(a), drop(a))

        first_mask, second_mask = np.split(_evaluate(apply_twice, ones, executor), 2, axis=1)
        return first_mask, second_mask

    reference, *other_executors = executors(dtype)
    a, b = dropout_masks(reference, 7.0)
    for executor in other_executors:
        assert all(np.array_equal(*pair) for pair in zip((a, b), dropout_masks(executor, 7.0), strict=True))
        assert all(np.array_equal(*pair) for pair in zip((a, b), dropout_masks(reference, 7.0), strict=True))
    c, _ = dropout_masks(reference, 8.0)
    np.testing.assert_allclose(np.unique(a), [0.0, 1.0 / 0.9], rtol=1e-6)
    assert np.array_equal(a > 0, dropout_mask(a.shape, 0.1, 0, 7.0))
    for mask in (a, b, c):
        assert (mask == 0.0).mean() == pytest.approx(0.1, abs=5 * math.sqrt(0.09 / mask.size))
        # Neighbours in a row and in a column.
        for pair in ((mask[:, 1:], mask[:, :-1]), (mask[1:], mask[:-1])):
            assert abs(np.corrcoef(pair[0].reshape(-1), pair[1].reshape(-1))[0, 1]) < 5 / math.sqrt(mask.size)
    for either, other in ((a, b), (a, c), (b, c)):
        assert abs(np.corrcoef(either.reshape(-1), other.reshape(-1))[0, 1]) < 5 / math.sqrt(a.size)
    assert dropout_masks(reference, np.nan)[0].tolist() == dropout_masks(reference, 0.0)[0].tolist()
    assert np.array_equal(dropout_masks(reference, 3.0, 0.0)[0], ones)


def test_projections_agree_across_executors() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate((rng.dirichlet(np.ones(7), 9), rng.normal(size=(9, 1)), rng.random((9, 1))), axis=1)

    def trace(a: Array) -> Array:
        return project(a.columns(0, 7), a.columns(7, 8), a.columns(8, 9), -2.0, 3.0)

    gradient_field = [_evaluate(trace, x, executor) for executor in executors(np.float64)]
    for values in gradient_field:
        np.testing.assert_allclose(values.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(values, gradient_field[0], atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_atoms_too_close_for_the_precision_leave_no_mass_elsewhere(dtype: type[np.floating]) -> None:
    high = float(np.finfo(dtype).smallest_subnormal)  # a sixth of which is 0
    record = Layout()
    before, x, after = (record.add(name, 3, cols) for name, cols in (("before", 64), ("x", 9), ("after", 64)))
    tape = Tape(Layout(), record)
    a = tape.read(x)
    tape.output(record.add("out", 3, 7), project(a.columns(0, 7), a.columns(7, 8), a.columns(8, 9), 0.0, high))
    for executor in executors(dtype):
        rows = allocate_rows(1, record, executor.dtype)[:, None]
        rows[:] = 1.0
        executor.bind(finish_program(tape))(allocate_rows(1, tape.state, executor.dtype), rows, None)
        assert all((rows[0, 0, field.slice] == 1.0).all() for field in (before, x, after))


def test_a_step_count_beyond_any_run_raises_nothing() -> None:
    state, record = Layout(), Layout()
    group = state.group("net", {"p": (1, 2)})
    adam, tape = Adam(state, group, lr=0.1), Tape(state, record)
    descend(tape, square(tape.read(group.fields[0])).sum(), [adam])
    for executor in executors(np.float64):
        for steps in (-1.0, -2.5, -1e9, np.nan):
            rows = allocate_rows(1, state, executor.dtype)
            rows[0, adam.moments.slice] = steps
            executor.bind(finish_program(tape))(rows, allocate_rows(1, record, executor.dtype)[:, None], None)
            assert not np.isfinite(rows[0, group.flat_field.slice]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_moments_of_a_unit_without_gradient_do_not_remain_subnormal(
    dtype: type[np.floating],
) -> None:
    state, record = Layout(), Layout()
    group = state.group("net", {"p": (1, 40)})
    adam, tape, zeros = Adam(state, group, lr=0.1), Tape(state, record), record.add("x", 1, 40)
    descend(tape, (tape.read(group.fields[0]) * tape.read(zeros)).sum(), [adam])
    smallest = np.finfo(dtype).tiny
    for executor in executors(dtype):
        rows = allocate_rows(1, state, executor.dtype)
        rows[0, group.flat_field.slice], rows[0, adam.moments.slice] = 1.0, smallest / 2
        executor.bind(finish_program(tape))(rows, allocate_rows(1, record, executor.dtype)[:, None], None)
        assert (rows[0, group.flat_field.slice] == 1.0).all()
        if executor.name.startswith("native x86"):
            assert (rows[0, adam.moments.slice][:-1] == 0.0).all()
    assert (np.array([smallest / 2], dtype) * np.array([1], dtype))[0] > 0.0  # as earlier in the process


def test_descend_uses_only_its_own_optimisers() -> None:
    state, record = Layout(), Layout()
    either, other = (state.group(name, {"p": (1, 2)}) for name in ("one", "other"))
    adam = Adam(state, either, lr=0.1)
    tape = Tape(state, record)
    descend(tape, (tape.read(either.fields[0]) * tape.read(other.fields[0])).sum(), [adam])
    for executor in executors(np.float64):
        rows = allocate_rows(1, state, executor.dtype)
        rows[0, either.flat_field.slice], rows[0, other.flat_field.slice] = 1.0, 2.0
        executor.bind(finish_program(tape))(rows, allocate_rows(1, record, executor.dtype)[:, None], None)
        assert rows[0, either.flat_field.slice] == pytest.approx([0.9, 0.9])
        assert rows[0, other.flat_field.slice].tolist() == [2.0, 2.0]


def test_the_two_branches_of_the_softplus_agree_where_they_meet() -> None:
    for executor in executors(np.float64):
        x = np.array([[19.999999, 20.0, 20.000001]])
        assert _evaluate(softplus, x, executor)[0].tolist() == pytest.approx([math.log1p(math.exp(v)) for v in x[0]])
