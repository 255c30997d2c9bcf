"""Programs run by the compiled kernels (``hw/native/tape.c``), without the interpreter's lock."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.executor import Run, check_arrays
from onrig.learner.tape.operations import OPERATIONS, Kind
from onrig.learner.tape.program import Program

_ARGUMENTS: Final[list[Any]] = [
    ctypes.c_void_p,
    *[ctypes.c_int64] * 3,
    *[ctypes.c_void_p, ctypes.c_int64] * 2,
    *[ctypes.c_void_p] * 3,
]
_IS_PRODUCT: Final = np.array([operation.kind is Kind.PRODUCT for operation in OPERATIONS])
_MAX_LANES: Final = 64
"""Maximum number of elements in a vector register; narrower matrices are transposed if they have more rows than
that."""


class NativeExecutor:
    """Executor whose programs have their own scratch space."""

    def __init__(self, library: ctypes.CDLL, variant: str, dtype: np.dtype[np.floating]) -> None:
        self.name = f"native {variant}"
        self.dtype = dtype
        self._run = library["onrig_tape_run_float" if dtype == np.float32 else "onrig_tape_run_double"]
        self._run.argtypes, self._run.restype = _ARGUMENTS, None

    def bind(self, program: Program) -> Run:
        operations, run_native, n_operations = program.operations.copy(), self._run, len(program.operations)
        scratch = np.zeros(program.scratch_size, self.dtype)
        transpose_buffer = np.zeros(transposed_elements(operations).max(initial=0), self.dtype)
        addresses = [a.ctypes.data for a in (operations, scratch, transpose_buffer)]
        keep_alive, dtype = (operations, scratch, transpose_buffer), self.dtype

        def run(state: NDArray[Any], records: NDArray[Any], sections: NDArray[np.uint32] | None) -> None:
            check_arrays(program, dtype, state, records, sections)
            S, K, size = records.shape
            sections_address = None if sections is None else sections.ctypes.data
            assert keep_alive is not None
            run_native(
                addresses[0],
                n_operations,
                S,
                K,
                state.ctypes.data,
                state.shape[1],
                records.ctypes.data,
                size,
                addresses[1],
                addresses[2],
                sections_address,
            )

        return run


def transposed_elements(operations: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the maximum number of matrix elements that each operation transposes, which is 0 except for products."""
    rows, cols, inner = (operations[key].astype(np.int64) for key in ("rows", "cols", "inner"))
    elements = np.maximum(inner * cols, rows * np.minimum(cols, _MAX_LANES))
    return np.where(_IS_PRODUCT[operations["code"]], elements, 0)
