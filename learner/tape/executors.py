"""The executor of this process: torch if requested, else compiled kernels if they are built, else numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from onrig.hw.native import library, torch_device, variant
from onrig.learner.tape.executor import Executor
from onrig.learner.tape.native_executor import NativeExecutor
from onrig.learner.tape.numpy_executor import NumpyExecutor


class ExecutorError(Exception):
    """Raised if the requested executor cannot run here; the message is one line."""


def executor_for(dtype: DTypeLike) -> Executor:
    """Return the executor for float32 or float64; raise ExecutorError if it cannot run here."""
    real_dtype: np.dtype[Any] = np.dtype(dtype)
    native, device = library(), torch_device()
    if device:
        return _torch_on(device, real_dtype)
    return NumpyExecutor(real_dtype) if native is None else NativeExecutor(native, variant(), real_dtype)


def _torch_on(device: str, dtype: np.dtype[Any]) -> Executor:
    try:
        from onrig.learner.tape.torch_executor import TorchExecutor

        return TorchExecutor(device, dtype)
    except ImportError as error:
        raise ExecutorError(
            f"ONRIG_TORCH={device}: torch cannot be imported ({error}); install onrig[learner]"
        ) from error
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ExecutorError(f"ONRIG_TORCH={device}: not available in torch; choose cpu or cuda ({reason})") from error
