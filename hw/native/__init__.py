"""Onrig's C library and the selection of its variant for this processor; every function also has a Python form."""

from onrig.hw.native.library import (
    ABI,
    COST_WITHOUT_LIBRARY,
    State,
    builtin,
    library,
    state,
    torch_device,
    usable_variants,
    variant,
)
from onrig.hw.native.provenance import (
    Executor,
    difference,
    difference_here,
    evaluator_difference,
    executor,
    executor_of,
    read_executor,
)

__all__ = [
    "ABI",
    "COST_WITHOUT_LIBRARY",
    "Executor",
    "State",
    "builtin",
    "difference",
    "difference_here",
    "evaluator_difference",
    "executor",
    "executor_of",
    "library",
    "read_executor",
    "state",
    "torch_device",
    "usable_variants",
    "variant",
]
