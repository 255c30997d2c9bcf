"""Where experiences may be replaced by computed ones on their way into the memory (000 §6.2.1, §6.3.1).

The memory knows the law of who gives way to whom; what is computed, and with which model, is the business of whoever
has one: ``onrig.sim.synthetic`` for the twin.  A rig has none.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.transitions import Transitions


class Resynthesised(NamedTuple):
    """What becomes of a batch of n measured transitions."""

    altered: Transitions
    """The same transitions, some of them replaced by synthetic ones (``Flag.SYNTHETIC``)."""
    renews: NDArray[np.bool_]
    """Of each, (n,), whether it decides anew what its slot holds.  One that does not leaves a synthetic experience in
    its slot as it is, and replaces a measured one as measured."""


class Resynthesiser(Protocol):
    """Replaces some transitions of a batch by synthetic ones; depends on each transition alone, not on the batch."""

    def __call__(self, measured: Transitions) -> Resynthesised:
        """Return what to offer to the memory, in the same order."""
        ...
