"""Markers of checks: the rules that a check covers, and the cases in which it runs.

Checks are methods of the conformance classes; their names begin with ``test_``, and their arguments are ``host`` (a
session with the device), ``armed`` (the same, configured and armed) or those of their cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


class CheckSkipped(Exception):
    """Check that does not apply to a device, or that needs a person who is not present; the message gives the
    reason."""


class Cases(NamedTuple):
    """Values of some arguments, one row per run of the check."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    ids: tuple[str, ...]


def rules(*numbers: str) -> Callable[[_F], _F]:
    """Declare the rules that a check covers."""

    def mark(function: _F) -> _F:
        function.rules = numbers  # type: ignore[attr-defined]
        return function

    return mark


def cases(names: str | Sequence[str], values: Iterable[Any], ids: Sequence[str] | None = None) -> Callable[[_F], _F]:
    """Run a check once per value of an argument, or per row of several; several markers give all combinations."""
    several = not isinstance(names, str)
    rows = tuple(tuple(value) if several else (value,) for value in values)
    case_table = Cases(
        tuple(names) if several else (str(names),),
        rows,
        tuple(ids) if ids is not None else tuple("-".join(map(_word, row)) for row in rows),
    )

    def mark(function: _F) -> _F:
        function.cases = (*getattr(function, "cases", ()), case_table)  # type: ignore[attr-defined]
        return function

    return mark


def _word(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(getattr(value, "name", value))
