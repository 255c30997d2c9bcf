"""Programs run by numpy: the reference for the compiled kernels, and the fallback if they are not built."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from onrig.learner.tape.executor import Run, check_arrays
from onrig.learner.tape.numpy_kernels import FACTORIES, FUNCTIONS, UFUNCS, Kernel, Values
from onrig.learner.tape.operations import OPERATIONS, Space, operand_shapes
from onrig.learner.tape.program import Program


class NumpyExecutor:
    """Executor whose programs have one state, one record and one scratch space, which trials and updates use in
    turn."""

    name = "numpy"

    def __init__(self, dtype: np.dtype[np.floating]) -> None:
        self.dtype = dtype

    def bind(self, program: Program) -> Run:
        spaces = {
            int(Space.STATE): np.zeros(program.state.size, self.dtype),
            int(Space.RECORD): np.zeros(program.record.size, self.dtype),
            int(Space.SCRATCH): np.zeros(program.scratch_size, self.dtype),
        }
        kernels = [(1 << int(op["section"]), _bind_kernel(op, spaces)) for op in program.operations]
        dtype, (state_space, record_space) = self.dtype, (spaces[int(Space.STATE)], spaces[int(Space.RECORD)])

        def run(state: Values, records: Values, sections: NDArray[np.uint32] | None) -> None:
            check_arrays(program, dtype, state, records, sections)
            masks = [1] * records.shape[1] if sections is None else (sections | 1).tolist()
            with np.errstate(all="ignore"):  # diverged trials have non-finite values
                for trial_state, trial_records in zip(state, records, strict=True):
                    state_space[:] = trial_state
                    for record, mask in zip(trial_records, masks, strict=True):
                        record_space[:] = record
                        for section, kernel in kernels:
                            if section & mask:
                                kernel()
                        record[:] = record_space
                    trial_state[:] = state_space

        return run


def _bind_kernel(op: np.void, spaces: Mapping[int, Values]) -> Kernel:
    name = OPERATIONS[int(op["code"])].name
    out, *inputs = (_view(op, i, shape, spaces) for i, shape in enumerate(operand_shapes(op)))
    x, y = (out.dtype.type(op[key]) for key in ("x", "y"))
    ufunc, function = UFUNCS.get(name), FUNCTIONS.get(name)
    if ufunc is not None:
        return partial(ufunc, *inputs, out=out)
    if function is not None:
        return partial(function, *inputs, out)
    return FACTORIES[name](op, out, inputs, x, y)


def _view(op: np.void, i: int, shape: tuple[int, int], spaces: Mapping[int, Values]) -> Values:
    space = spaces[int(op["space"][i])]
    offset, size = int(op["at"][i]), space.itemsize
    strides = int(op["by_row"][i]) * size, int(op["by_col"][i]) * size
    return as_strided(space[offset:], shape, strides)
