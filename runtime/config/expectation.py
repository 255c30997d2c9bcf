"""Description of the value that a setting's type expects, with an example, for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import inspect

from onrig.runtime.config.bounds import Bounds, format_number
from onrig.runtime.config.yaml_nodes import FLOAT, INT, Data

_EXAMPLE_NUMBERS: Final = (0.5, 10, 1, 100)
_MAX_VALUE_LENGTH: Final = 40
"""Maximum number of characters of a wrong value that are shown."""
_MAX_EXAMPLE_DEPTH: Final = 4
_BOOLEANS: Final = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NUMBER_WITH_UNIT: Final = re.compile(rf"({FLOAT.pattern})\s*[^\W\d_][\w/%°²]*")
_DECIMAL_COMMA: Final = re.compile(r"[-+]?\d+,\d+")


class Expectation(NamedTuple):
    """Description of the expected value (``a number, such as 0.5``) and, if known, a remedy for the given value."""

    text: str
    remedy: str


def describe_expected(types: Iterable[inspect.Type], value: Data) -> Expectation:
    """Describe what the alternative types of one setting expect in place of ``value``."""
    alternatives = list(_select_tagged_type(types, value))
    texts = list(dict.fromkeys(_expected_text(t, value) for t in alternatives if not isinstance(t, inspect.NoneType)))
    if len(texts) < len(alternatives) and any(isinstance(t, inspect.NoneType) for t in alternatives):
        texts.append("null")
    return Expectation(", or ".join(texts), _remedy(alternatives, value))


def _select_tagged_type(types: Iterable[inspect.Type], value: Data) -> Iterator[inspect.Type]:
    """Keep a single tagged type, selected by the tag ``value`` or else by the fewest required fields."""
    types = list(types)
    tagged = [t for t in types if isinstance(t, inspect.StructType) and t.tag_field]
    simplest = min(tagged, key=lambda t: sum(field.required for field in t.fields), default=None)
    selected = next((t for t in tagged if t.tag == value), simplest)
    return (t for t in types if t is selected or t not in tagged)


def format_value(value: Data) -> str:
    """Format a value as YAML in one short line."""
    if value is None:
        return "nothing"
    text = repr(value) if isinstance(value, str) else _format_inline(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."


def _expected_text(type_: inspect.Type, value: Data) -> str:
    match type_:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            description = "a whole number" if isinstance(type_, inspect.IntType) else "a number"
            return f"{description}, such as {_format_inline(_example(type_, value))}"
        case inspect.StrType():
            if type_.min_length is None and type_.max_length is None:
                return "text"
            low, high = type_.min_length or 0, type_.max_length
            return f"text of {low} or more characters" if high is None else f"text of {low} to {high} characters"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, type_.values))}" if len(type_.values) > 1 else str(type_.values[0])
        case inspect.StructType() | inspect.DictType():
            return f"settings in braces, such as {_format_inline(_example(type_, value))}"
        case inspect.TupleType():
            return f"{len(type_.item_types)} values in brackets, such as {_format_inline(_example(type_, value))}"
        case inspect.CollectionType():
            count = f"{type_.max_length} " if type_.min_length == type_.max_length is not None else ""
            return f"{count}values in brackets, such as {_format_inline(_example(type_, value))}"
    return "another value"


def _example(type_: inspect.Type, value: Data, depth: int = 0) -> Data:
    """Build a valid example, reusing ``value`` where it fits."""
    match type_:
        case inspect.Metadata():
            return _example(type_.type, value, depth)
        case inspect.UnionType():
            return _example(type_.types[0], value, depth)
        case inspect.IntType() | inspect.FloatType():
            return _example_number(type_, value)
        case inspect.BoolType():
            return True
        case inspect.LiteralType():
            return value if value in type_.values else type_.values[0]
        case inspect.StructType():
            return dict(_example_fields(type_, value, depth + 1))
        case inspect.DictType():
            return {"NAME": _example(type_.value_type, value, depth + 1)}
        case inspect.TupleType():
            is_uniform = len(set(map(str, type_.item_types))) == 1
            previous = [_example(item, 0 if is_uniform else 1, depth + 1) for item in type_.item_types[:-1]]
            return [*previous, _example(type_.item_types[-1], value, depth + 1)]
        case inspect.CollectionType():
            previous = [_example(type_.item_type, 0, depth + 1)] * max((type_.min_length or 0) - 1, 0)
            return [*previous, _example(type_.item_type, value, depth + 1)]
    return value if isinstance(value, str) else "NAME"


def _example_fields(type_: inspect.StructType, value: Data, depth: int) -> Iterator[tuple[str, Data]]:
    """Yield the fields of an example struct: its tag and required fields or, if it has neither, its first field."""
    if type_.tag_field:
        yield type_.tag_field, str(type_.tag)
    expected_fields = [field for field in type_.fields if field.required]
    if not expected_fields and not type_.tag_field:
        expected_fields = list(type_.fields[:1])
    for index, field in enumerate(expected_fields if depth < _MAX_EXAMPLE_DEPTH else ()):
        yield field.encode_name, _example(field.type, value if len(expected_fields) == 1 else index, depth)


def _example_number(type_: inspect.IntType | inspect.FloatType, value: Data) -> float:
    """Return the valid number nearest to ``value``, or a typical one if ``value`` is not a number."""
    bounds, is_whole = Bounds.from_type(type_), isinstance(type_, inspect.IntType)
    given = _number_in(value)
    if given is not None:
        number = round(given) if is_whole else given
        return bounds.nearest(number) if bounds.is_too_low(number) or bounds.is_too_high(number) else number
    examples = _EXAMPLE_NUMBERS[1:] if is_whole else _EXAMPLE_NUMBERS
    valid_examples = (number for number in examples if not bounds.is_too_low(number) and not bounds.is_too_high(number))
    return next(valid_examples, bounds.nearest(examples[0]))


def _number_in(value: Data) -> float | None:
    """Return a number, or the number that a text consists of; None for any other value."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else ""
    if _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    if INT.fullmatch(text):
        return int(text, 0)
    return float(text) if FLOAT.fullmatch(text) else None


def _remedy(types: Iterable[inspect.Type], value: Data) -> str:
    if not isinstance(value, str):
        return ""
    kinds = [type(t) for t in types]
    if inspect.BoolType in kinds and value.lower() in _BOOLEANS:
        return f"write {_BOOLEANS[value.lower()]}"
    if inspect.IntType not in kinds and inspect.FloatType not in kinds:
        return ""
    if _DECIMAL_COMMA.fullmatch(value):
        return f"write {value.replace(',', '.')}"
    if INT.fullmatch(value) or FLOAT.fullmatch(value):
        return "remove the quotes"
    return "write the number alone, in SI units" if _NUMBER_WITH_UNIT.fullmatch(value) else ""


def _format_inline(value: Data) -> str:
    """Format a value as YAML in one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return format_number(value)
        case list():
            return f"[{', '.join(map(_format_inline, value))}]"
        case dict():
            return "{" + ", ".join(f"{key}: {_format_inline(item)}" for key, item in value.items()) + "}"
    return "null" if value is None else str(value)
