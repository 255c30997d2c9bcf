"""Record of the library that computes updates and plain policies, and whether this process can reproduce its results.

The C library's variants, numpy and torch round differently, but each reproduces its own results bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from onrig.hw.native.library import library_state, torch_device, usable_variants


@dataclass(frozen=True)
class Executor:
    """Library that computes results: a variant of the C library or numpy, and torch if it runs the updates."""

    kind: str
    """``native`` or ``numpy``."""
    variant: str = ""
    """The C library's variant, such as ``x86-64-v3``; empty for numpy."""
    torch: str = ""
    """Device on which torch runs the updates, or empty; the C library or numpy evaluates policies in either case."""

    def __str__(self) -> str:
        first = f"the C library ({self.variant})" if self.kind == "native" else self.kind
        return f"torch ({self.torch}) and {first}" if self.torch else first


def executor_of(variant: str) -> Executor:
    """Return the executor of a process that has loaded a variant (``none``: no library)."""
    return Executor("numpy") if variant == "none" else Executor("native", variant)


def executor() -> Executor:
    """Return the executor of this process."""
    return replace(executor_of(library_state().variant), torch=torch_device())


def read_executor(field: object) -> Executor | None:
    """Return the executor in a file's field ``executor``; None if it is missing or invalid."""
    if not isinstance(field, Mapping):
        return None
    kind, *texts = (field.get(name, default) for name, default in (("kind", None), ("variant", ""), ("torch", "")))
    return Executor(kind, *texts) if all(isinstance(value, str) for value in (kind, *texts)) else None


def describe_difference(
    recorded: Executor, current: Executor, available_variants: Collection[str], unavailable_reason: str = ""
) -> str | None:
    """Describe in one line how ``recorded`` and ``current`` differ, with the remedy; return None if they are equal.

    ``available_variants``: variants that this process can load; ``unavailable_reason``: why it cannot load others.
    """
    if current == recorded:
        return None
    variables = [] if current.torch == recorded.torch else [f"ONRIG_TORCH={recorded.torch}"]
    if recorded.kind != current.kind or recorded.variant != current.variant:
        variables.append(f"ONRIG_NATIVE={recorded.variant or 'off'}")
    remedy = f"put {' '.join(variables)} before the command"
    if recorded.variant and recorded.variant not in available_variants:
        reason = f" ({unavailable_reason})" if unavailable_reason else ""
        remedy = f"only a machine with {recorded} gives the same results{reason}"
    return f"computed by {recorded}; here it would be {current}, which rounds differently: {remedy}"


def difference_from_this_process(recorded: Executor | None) -> str | None:
    """Describe how a recorded executor differs from this process's; return None if it is equal or not recorded."""
    return (
        None
        if recorded is None
        else describe_difference(recorded, executor(), usable_variants(), library_state().reason)
    )


def evaluator_difference(variant: str) -> str | None:
    """Describe how the variant that evaluated policies differs from this process's; return None if it is equal."""
    return describe_difference(
        executor_of(variant), executor_of(library_state().variant), usable_variants(), library_state().reason
    )
