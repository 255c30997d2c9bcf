"""Mismatch between plain data and a type, from msgspec's error: the path of the faulty value and a message for the
user.

msgspec 0.19 to 0.22 end an error with nothing (for the root), with ``- at `$.a[0].b` `` or with ``- at `key` in
`$.a` ``, and write ``[...]`` for a mapping's value without its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import inspect

from onrig.runtime.config.bounds import Bounds, format_number
from onrig.runtime.config.expectation import describe_expected, format_value
from onrig.runtime.config.problem import NodePath, did_you_mean, format_choices, suggestion
from onrig.runtime.config.registered import possible_structs
from onrig.runtime.config.yaml_nodes import Data, value_at, with_value

_ERROR_LOCATION = re.compile(r"(?P<text>.*) - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`", re.DOTALL)
_STEP = re.compile(r"(?P<any>\[\.\.\.\])|\[(?P<index>\d+)\]|\.(?P<field>[^.\[]+)")
_FIELD = re.compile(r"Object (?P<kind>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)
_BOUND = re.compile(r"Expected `[^`]*` (?:>=|<=|>|<) .*")


class Mismatch(NamedTuple):
    """One error and its location: the key of ``path`` if ``at_key``, otherwise its value."""

    path: NodePath
    at_key: bool
    text: str
    """Message, to be completed by " at PATH" with ``text_path``."""
    text_path: NodePath
    hint: str
    """Suggested correction, or empty."""
    nearest: float | None = None
    """Nearest valid number, if the value is an out-of-bounds number."""


def explain(error: msgspec.ValidationError, data: Data, type_: object) -> Mismatch:
    """Locate and explain the error raised by ``msgspec.convert(data, type_)``."""
    message = _merge_paths(str(error))
    location = _ERROR_LOCATION.fullmatch(message)
    path, at_key = _locate(message, location, data, type_) if location else ((), False)
    text = location["text"] if location else message
    if field := _FIELD.fullmatch(text):
        owners = _types_at(type_, data, path)
        if field["kind"] == "missing required":
            tags = _tags(owners, field["name"])
            return Mismatch(path, False, f"missing required field {field['name']!r}", path, format_choices(tags))
        known_names = _field_names(owners, data, path)
        unknown_path = (*path, field["name"])
        return Mismatch(
            unknown_path, True, f"unknown field {field['name']!r}", path, suggestion(field["name"], known_names)
        )
    if value := _VALUE.fullmatch(text):
        allowed = _allowed_values(type_, data, path, at_key)
        value_text = value["value"].removeprefix("'").removesuffix("'")
        choice_types = (inspect.LiteralType, inspect.EnumType, inspect.NoneType)
        has_other_types = not at_key and any(not isinstance(t, choice_types) for t in _types_at(type_, data, path))
        if has_other_types and not did_you_mean(value_text, allowed):
            return _describe_unexpected(type_, data, path, at_key)
        return Mismatch(path, at_key, f"invalid value {value['value']}", path, suggestion(value_text, allowed))
    if _BOUND.fullmatch(text) and not at_key and (mismatch := _find_out_of_bounds(type_, data, path)):
        return mismatch
    if text.startswith("Expected `"):
        return _describe_unexpected(type_, data, path, at_key)
    return Mismatch(path, at_key, text[:1].lower() + text[1:], path, "")


def _describe_unexpected(type_: object, data: Data, path: NodePath, at_key: bool) -> Mismatch:
    """Describe a value (or key) of the wrong type."""
    value: Data = str(path[-1]) if at_key else value_at(data, path)
    if at_key:
        owners = _types_at(type_, data, path[:-1])
        types = [t for owner in owners if isinstance(owner, inspect.DictType) for t in _flatten_union(owner.key_type)]
    else:
        types = _types_at(type_, data, path)
    expected, remedy = (
        describe_expected(types, value) if types else (format_choices(_allowed_values(type_, data, path, at_key)), "")
    )
    return Mismatch(path, at_key, f"expected {expected}, got {format_value(value)}", path, remedy)


def is_optional(type_: object, data: Data, path: NodePath) -> bool:
    """Return whether the value at ``path`` can be omitted, because it has a default or its key is unknown."""
    if not path or not isinstance(path[-1], str):
        return False
    owners = _select_by_tag(_types_at(type_, data, path[:-1]), data, path[:-1])
    fields = [field for t in owners if isinstance(t, inspect.StructType) for field in t.fields]
    if path[-1] in {t.tag_field for t in owners if isinstance(t, inspect.StructType)}:
        return False
    return not any(field.required for field in fields if field.encode_name == path[-1])


def _locate(message: str, location: re.Match[str], data: Data, type_: object) -> tuple[NodePath, bool]:
    path: NodePath = ()
    for step in _STEP.finditer(location["path"]):
        if step["any"]:
            key = _failing_key(message, path, data, type_)
            if key is None:
                return path, False
            path = (*path, key)
        else:
            path = (*path, int(step["index"]) if step["index"] else step["field"])
    if not location["key"]:
        return path, False
    key = _failing_key(message, path, data, type_)
    return (path, False) if key is None else ((*path, key), True)


def _failing_key(message: str, path: NodePath, data: Data, type_: object) -> str | None:
    """Find the key of the mapping at ``path`` that causes the error, by converting each entry on its own."""
    try:
        mapping = value_at(data, path)
    except KeyError:
        return None
    for key, value in mapping.items() if isinstance(mapping, dict) else ():
        try:
            msgspec.convert(with_value(data, path, {key: value}), type_)
        except msgspec.ValidationError as error:
            if _merge_paths(str(error)) == message:
                return key
    return None


def _merge_paths(message: str) -> str:
    """Merge the paths of an error in a nested registered section (``onrig.runtime.config.registered``)."""
    while (
        (outer_match := _ERROR_LOCATION.fullmatch(message))
        and not outer_match["key"]
        and (inner_match := _ERROR_LOCATION.fullmatch(outer_match["text"]))
    ):
        message = f"{inner_match['text']} - at {inner_match['key'] or ''}`${outer_match['path']}{inner_match['path']}`"
    return message


def _allowed_values(type_: object, data: Data, path: NodePath, at_key: bool) -> list[str]:
    if at_key:
        owners = _types_at(type_, data, path[:-1])
        return _literal_values(
            t for owner in owners if isinstance(owner, inspect.DictType) for t in _flatten_union(owner.key_type)
        )
    choices = _literal_values(_types_at(type_, data, path))
    choices = choices or _tags(_types_at(type_, data, path), "kind")
    if choices or not path:
        return choices
    return _tags(_types_at(type_, data, path[:-1]), str(path[-1]))


def _types_at(type_: object, data: Data, path: NodePath) -> list[inspect.Type]:
    """Return the possible types of the value at ``path``; tags along the path select the members of unions."""
    types = _flatten_union(inspect.type_info(type_))
    for i, step in enumerate(path):
        owners = _select_by_tag(types, data, path[:i])
        types = [t for owner in owners for child_type in _child_types(owner, step) for t in _flatten_union(child_type)]
    return types


def _flatten_union(type_: inspect.Type) -> list[inspect.Type]:
    if isinstance(type_, inspect.UnionType):
        return [t for member in type_.types for t in _flatten_union(member)]
    if (structs := possible_structs(type_)) is not None:
        return structs
    return _flatten_union(type_.type) if isinstance(type_, inspect.Metadata) else [type_]


def _child_types(owner: inspect.Type, step: str | int) -> list[inspect.Type]:
    if isinstance(owner, inspect.StructType):
        return [field.type for field in owner.fields if field.encode_name == step]
    if isinstance(owner, inspect.DictType):
        return [owner.value_type]
    if isinstance(owner, inspect.TupleType):
        return [owner.item_types[step]] if isinstance(step, int) and step < len(owner.item_types) else []
    return [owner.item_type] if isinstance(owner, inspect.CollectionType) else []


def _select_by_tag(types: list[inspect.Type], data: Data, path: NodePath) -> list[inspect.Type]:
    try:
        value = value_at(data, path)
    except KeyError:
        return types
    structs = [t for t in types if isinstance(t, inspect.StructType)]
    matching_structs = [
        t for t in structs if t.tag_field and isinstance(value, dict) and value.get(t.tag_field) == t.tag
    ]
    return list(matching_structs or types)


def _field_names(owners: list[inspect.Type], data: Data, path: NodePath) -> list[str]:
    structs = [t for t in _select_by_tag(owners, data, path) if isinstance(t, inspect.StructType)]
    names = [name for t in structs for name in (t.tag_field, *(field.encode_name for field in t.fields)) if name]
    return list(dict.fromkeys(names))


def _tags(owners: list[inspect.Type], field: str) -> list[str]:
    return [str(t.tag) for t in owners if isinstance(t, inspect.StructType) and t.tag_field == field]


def _literal_values(types: Iterable[inspect.Type]) -> list[str]:
    choices: list[str] = []
    for t in types:
        if isinstance(t, inspect.LiteralType):
            choices += [str(value) for value in t.values]
        elif isinstance(t, inspect.EnumType):
            choices += [str(member.value) for member in t.cls]
    return choices


def _find_out_of_bounds(type_: object, data: Data, path: NodePath) -> Mismatch | None:
    value = value_at(data, path)
    for t, reason in _types_with_descriptions(type_, data, path):
        if isinstance(t, inspect.IntType | inspect.FloatType) and isinstance(value, int | float):
            bounds = Bounds.from_type(t)
            if bounds.is_too_low(value) or bounds.is_too_high(value):
                text = f"expected {bounds.expected_text(value)}, got {format_number(value)}"
                return Mismatch(path, False, text, path, reason, bounds.nearest(value))
    return None


def _types_with_descriptions(type_: object, data: Data, path: NodePath) -> Iterator[tuple[inspect.Type, str]]:
    """Yield the possible types of the value at ``path``, each with the ``description`` from its Meta."""
    pending: list[inspect.Type] = [inspect.type_info(type_)]
    if path:
        owners = _select_by_tag(_types_at(type_, data, path[:-1]), data, path[:-1])
        pending = [child_type for owner in owners for child_type in _child_types(owner, path[-1])]
    while pending:
        t = pending.pop(0)
        if isinstance(t, inspect.UnionType):
            pending += t.types
        elif isinstance(t, inspect.Metadata):
            yield from (
                (member_type, str((t.extra_json_schema or {}).get("description", "")))
                for member_type in _flatten_union(t.type)
            )
        else:
            yield t, ""
