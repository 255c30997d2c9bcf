"""Numbers that a configuration may hold: finite, and so far from where floats end that sums and products stay finite.

The widest physical quantity of a bench and the finest one lie well inside.  Nothing beyond is a number anybody means,
and a few of them multiplied are infinite; differences of those are not even numbers.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

LARGEST: Final = 1e9
"""Of any quantity, in SI units."""
SMALLEST: Final = 1e-18
"""Of what must not be 0: its sixth power still is not, nor is it in single precision."""

Quantity = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)]
Positive = Annotated[float, msgspec.Meta(ge=SMALLEST, le=LARGEST)]
"""Anything that something is divided by."""
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
PositiveShare = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
AboveZero = Annotated[float, msgspec.Meta(gt=0.0, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e8)]
"""A time to wait, at most three years: in nanoseconds it fits into 64 bits."""
