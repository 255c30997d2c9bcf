"""Kernels of a tape's operations in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.operations import COLUMNS, N_SEEDS
from onrig.learner.tape.windows import Windows, view_by_window

Values = NDArray[Any]
Kernel = Callable[[], object]
_SOFTPLUS_LINEAR: Final = 20.0


def _sigmoid(a: Values, out: Values) -> None:
    np.negative(a, out=out)
    np.exp(out, out=out)
    np.add(out, 1.0, out=out)
    np.reciprocal(out, out=out)


def _softplus(a: Values, out: Values) -> None:
    linear = np.where(a > _SOFTPLUS_LINEAR, a, 0.0)
    np.exp(np.minimum(a, _SOFTPLUS_LINEAR), out=out)
    np.log1p(out, out=out)
    np.copyto(out, linear, where=linear > 0.0)


def _softsign(a: Values, out: Values) -> None:
    np.divide(a, np.add(np.abs(a), 1.0), out=out)


def _tanh_slope(y: Values, g: Values, out: Values) -> None:
    np.multiply(g, 1.0 - y * y, out=out)


def _sigmoid_slope(y: Values, g: Values, out: Values) -> None:
    np.multiply(g, y * (1.0 - y), out=out)


def _softsign_slope(y: Values, g: Values, out: Values) -> None:
    factor = 1.0 - np.abs(y)
    np.multiply(g, factor * factor, out=out)


def _where_positive(a: Values, b: Values, out: Values) -> None:
    np.copyto(out, np.where(a > 0.0, b, 0.0))


def _where_less(a: Values, b: Values, c: Values, out: Values) -> None:
    np.copyto(out, np.where(a <= b, c, 0.0))


def _where_more(a: Values, b: Values, c: Values, out: Values) -> None:
    np.copyto(out, np.where(a > b, c, 0.0))


def _column_sum(a: Values, out: Values) -> None:
    np.add.reduce(a, axis=0, keepdims=True, out=out)


def _row_sum(a: Values, out: Values) -> None:
    np.add.reduce(a, axis=1, keepdims=True, out=out)


def _row_max(a: Values, out: Values) -> None:
    np.maximum.reduce(a, axis=1, keepdims=True, out=out)


def _row_argmax(a: Values, out: Values) -> None:
    out[:, 0] = np.argmax(a, axis=1)


def _sum(a: Values, out: Values) -> None:
    out[0, 0] = np.add.reduce(a, axis=None)


def _sum_of_squares(a: Values, out: Values) -> None:
    out[0, 0] = np.add.reduce(np.square(a), axis=None)


UFUNCS: Final[dict[str, Callable[..., object]]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "copy": np.positive,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "minimum": np.minimum,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "softsign": _softsign,
}
"""Kernels that take their output as the keyword ``out``."""
FUNCTIONS: Final[dict[str, Callable[..., object]]] = {
    "tanh_slope": _tanh_slope,
    "sigmoid_slope": _sigmoid_slope,
    "softsign_slope": _softsign_slope,
    "where_positive": _where_positive,
    "where_less": _where_less,
    "where_more": _where_more,
    "equal": np.equal,
    "row_sum": _row_sum,
    "row_max": _row_max,
    "row_argmax": _row_argmax,
    "column_sum": _column_sum,
    "sum": _sum,
    "sum_of_squares": _sum_of_squares,
}
"""Kernels that take their output as the last argument."""


def _product(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, b, bias = inputs

    def linear() -> None:
        np.matmul(a, b, out=out)
        np.add(out, bias, out=out)

    def relu() -> None:
        linear()
        np.maximum(out, 0.0, out=out)

    return relu if op["post"] else linear


def _product_nt(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, b, *mask = inputs
    b_transposed = b.T
    if not mask:
        return partial(np.matmul, a, b_transposed, out=out)

    def masked_product() -> None:
        np.matmul(a, b_transposed, out=out)
        np.copyto(out, 0.0, where=~(mask[0] > 0.0))

    return masked_product


def _product_tn(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    return partial(np.matmul, inputs[0].T, inputs[1], out=out)


def _fill(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    return partial(out.fill, x)


def _affine(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a = inputs[0]
    if y == 0.0:
        return partial(np.multiply, a, x, out=out)
    if x == 1.0:
        return partial(np.add, a, y, out=out)

    def kernel() -> None:
        np.multiply(a, x, out=out)
        np.add(out, y, out=out)

    return kernel


def _clamp(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    return partial(np.clip, inputs[0], x, y, out=out)


def _inside(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, b = inputs
    return lambda: np.copyto(out, np.where((a < x) | (a > y), 0.0, b))


def _add_scaled(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, work_buffer = inputs[0], np.empty_like(out)

    def kernel() -> None:
        np.multiply(a, x, out=work_buffer)
        np.add(out, work_buffer, out=out)

    return kernel


def _follow(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, work_buffer = inputs[0], np.empty_like(out)

    def kernel() -> None:
        np.subtract(a, out, out=work_buffer)
        np.multiply(work_buffer, x, out=work_buffer)
        np.add(out, work_buffer, out=out)

    return kernel


def _fold(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, block = inputs[0], out.shape[1]

    def kernel() -> None:
        np.add.reduce(a.reshape(len(a), -1, block), axis=1, out=out)

    return kernel


def _tile(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a = inputs[0]
    blocks = out.reshape(len(out), -1, a.shape[1])
    assert np.shares_memory(blocks, out)
    return partial(np.copyto, blocks, a[:, None])


def _patches(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    view = view_by_window(inputs[0], Windows.from_operation(op))
    return partial(np.copyto, out.reshape(view.shape), view)


def _patches_slope(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    view = view_by_window(out, Windows.from_operation(op))
    window_gradients = inputs[0].reshape(view.shape)

    def kernel() -> None:
        out.fill(0.0)
        for row, column in np.ndindex(view.shape[1:3]):  # windows may overlap; added in the order of the C kernel
            view[:, row, column] += window_gradients[:, row, column]

    return kernel


def _project(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    p, reward, discount = inputs
    rows, atoms = out.shape
    row = np.arange(rows)[:, None]
    z = np.linspace(float(x), float(y), atoms).astype(out.dtype)
    width = (y - x) / out.dtype.type(atoms - 1)

    def kernel() -> None:
        position = (np.clip(reward + discount * z, x, y) - x) / width
        lower_atom = np.clip(np.nan_to_num(np.floor(position)), 0, atoms - 2)
        fraction = position - lower_atom
        index = lower_atom.astype(np.int64)
        out.fill(0.0)
        np.add.at(out, (row, index), p * (1.0 - fraction))
        np.add.at(out, (row, index + 1), p * fraction)

    return kernel


def _standardise(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, axis = inputs[0], _axis(op)

    def kernel() -> None:
        centred = a - a.mean(axis=axis, keepdims=True)
        np.divide(centred, np.sqrt(np.square(centred).mean(axis=axis, keepdims=True) + y), out=out)

    return kernel


def _standardise_slope(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    (a, g), axis = inputs, _axis(op)

    def kernel() -> None:
        centred = a - a.mean(axis=axis, keepdims=True)
        std = np.sqrt(np.square(centred).mean(axis=axis, keepdims=True) + y)
        standardised = centred / std
        projected = (
            g - g.mean(axis=axis, keepdims=True) - standardised * (g * standardised).mean(axis=axis, keepdims=True)
        )
        np.divide(projected, std, out=out)

    return kernel


def _axis(op: np.void) -> int:
    return 0 if int(op["post"]) == COLUMNS else 1


def _hash(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the hash of each word ("lowbias32", C. Wellons 2018)."""
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
    return bits ^ (bits >> np.uint32(16))


