"""Bounds on numbers in a configuration, narrow enough that sums and products remain finite.

They leave ample room for every physical quantity on a bench.  Products of larger numbers could overflow to infinity,
and the difference of two infinities is NaN.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

LARGEST: Final = 1e9
"""Largest magnitude of any quantity, in SI units."""
SMALLEST: Final = 1e-18
"""Smallest magnitude of a nonzero quantity: neither its sixth power nor its float32 value underflows."""

Quantity = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)]
Positive = Annotated[float, msgspec.Meta(ge=SMALLEST, le=LARGEST)]
"""Number that is safe to divide by."""
NormalisedStd = Annotated[float, msgspec.Meta(ge=1e-4, le=100.0)]
"""Standard deviation of actions on [-1, 1]."""
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
PositiveShare = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
AboveZero = Annotated[float, msgspec.Meta(gt=0.0, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e8)]
"""Duration in seconds of at most three years, so that it fits into 64 bits in nanoseconds."""
