"""Executor of updates and plain policies, as recorded in files, and whether results can be continued here.

The C library's variants, numpy and torch differ in rounding, and each reproduces its own results bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from onrig.hw.native.library import state, torch_device, usable_variants


@dataclass(frozen=True)
class Executor:
    """The C library in one of its variants, or numpy; plus torch if that runs the updates instead."""

    kind: str
    """``native`` or ``numpy``."""
    variant: str = ""
    """The C library's variant, such as ``x86-64-v3``; empty for numpy."""
    torch: str = ""
    """Device on which torch runs the updates; the library or numpy still evaluates policies."""

    def __str__(self) -> str:
        first = f"the C library ({self.variant})" if self.kind == "native" else self.kind
        return f"torch ({self.torch}) and {first}" if self.torch else first


def executor_of(variant: str) -> Executor:
    """Return the executor for a loaded variant, ``none`` for no library."""
    return Executor("numpy") if variant == "none" else Executor("native", variant)


def executor() -> Executor:
    """Return the executor of this process."""
    return replace(executor_of(state().variant), torch=torch_device())


def read_executor(field: object) -> Executor | None:
    """Read the field ``executor`` of a file; None if missing or invalid."""
    if not isinstance(field, Mapping):
        return None
    kind, *more = (field.get(name, default) for name, default in (("kind", None), ("variant", ""), ("torch", "")))
    return Executor(kind, *more) if all(isinstance(value, str) for value in (kind, *more)) else None


def difference(recorded: Executor, here: Executor, available: Collection[str], lacks: str = "") -> str | None:
    """Describe in one line how results of ``recorded`` differ from those of ``here``, and the remedy; None if equal.

    available: variants that this process could load; lacks: why it has none.
    """
    if here == recorded:
        return None
    wishes = [] if here.torch == recorded.torch else [f"ONRIG_TORCH={recorded.torch}"]
    if recorded.kind != here.kind or recorded.variant != here.variant:
        wishes.append(f"ONRIG_NATIVE={recorded.variant or 'off'}")
    remedy = f"put {' '.join(wishes)} before the command"
    if recorded.variant and recorded.variant not in available:
        remedy = f"only a machine with {recorded} gives the same{f' ({lacks})' if lacks else ''}"
    return f"computed by {recorded}; here it would be {here}, which rounds differently: {remedy}"


def difference_here(recorded: Executor | None) -> str | None:
    """Compare with this process; None if both are equal or nothing was recorded."""
    return None if recorded is None else difference(recorded, executor(), usable_variants(), state().reason)


def evaluator_difference(variant: str) -> str | None:
    """Compare the variant that evaluated policies with that of this process."""
    return difference(executor_of(variant), executor_of(state().variant), usable_variants(), state().reason)
