"""Units of a rig's quantities: equality, and the relation between a quantity and its rate of change.

Units are never converted: two descriptions of one quantity must use the same unit, however it is written (``m/s^2``,
``m s^-2``, ``m/s/s``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType
from typing import Final

Powers = MappingProxyType[str, int]
"""Exponent of each symbol; a text that cannot be parsed counts as one symbol."""

_TOKEN: Final = re.compile(
    r"(?P<mark>[/()])|(?P<symbol>[^\W\d_²³]+|[%°])(?:\^?(?P<power>-?\d)|(?P<raised>[²³]))?|1|[ *·.]+"
)
_ALIASES: Final = {
    **dict.fromkeys(("°", "degree", "degrees"), "deg"),
    **dict.fromkeys(("radian", "radians"), "rad"),
    **dict.fromkeys(("sec", "second", "seconds"), "s"),
    **dict.fromkeys(("volt", "volts"), "V"),
    **dict.fromkeys(("meter", "meters", "metre", "metres"), "m"),
}
_COMPOUND_UNITS: Final = {"rpm": {"rev": 1, "min": -1}, "Hz": {"s": -1}}
_TIME_UNITS: Final = ("s", "ms", "us", "µs", "min", "h")


@lru_cache(maxsize=256)
def parse_unit(unit: str) -> Powers:
    """Parse a unit: a product of symbols with integer powers, divided by the factor or bracket after each ``/``."""
    exponents: dict[str, int] = {}
    signs, is_divisor, index = [1], False, 0
    while index < len(unit):
        token = _TOKEN.match(unit, index)
        if token is None:
            return MappingProxyType({unit.strip(): 1})
        index, sign = token.end(), -signs[-1] if is_divisor else signs[-1]
        if token["mark"] == "/":
            is_divisor = True
        elif token["mark"] == "(":
            signs.append(sign)
            is_divisor = False
        elif token["mark"] == ")" and len(signs) > 1:
            signs.pop()
        elif token["symbol"]:
            power = sign * int(token["power"] or {"²": 2, "³": 3}.get(token["raised"] or "", 1))
            name = _ALIASES.get(token["symbol"], token["symbol"])
            for symbol, exponent in _COMPOUND_UNITS.get(name, {name: 1}).items():
                exponents[symbol] = exponents.get(symbol, 0) + power * exponent
            is_divisor = False
        elif token[0] == "1":
            is_divisor = False
    return MappingProxyType({symbol: power for symbol, power in exponents.items() if power})


def same_unit(first: str, second: str) -> bool:
    """Whether two texts denote the same unit."""
    return parse_unit(first) == parse_unit(second)


def per_second(unit: str) -> str:
    """Return the unit of a quantity's rate of change."""
    return f"{unit}/s" if unit else "1/s"


def is_rate(unit: str) -> bool:
    """Whether a unit is a unit of velocity, that is, of a quantity per time."""
    return any(parse_unit(unit).get(time_unit) == -1 for time_unit in _TIME_UNITS)
