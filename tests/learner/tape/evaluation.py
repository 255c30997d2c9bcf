"""Functions of arrays, evaluated with their gradients; the executors of this installation."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import library, variant
from onrig.learner.tape.array import Array
from onrig.learner.tape.executor import Executor
from onrig.learner.tape.executors import executor_for
from onrig.learner.tape.native_executor import NativeExecutor
from onrig.learner.tape.numpy_executor import NumpyExecutor
from onrig.learner.tape.program import finish_program
from onrig.learner.tape.spaces import Layout, allocate_rows
from onrig.learner.tape.trace import Tape

Values = NDArray[np.float64]


def torch_executors(dtype: type[np.floating]) -> list[Executor]:
    """The torch executor on each device; none without torch."""
    if find_spec("torch") is None:
        return []
    import torch

    from onrig.learner.tape.torch_executor import TorchExecutor

    real_dtype: np.dtype[Any] = np.dtype(dtype)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [TorchExecutor(device, real_dtype) for device in devices]


def library_executors(dtype: type[np.floating]) -> list[Executor]:
    """The C library's executor; none without the library."""
    native = library()
    real_dtype: np.dtype[Any] = np.dtype(dtype)
    return [] if native is None else [NativeExecutor(native, variant(), real_dtype)]


def executors(dtype: type[np.floating]) -> list[Executor]:
    """All executors, numpy first."""
    real_dtype: np.dtype[Any] = np.dtype(dtype)
    return [NumpyExecutor(real_dtype), *torch_executors(dtype), *library_executors(dtype)]


def evaluate(function: Callable[..., Array], *inputs: Values) -> tuple[Values, list[Values]]:
    """Value in float64, and gradients of the sum of its elements by each input."""
    state, record = Layout(), Layout()
    groups = [state.group(f"input{i}", {"value": values.shape}) for i, values in enumerate(inputs)]
    gradient_fields = [record.add(f"gradient{i}", *values.shape) for i, values in enumerate(inputs)]
    tape = Tape(state, record)
    result = function(*(tape.read(g.fields[0]) for g in groups))
    value = record.add("value", *result.shape)
    tape.output(value, result)
    for field, gradient in zip(gradient_fields, tape.gradient(result.sum(), groups), strict=True):
        tape.output(field, gradient.reshape(*field.shape))
    executor = executor_for(np.float64)
    rows, records = allocate_rows(1, state, executor.dtype), allocate_rows(1, record, executor.dtype)
    for group, values in zip(groups, inputs, strict=True):
        rows[0, group.flat_field.slice] = values.reshape(-1)
    executor.bind(finish_program(tape))(rows, records[:, None], None)
    value_read, *gradients = (
        records[0, f.slice].reshape(f.shape).astype(np.float64) for f in (value, *gradient_fields)
    )
    return value_read, gradients
