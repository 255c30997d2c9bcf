"""Bounds on a number, read from a field's ``msgspec.Meta``: their description, and the nearest value within them."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from msgspec import inspect

_LARGE_BOUND: Final = 1e6
"""A bound of this magnitude is mentioned only for a value that exceeds it."""


class Bounds(NamedTuple):
    """An interval from ``low`` to ``high``, open or closed at each end; infinite where unbounded."""

    low: float
    high: float
    excludes_low: bool
    excludes_high: bool
    is_integer: bool
    """Whether the number is an integer."""

    @staticmethod
    def from_type(type_: inspect.IntType | inspect.FloatType) -> Bounds:
        """Read the bounds of a msgspec type."""
        low = type_.ge if type_.gt is None else type_.gt
        high = type_.le if type_.lt is None else type_.lt
        return Bounds(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            type_.gt is not None,
            type_.lt is not None,
            isinstance(type_, inspect.IntType),
        )

    def is_too_low(self, value: float) -> bool:
        """Return whether a value lies below the interval."""
        return value <= self.low if self.excludes_low else value < self.low

    def is_too_high(self, value: float) -> bool:
        """Return whether a value lies above the interval."""
        return value >= self.high if self.excludes_high else value > self.high

    def nearest(self, value: float) -> float:
        """Return the number in the interval that is nearest to a value outside it."""
        bound, exclusive = (self.low, self.excludes_low) if self.is_too_low(value) else (self.high, self.excludes_high)
        if not exclusive:
            return bound
        direction = 1 if bound == self.low else -1
        return bound + direction if self.is_integer else math.nextafter(bound, direction * math.inf)

    def expected_text(self, value: float) -> str:
        """Return the text of the bound that a value violates: ``0 to 1``, ``at least 1``, ``a positive number``."""
        low = self.low > -math.inf and (self.is_too_low(value) or abs(self.low) < _LARGE_BOUND)
        high = self.high < math.inf and (self.is_too_high(value) or abs(self.high) < _LARGE_BOUND)
        a, b = format_number(self.low), format_number(self.high)
        if low and high:
            return {
                (False, False): f"{a} to {b}",
                (True, False): f"more than {a}, at most {b}",
                (False, True): f"{a} to less than {b}",
                (True, True): f"between {a} and {b}",
            }[self.excludes_low, self.excludes_high]
        if low and self.low == 0:
            return "a positive number" if self.excludes_low else "0 or more"
        if low:
            return f"{'more than' if self.excludes_low else 'at least'} {a}"
        return f"{'less than' if self.excludes_high else 'at most'} {b}"


def format_number(number: float) -> str:
    """Format a number: integers in full, others with up to six digits."""
    return str(number) if isinstance(number, int) else f"{number:g}"
