"""The executor of this installation: compiled kernels where they are built, else numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from onrig.hw.native import library, variant
from onrig.learner.tape.executor import Executor
from onrig.learner.tape.native_executor import NativeExecutor
from onrig.learner.tape.numpy_executor import NumpyExecutor


def executor_for(dtype: DTypeLike) -> Executor:
    """Return the fastest executor there is for float32 or float64."""
    real: np.dtype[Any] = np.dtype(dtype)
    native = library()
    return NumpyExecutor(real) if native is None else NativeExecutor(native, variant(), real)
