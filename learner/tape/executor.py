"""What runs programs: over K updates of S trials, one trial after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.program import Program

Run = Callable[[NDArray[np.floating], NDArray[np.floating], NDArray[np.uint32] | None], None]
"""``run(state, records, sections)``: run a program on states (S, size), which it changes, and on records (S, K, size), in
order of K; ``sections`` (K,) has a bit for each section that runs in an update, None for none."""


class Executor(Protocol):
    """A way of running programs; a trial's results do not depend on the others."""

    name: str
    """As it stands in a run's meta data."""
    dtype: np.dtype[np.floating]

    def bind(self, program: Program) -> Run:
        """Prepare a program."""
        ...
