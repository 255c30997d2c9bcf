"""Functions of tape arrays, with their derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from onrig.learner.tape.array import Array, Derivative, Gradient, divide_gradient
from onrig.learner.tape.operations import COLUMNS, Space
from onrig.learner.tape.windows import Windows


def _slope(name: str, g: Gradient, y: Array) -> Array:
    return y.tape.elementwise(name, [y, y.tape.expand(g, y.shape)], [])


def exp(a: Array) -> Array:
    """Return e^a."""
    return a.tape.elementwise("exp", [a], [lambda g, y: g * y])


def log(a: Array) -> Array:
    """Return the natural logarithm of a."""
    return a.tape.elementwise("log", [a], [lambda g, y: divide_gradient(g, a)])


def sqrt(a: Array) -> Array:
    """Return the square root of a."""
    return a.tape.elementwise("sqrt", [a], [lambda g, y: divide_gradient(g * 0.5, y)])


def square(a: Array) -> Array:
    """Return the square of a."""
    return a.tape.elementwise("multiply", [a, a], [lambda g, y: (g * 2.0) * a, lambda g, y: 0.0])


def tanh(a: Array) -> Array:
    """Return the hyperbolic tangent of a."""
    return a.tape.elementwise("tanh", [a], [lambda g, y: _slope("tanh_slope", g, y)])


def sigmoid(a: Array) -> Array:
    """Return 1 / (1 + e^-a)."""
    return a.tape.elementwise("sigmoid", [a], [lambda g, y: _slope("sigmoid_slope", g, y)])


def softplus(a: Array) -> Array:
    """Return ln(1 + e^a)."""
    return a.tape.elementwise("softplus", [a], [lambda g, y: g * a.tape.elementwise("sigmoid", [a], [])])


def softsign(a: Array) -> Array:
    """Return a / (1 + |a|)."""
    return a.tape.elementwise("softsign", [a], [lambda g, y: _slope("softsign_slope", g, y)])


def relu(a: Array) -> Array:
    """Return max(a, 0)."""
    return a.tape.elementwise("clamp", [a], [lambda g, y: _slope("where_positive", g, y)], x=0.0, y=float("inf"))


def clip(a: Array, low: float, high: float) -> Array:
    """Clip a to [low, high]; the gradient is 0 outside this range."""

    def rule(g: Gradient, y: Array) -> Gradient:
        return a.tape.elementwise("inside", [a, a.tape.expand(g, a.shape)], [], x=low, y=high)

    return a.tape.elementwise("clamp", [a], [rule], x=low, y=high)


def minimum(a: Array, b: Array) -> Array:
    """Return the smaller of the two; on a tie, the gradient passes to the first."""
    tape, shape = a.tape, a.tape.common_shape([a, b])

    def select_gradient(name: str) -> Callable[[Gradient, Array], Gradient]:
        return lambda g, y: tape.elementwise(name, [a, b, tape.expand(g, shape)], [])

    return tape.elementwise("minimum", [a, b], [select_gradient("where_less"), select_gradient("where_more")])


def maximum(a: Array, b: Array) -> Array:
    """Return the larger of the two."""
    return -minimum(-a, -b)


def equal(a: Array, b: Array) -> Array:
    """Return 1 where the two are equal, else 0, as a constant for gradients."""
    return a.tape.elementwise("equal", [a, b], [])


def greater(a: Array, b: Array) -> Array:
    """Return 1 where a > b, else 0 (also for NaN), as a constant for gradients."""
    return a.tape.elementwise("where_more", [a, b, a.tape.filled((1, 1), 1.0)], [])


def softmax(a: Array) -> Array:
    """Return the softmax of each row."""
    e = exp(a - a.row_maxima())
    return e / e.row_sums()


def log_softmax(a: Array) -> Array:
    """Return the logarithm of the softmax of each row."""
    shifted_logits = a - a.row_maxima()
    return shifted_logits - log(exp(shifted_logits).row_sums())


def standardise(a: Array, eps: float, *, columns: bool = False) -> Array:
    """Return (a - mean) / sqrt(variance + eps) over each row, or over each column; the variance is the mean squared
    deviation."""
    tape, source, post = a.tape, a.tape.expand_repeats(a), COLUMNS if columns else 0
    out = tape.emit("standardise", a.shape, [source], post=post, y=eps)

    def rule(g: Gradient) -> Array:
        return tape.emit("standardise_slope", a.shape, [source, _materialise(g, out)], post=post, y=eps)

    return tape.register_output(out, [Derivative(a, rule)])


class Dropout:
    """Dropout (Srivastava et al. 2014) at ``rate``, with masks that differ between updates, because of ``seed``, and
    between uses.

    ``seed`` (1, 1): an integer below ``N_SEEDS``.
    """

    def __init__(self, rate: float, seed: Array) -> None:
        self._rate, self._seed, self._use_counter = rate, seed, itertools.count()

    def __call__(self, a: Array) -> Array:
        """Return a / (1 - rate), or 0 with probability ``rate``."""
        tape, use_index = a.tape, next(self._use_counter)

        def drop(values: Array) -> Array:
            return tape.emit("drop", a.shape, [values, self._seed], inner=use_index, x=self._rate)

        out = drop(tape.expand_repeats(a))
        return tape.register_output(out, [Derivative(a, lambda g: drop(_materialise(g, out)))])


def project(p: Array, reward: Array, discount: Array, low: float, high: float) -> Array:
    """Project distributions (rows, atoms) of reward + discount z onto the atoms z, which are uniform on [low, high].

    The result is a constant for gradients (Bellemare et al. 2017).  Mass beyond the atoms is assigned to the outermost
    ones.
    """
    return p.tape.emit("project", p.shape, [p, reward, discount], x=low, y=high)


def dense(x: Array, weight: Array, bias: Array, *, relu: bool = False) -> Array:
    """Return x weight + bias, optionally followed by relu units: (rows, in) (in, out) + (1, out)."""
    (rows, inner), cols, tape = x.shape, weight.shape[1], x.tape
    if weight.shape[0] != inner or bias.shape != (1, cols):
        raise tape.error(f"layer shapes do not fit: inputs {x.shape}, weights {weight.shape}, biases {bias.shape}")
    out = tape.emit("product", (rows, cols), [x, weight, bias], inner=inner, post=int(relu))
    out.is_relu = relu

    def differentiate_x(g: Gradient) -> Array:
        g = _materialise(g, out)
        mask = [x] if x.is_relu else []
        input_gradient = tape.emit("product_nt", x.shape, [g, weight, *mask], inner=cols, post=2 if mask else 0)
        input_gradient.applied_mask = x if mask else None
        return input_gradient

    def differentiate_weight(g: Gradient) -> Array:
        return tape.emit("product_tn", weight.shape, [x, _materialise(g, out)], inner=rows)

    def differentiate_bias(g: Gradient) -> Array:
        return _materialise(g, out).column_sums()

    return tape.register_output(
        out,
        [
            Derivative(x, differentiate_x),
            Derivative(weight, differentiate_weight),
            Derivative(bias, differentiate_bias),
        ],
    )


def patches(images: Array, windows: Windows) -> Array:
    """Return the windows of images (rows, pixels): a row (patch,) for each window, in order, image by image.

    The windows of images in the record are copied only once.
    """
    (rows, pixels), tape = images.shape, images.tape
    section, window_array = tape.patches.get((images, windows), (-1, images))
    if section in (0, tape.current_section):
        return window_array
    n_windows, constants = math.prod(windows.grid), (float(windows.height), float(windows.width))
    if pixels != windows.pixels or min(windows) < 1 or min(windows.grid) < 1:
        raise tape.error(f"images of {pixels} elements have no windows {tuple(windows)}")
    size, side, stride = n_windows * windows.patch, float(windows.side), float(windows.stride)
    source = tape.make_contiguous(images)
    out = tape.emit("patches", (rows, size), [source], inner=pixels, x=side, y=stride, more=constants)

    def rule(g: Gradient) -> Array:
        gradients = [_materialise(g, out)]
        return tape.emit("patches_slope", images.shape, gradients, inner=size, x=side, y=stride, more=constants)

    window_array = tape.register_output(out, [Derivative(images, rule)]).reshape(rows * n_windows, windows.patch)
    if images.space is Space.RECORD:
        tape.patches[images, windows] = tape.current_section, window_array
    return window_array


def _materialise(g: Gradient, y: Array) -> Array:
    """Return the gradient with respect to ``y`` as a contiguous array of its shape."""
    if isinstance(g, float):
        return y.tape.filled(y.shape, g)
    return g if g.is_contiguous and g.shape == y.shape else y.tape.emit("copy", y.shape, [g])


def concatenate(*parts: Array) -> Array:
    """Concatenate the columns of all parts."""
    tape, rows, starts = parts[0].tape, parts[0].shape[0], [0]
    for part in parts:
        if part.shape[0] != rows:
            raise tape.error(f"cannot concatenate columns of arrays {' and '.join(str(p.shape) for p in parts)}")
        starts.append(starts[-1] + part.shape[1])
    out = tape.scratch_array((rows, starts[-1]))
    for part, start in zip(parts, starts, strict=False):
        tape.emit("copy", part.shape, [part], out=out.columns(start, start + part.shape[1]))

    def slice_gradient(start: int, stop: int) -> Callable[[Gradient], Gradient]:
        return lambda g: g if isinstance(g, float) else g.columns(start, stop).detach()

    out.parts = parts
    return tape.register_output(
        out, [Derivative(p, slice_gradient(a, a + p.shape[1])) for p, a in zip(parts, starts, strict=False)]
    )


def split(a: Array, column: int) -> tuple[Array, Array]:
    """Return the columns before ``column``, and the remaining ones.

    If ``a`` is a concatenation of two arrays of these widths, return those arrays, so that no gradient is computed with
    respect to a constant one.
    """
    if [part.shape[1] for part in a.parts] == [column, a.shape[1] - column]:
        return a.parts[0], a.parts[1]
    return a.columns(0, column), a.columns(column, a.shape[1])


def stack(a: Array, b: Array) -> Array:
    """Concatenate the rows of a and b."""
    tape, (rows, cols) = a.tape, a.shape
    if b.shape[1] != cols:
        raise tape.error(f"cannot stack the rows of arrays {a.shape} and {b.shape}")
    ends = rows, rows + b.shape[0]
    out = tape.scratch_array((ends[1], cols))
    for part, start, stop in ((a, 0, ends[0]), (b, *ends)):
        tape.emit("copy", part.shape, [part], out=out.row_view(start, stop))

    def slice_gradient(start: int, stop: int) -> Callable[[Gradient], Gradient]:
        return lambda g: g if isinstance(g, float) else g.row_view(start, stop)

    return tape.register_output(out, [Derivative(a, slice_gradient(0, ends[0])), Derivative(b, slice_gradient(*ends))])
