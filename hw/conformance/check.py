"""Decorators for checks: the rules that a check covers, and its cases.

Checks are methods of the conformance classes; their names begin with ``test_``.  They take ``host`` (a session with
the device) or ``armed`` (the same session after configuring and arming), and the arguments of their cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


class CheckSkipped(Exception):
    """Raised by a check that does not apply to the device or needs a person who is absent; the message says why."""


class Cases(NamedTuple):
    """Argument values of a check, one row per run."""

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
    """Run a check once per value of an argument, or once per row for several arguments.

    If a check has several of these decorators, it runs once with every combination.
    """
    has_several_names = not isinstance(names, str)
    rows = tuple(tuple(value) if has_several_names else (value,) for value in values)
    case_table = Cases(
        tuple(names) if has_several_names else (str(names),),
        rows,
        tuple(ids) if ids is not None else tuple("-".join(map(_case_id, row)) for row in rows),
    )

    def mark(function: _F) -> _F:
        function.cases = (*getattr(function, "cases", ()), case_table)  # type: ignore[attr-defined]
        return function

    return mark


def _case_id(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(getattr(value, "name", value))
