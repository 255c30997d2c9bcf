"""What an unquoted scalar means: the core schema of YAML 1.2 (section 10.3.2), without what is ambiguous or unusable.

PyYAML's own loaders follow YAML 1.1.  Here ``1e-3`` is a float, and ``1:30``, ``on``, ``yes`` and ``2026-01-01`` are
text.  Deviations from the core schema, all of them refusals: integers with a leading zero (octal to YAML 1.1),
integers beyond 64 bits, ``.inf`` and ``.nan``.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

Scalar: TypeAlias = bool | int | float | str | None

_CONSTANTS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN")
_MAX_INT_DIGITS = 64


def resolve_plain(text: str) -> Scalar:
    """The value of an unquoted scalar.

    Raises:
        ValueError: for a number that is ambiguous, too large or not finite; its text is for the user.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(f"{text} could be meant as octal: drop the leading zero, or quote it if it is text")
    if INT.fullmatch(text):
        # base 0 reads 0x and 0o; the length is bounded first because int() of a long numeral is slow or refused
        value = int(text, 0) if len(text) <= _MAX_INT_DIGITS else 2**64
        if not -(2**63) <= value < 2**64:
            raise ValueError("integer does not fit into 64 bits")
        return value
    if FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"numbers must be finite, and {text} is too large for a float")
        return number
    if _NON_FINITE.fullmatch(text):
        raise ValueError(f"numbers must be finite, got {text} (quote it if it is text)")
    return text
