"""Executors of programs: K updates of S trials, one trial after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.program import Program

Run = Callable[[NDArray[np.floating], NDArray[np.floating], NDArray[np.uint32] | None], None]
"""Function ``run(state, records, sections)`` that runs a program, update by update, on states (S, size) and records
(S, K, size), both of which it changes.  ``sections`` (K,) has, for each update, a bit for every section that runs in
it; None means that no section runs."""


class Executor(Protocol):
    """Backend that runs programs; a trial's results do not depend on the other trials."""

    name: str
    """``numpy``, ``native`` and the variant, or ``torch`` and the device."""
    dtype: np.dtype[np.floating]

    def bind(self, program: Program) -> Run:
        """Prepare a program."""
        ...


def check_arrays(
    program: Program,
    dtype: np.dtype[np.floating],
    state: NDArray[np.floating],
    records: NDArray[np.floating],
    sections: NDArray[np.uint32] | None,
) -> None:
    """Raise ValueError unless a program can run on these arrays."""
    S, K = records.shape[:2]
    if state.shape != (S, program.state.size) or records.shape != (S, K, program.record.size):
        expected_shapes = f"{(S, program.state.size)} and {(S, K, program.record.size)}"
        raise ValueError(
            f"expected states and records of shape {expected_shapes}, got {state.shape} and {records.shape}"
        )
    if not all(a.dtype == dtype and a.flags.c_contiguous for a in (state, records)):
        raise ValueError(f"expected contiguous states and records of {dtype}, got {state.dtype} and {records.dtype}")
    if sections is not None and (sections.shape != (K,) or sections.dtype != np.uint32):
        raise ValueError(f"expected sections of shape {(K,)} and uint32, got {sections.shape} and {sections.dtype}")