def dropout_mask(shape: tuple[int, int], rate: float, use_index: int, seed: float) -> NDArray[np.bool_]:
    """Return the mask of the elements that ``drop`` keeps; a seed outside [0, ``N_SEEDS``) counts as 0."""
    seed_word = np.array([seed if 0.0 <= seed < N_SEEDS else 0.0]).astype(np.uint32)
    key = _hash(seed_word ^ _hash(np.array([use_index], np.uint32) + np.uint32(0x9E3779B9)))
    elements = np.arange(shape[0] * shape[1], dtype=np.uint32) * np.uint32(0x9E3779B9)
    is_kept: NDArray[np.bool_] = _hash(elements + key) >= np.uint32(rate * 2.0**32)
    return is_kept.reshape(shape)


def _drop(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    a, seed = inputs
    rate, use_index = float(op["x"]), int(op["inner"])
    factor = out.dtype.type(1.0 / (1.0 - rate))
    return lambda: np.copyto(
        out, np.where(dropout_mask(out.shape, rate, use_index, float(seed[0, 0])), a * factor, 0.0)
    )


def _adam(op: np.void, out: Values, inputs: Sequence[Values], x: Any, y: Any) -> Kernel:
    gradient, moments, factor = inputs
    n = out.shape[1]
    mean, square, step = moments[:, :n], moments[:, n : 2 * n], moments[:, 2 * n :]
    beta1, beta2 = op["more"]
    a, b = np.empty_like(out), np.empty_like(out)
    cast = out.dtype.type

    def kernel() -> None:
        step[0, 0] += 1.0
        n_steps = np.float64(step[0, 0])  # a float64 scalar, whose powers and quotients never raise
        np.subtract(gradient, mean, out=a)
        np.multiply(a, cast(1.0 - beta1), out=a)
        np.add(mean, a, out=mean)
        np.multiply(gradient, gradient, out=a)
        np.multiply(a, cast(1.0 - beta2), out=a)
        np.multiply(square, cast(beta2), out=square)
        np.add(square, a, out=square)
        np.sqrt(square, out=b)
        np.multiply(b, cast(1.0 / np.sqrt(1.0 - beta2**n_steps)), out=b)
        np.add(b, y, out=b)
        np.divide(mean, b, out=a)
        np.multiply(a, cast(float(op["x"]) * float(factor[0, 0]) / (1.0 - beta1**n_steps)), out=a)
        np.subtract(out, a, out=out)

    return kernel


FACTORIES: Final[dict[str, Callable[..., Kernel]]] = {
    "product": _product,
    "product_nt": _product_nt,
    "product_tn": _product_tn,
    "fill": _fill,
    "affine": _affine,
    "clamp": _clamp,
    "inside": _inside,
    "add_scaled": _add_scaled,
    "follow": _follow,
    "fold": _fold,
    "tile": _tile,
    "patches": _patches,
    "patches_slope": _patches_slope,
    "project": _project,
    "standardise": _standardise,
    "standardise_slope": _standardise_slope,
    "drop": _drop,
    "adam": _adam,
}
"""Functions that build a kernel from an operation, its output, its inputs and its constants."""
