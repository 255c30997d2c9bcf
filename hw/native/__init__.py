"""Onrig's C library and the selection of its variant for this processor; every function also exists in Python."""

from onrig.hw.native.library import (
    ABI,
    COST_WITHOUT_LIBRARY,
    LibraryState,
    builtin,
    library,
    library_state,
    torch_device,
    usable_variants,
    variant,
)
from onrig.hw.native.provenance import (
    Executor,
    describe_difference,
    difference_from_this_process,
    evaluator_difference,
    executor,
    executor_of,
    read_executor,
)

__all__ = [
    "ABI",
    "COST_WITHOUT_LIBRARY",
    "Executor",
    "LibraryState",
    "builtin",
    "describe_difference",
    "difference_from_this_process",
    "evaluator_difference",
    "executor",
    "executor_of",
    "library",
    "library_state",
    "read_executor",
    "torch_device",
    "usable_variants",
    "variant",
]
