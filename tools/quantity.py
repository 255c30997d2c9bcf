"""Formatting of quantities: durations, counts, sizes, and estimates with their intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onrig.learner.trials.intervals import Bounds, PairedComparison

_TIME_UNITS: Final = (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
_MIN_SHOWN_DURATION_S: Final = 1e-9
"""Duration below which ``0 s`` is printed."""
_SIZE_UNITS: Final = (("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MIN_PLAIN: Final = 1e-3
"""Estimates below this value are printed with a power of ten."""
_MIN_GROUPED: Final = 10_000


def format_duration(seconds: float) -> str:
    """Format a duration: three digits below a minute, otherwise two units (``12 µs``, ``1.25 s``, ``1 h 07 min``)."""
    minutes, remainder_s = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if seconds >= 60:
        return f"{minutes} min {remainder_s:02d} s"
    if seconds < _MIN_SHOWN_DURATION_S:
        return "0 s"
    unit, scale = next(((u, s) for u, s in _TIME_UNITS if float(f"{seconds / s:.3g}") < 1000), _TIME_UNITS[-1])
    return f"{seconds / scale:.3g} {unit}"


def format_count(n: float) -> str:
    """Format a whole number, with thousands separators from 10 000 on."""
    return f"{n:,.0f}" if abs(n) >= _MIN_GROUPED else f"{n:.0f}"


def format_size(n: float) -> str:
    """Format a number of bytes in decimal multiples."""
    unit, scale = next((u, s) for u, s in reversed(_SIZE_UNITS) if n >= s or s == 1)
    return f"{n / scale:.3g} {unit}"


def unit_text(unit: str) -> str:
    """Format a unit in its usual notation."""
    return unit.replace("^2", "²").replace("^3", "³")


def axis_label(name: str, unit: str) -> str:
    """Return an axis label: the name of a quantity with its unit."""
    return f"{name} ({unit_text(unit)})"


def format_estimate(
    bounds: Bounds | PairedComparison,
    digits: int | None = None,
    unit: str = "",
    *,
    signed: bool = False,
    at_least: bool = False,
) -> str:
    """Format an estimate with the bounds of its interval, if any, and its unit: ``0.912 [0.901, 0.923] s``.

    ``digits`` is the number of decimals; by default, there are enough for two significant digits of the interval's
    width.
    """
    values, has_interval = (bounds.value, bounds.low, bounds.high), not math.isnan(bounds.low)
    power = 0
    if digits is None:
        largest = max(abs(v) for v in values if not math.isnan(v))
        power = math.floor(math.log10(largest)) if 0 < largest < _MIN_PLAIN else 0
        width = (bounds.high - bounds.low if has_interval else largest) / 10.0**power
        digits = max(0, 1 - math.floor(math.log10(width))) if width > 0 else 0
    number_format = f"{'+' if signed else ''}.{min(digits, 12)}f"
    value, low, high = (f"{v / 10.0**power:{number_format}}" for v in values)
    text = f"{'≥ ' if at_least else ''}{value}" + (f" [{low}, {high}]" if has_interval else "")
    if power:
        text = f"({text})" if has_interval else text
        text += f"·10{str(power).translate(_SUPERSCRIPTS)}"
    return f"{text} {unit_text(unit)}".rstrip()


def format_share(n: int, trials: int) -> str:
    """Format the number of trials that reached a level, with a lower bound on their share (95 %, one-sided)."""
    from onrig.learner.trials.intervals import fraction_lower_bound

    return f"{n} of {trials} (at least {100 * fraction_lower_bound(n, trials):.0f} %)"
