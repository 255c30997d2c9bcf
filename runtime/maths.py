"""Functions for a plant's physics, for floats and for numpy arrays, with identical results for both.

Plants are written once, in terms of these functions.  Another array library is supported by supplying the same
functions.  Outside a function's domain the result is NaN or infinite for floats too, as in numpy, so that a diverging
plant causes no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Condition = bool | NDArray[np.bool_]
V = TypeVar("V", float, Array)


class Maths(Protocol[V]):
    """Functions available to a plant; angles are in rad."""

    @property
    def sin(self) -> Callable[[V], V]:
        """Sine."""

    @property
    def cos(self) -> Callable[[V], V]:
        """Cosine."""

    @property
    def tan(self) -> Callable[[V], V]:
        """Tangent."""

    @property
    def asin(self) -> Callable[[V], V]:
        """Inverse sine, from -pi/2 to pi/2."""

    @property
    def acos(self) -> Callable[[V], V]:
        """Inverse cosine, from 0 to pi."""

    @property
    def atan(self) -> Callable[[V], V]:
        """Inverse tangent, from -pi/2 to pi/2."""

    @property
    def atan2(self) -> Callable[[V | float, V | float], V]:
        """``atan2(y, x)``: angle of the point (x, y), from -pi to pi."""

    @property
    def hypot(self) -> Callable[[V | float, V | float], V]:
        """``hypot(x, y)``: distance of the point (x, y) from the origin."""

    @property
    def exp(self) -> Callable[[V], V]:
        """Exponential."""

    @property
    def log(self) -> Callable[[V], V]:
        """Natural logarithm."""

    @property
    def sqrt(self) -> Callable[[V], V]:
        """Square root."""

    @property
    def sinh(self) -> Callable[[V], V]:
        """Hyperbolic sine."""

    @property
    def cosh(self) -> Callable[[V], V]:
        """Hyperbolic cosine."""

    @property
    def tanh(self) -> Callable[[V], V]:
        """Hyperbolic tangent, e.g. for a smooth sign."""

    @property
    def abs(self) -> Callable[[V], V]:
        """Absolute value."""

    @property
    def sign(self) -> Callable[[V], V]:
        """1, 0 or -1."""

    @property
    def minimum(self) -> Callable[[V | float, V | float], V]:
        """The smaller of two values; NaN if either is NaN."""

    @property
    def maximum(self) -> Callable[[V | float, V | float], V]:
        """The larger of two values; NaN if either is NaN."""

    @property
    def clip(self) -> Callable[[V, V | float, V | float], V]:
        """``clip(x, low, high)``: x within [low, high]."""

    @property
    def where(self) -> Callable[[Condition, V | float, V | float], V]:
        """``where(condition, a, b)``: a if the condition holds, otherwise b; both are computed."""


def _with_python_floats(ufunc: Callable[..., Any]) -> Any:
    """Return a scalar version of a numpy function whose results differ from those of ``math`` in the last bit."""

    def function(*values: float) -> float:
        return float(ufunc(*values))

    return staticmethod(function)


def _nan_outside_domain(function: Callable[[float], float]) -> Any:
    """Return a function from ``math`` whose results equal numpy's, extended to return NaN outside its domain."""

    def function_or_nan(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return math.nan

    return staticmethod(function_or_nan)


class _ScalarMaths:
    # ``math`` is several times as fast as numpy for one value; the tests compare the results bit for bit.
    sin = _nan_outside_domain(math.sin)
    cos = _nan_outside_domain(math.cos)
    sqrt = _nan_outside_domain(math.sqrt)
    tan = _with_python_floats(np.tan)
    asin = _with_python_floats(np.arcsin)
    acos = _with_python_floats(np.arccos)
    atan = _with_python_floats(np.arctan)
    atan2 = _with_python_floats(np.arctan2)
    hypot = _with_python_floats(np.hypot)
    exp = _with_python_floats(np.exp)
    log = _with_python_floats(np.log)
    sinh = _with_python_floats(np.sinh)
    cosh = _with_python_floats(np.cosh)
    tanh = _with_python_floats(np.tanh)
    abs = staticmethod(math.fabs)

    @staticmethod
    def sign(x: float) -> float:
        return 1.0 if x > 0.0 else -1.0 if x < 0.0 else x + 0.0

    @staticmethod
    def minimum(a: float, b: float) -> float:
        return a if a < b or a != a else b

    @staticmethod
    def maximum(a: float, b: float) -> float:
        return a if a > b or a != a else b

    @staticmethod
    def clip(x: float, low: float, high: float) -> float:
        return _ScalarMaths.minimum(_ScalarMaths.maximum(x, low), high)

    @staticmethod
    def where(condition: Condition, a: float, b: float) -> float:
        return a if condition else b


class _BatchedMaths:
    sin: Any = staticmethod(np.sin)
    cos: Any = staticmethod(np.cos)
    tan: Any = staticmethod(np.tan)
    asin: Any = staticmethod(np.arcsin)
    acos: Any = staticmethod(np.arccos)
    atan: Any = staticmethod(np.arctan)
    atan2: Any = staticmethod(np.arctan2)
    hypot: Any = staticmethod(np.hypot)
    exp: Any = staticmethod(np.exp)
    log: Any = staticmethod(np.log)
    sqrt: Any = staticmethod(np.sqrt)
    sinh: Any = staticmethod(np.sinh)
    cosh: Any = staticmethod(np.cosh)
    tanh: Any = staticmethod(np.tanh)
    abs: Any = staticmethod(np.abs)
    sign: Any = staticmethod(np.sign)

    # Given 0.0 and -0.0, numpy's minimum and maximum return either of them, depending on the length of the array.
    @staticmethod
    def minimum(a: Array | float, b: Array | float) -> Array:
        return np.where(np.less(a, b) | np.isnan(a), a, b)

    @staticmethod
    def maximum(a: Array | float, b: Array | float) -> Array:
        return np.where(np.greater(a, b) | np.isnan(a), a, b)

    @staticmethod
    def clip(x: Array, low: Array | float, high: Array | float) -> Array:
        return _BatchedMaths.minimum(_BatchedMaths.maximum(x, low), high)

    @staticmethod
    def where(condition: Condition, a: Array | float, b: Array | float) -> Array:
        return np.where(condition, a, b)


SCALAR: Final = cast(Maths[float], _ScalarMaths())
BATCHED: Final = cast(Maths[Array], _BatchedMaths())


def maths_for(value: V) -> Maths[V]:
    """Return the functions for the type of ``value``: a float or a numpy array."""
    return SCALAR if isinstance(value, (float, int)) else BATCHED
