"""What computes updates and plain policies, as files name it, and whether results may be continued here.

The C library's variants and numpy differ by rounding, and each repeats its own bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from onrig.hw.native.library import State, state, usable


@dataclass(frozen=True)
class Executor:
    """The C library in one of its variants, or numpy."""

    kind: str
    """``native`` or ``numpy``."""
    variant: str = ""
    """Of the C library: ``x86-64-v3``."""

    def __str__(self) -> str:
        return f"the C library ({self.variant})" if self.kind == "native" else self.kind


def executor_of(variant: str) -> Executor:
    """Return what computes where this variant is loaded, ``none`` for no library."""
    return Executor("numpy") if variant == "none" else Executor("native", variant)


def executor() -> Executor:
    """Return what computes in this process."""
    return executor_of(state().variant)


def read_executor(field: object) -> Executor | None:
    """Read the field ``executor`` of a file; None where it is missing or not one."""
    if not isinstance(field, Mapping):
        return None
    kind, variant = field.get("kind"), field.get("variant", "")
    return Executor(kind, variant) if isinstance(kind, str) and isinstance(variant, str) else None


def difference(recorded: Executor, here: State, available: Collection[str]) -> str | None:
    """Say in one line how results that ``recorded`` computed differ from those of this process, and what to do.

    here: what this process has loaded; available: variants that it could load.  None where both are the same.
    """
    now = executor_of(here.variant)
    if now == recorded:
        return None
    if recorded.kind == "numpy":
        how = "put ONRIG_NATIVE=off before the command"
    elif recorded.kind == "native" and recorded.variant in available:
        how = f"put ONRIG_NATIVE={recorded.variant} before the command"
    else:
        how = f"only a machine with {recorded} gives the same"
        how += f" ({here.reason})" if here.reason else ""
    return f"computed by {recorded}; here it would be {now}, which rounds differently: {how}"


def difference_here(recorded: Executor | None) -> str | None:
    """Compare with this process; None where both are the same, or nothing was recorded."""
    return None if recorded is None else difference(recorded, state(), usable())
