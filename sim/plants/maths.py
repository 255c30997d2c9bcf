"""The few functions a plant needs beyond arithmetic, for one system (float) and for many at once (numpy arrays).

A plant is written once against :class:`Maths`; another array library joins by supplying the same two functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Condition = bool | NDArray[np.bool_]
V = TypeVar("V", float, Array)


class Maths(Protocol[V]):
    """What a plant may call."""

    @property
    def sin(self) -> Callable[[V], V]:
        """Sine of an angle in rad."""

    @property
    def where(self) -> Callable[[Condition, V | float, V | float], V]:
        """``where(condition, a, b)``: a where the condition holds, else b."""


class _Scalar:
    sin = staticmethod(math.sin)

    @staticmethod
    def where(condition: Condition, a: float, b: float) -> float:
        return a if condition else b


class _Batched:
    @staticmethod
    def sin(x: Array) -> Array:
        return cast(Array, np.sin(x))

    @staticmethod
    def where(condition: Condition, a: Array | float, b: Array | float) -> Array:
        return np.where(condition, a, b)


SCALAR: Final[Maths[float]] = _Scalar()
BATCHED: Final[Maths[Array]] = _Batched()


def maths_for(value: V) -> Maths[V]:
    """The functions that fit a value: a float or a numpy array."""
    return SCALAR if isinstance(value, (float, int)) else BATCHED
