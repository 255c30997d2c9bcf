"""Sections selected by ``kind`` from a group of the registry, whose names are known only when a run is read.

A field ``Annotated[Any, registered(GROUP)]`` holds a struct of the group, tagged by ``kind``; the annotation may be
part of a union with None or UNSET, a tuple, a list, or the values of a mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from onrig.runtime import registry

_TAG_FIELD = "kind"
"""Default key of the selection; exploration uses ``process``."""


def registered(group: str, tag_field: str = _TAG_FIELD) -> msgspec.Meta:
    """Return the annotation for a field whose value is selected from a group by the key ``tag_field``."""
    return msgspec.Meta(extra={"group": group, "tag_field": tag_field})


def group_of(type_: inspect.Type) -> str | None:
    """Return the group that a type's annotation selects from; None for a type without such an annotation."""
    group = (type_.extra or {}).get("group") if isinstance(type_, inspect.Metadata) else None
    return group if isinstance(group, str) else None


def resolve_later(type_of: Callable[[], type[msgspec.Struct]]) -> msgspec.Meta:
    """Return the annotation for a field whose struct type is known only when a run is read, because it has registered
    sections."""
    return msgspec.Meta(extra={"later": type_of})


def possible_structs(type_: inspect.Type) -> list[inspect.Type] | None:
    """Return the types that a value with one of these annotations may have; None for any other type."""
    if (group := group_of(type_)) is not None:
        return list(group_structs(group))
    type_of = _deferred_struct(type_)
    return None if type_of is None else [inspect.type_info(type_of())]


def _deferred_struct(type_: inspect.Type) -> Callable[[], type[msgspec.Struct]] | None:
    extra = (type_.extra or {}) if isinstance(type_, inspect.Metadata) else {}
    return extra.get("later")


def group_structs(group: str) -> Iterator[inspect.StructType]:
    """Yield the types of a group's structs; one that does not load is reported by ``build_registered``."""
    for name in registry.names(group):
        with suppress(ValueError):
            info = inspect.type_info(registry.load(group, name))
            if isinstance(info, inspect.StructType):
                yield info


class WithRegistered(msgspec.Struct, frozen=True):
    """Section with ``registered`` fields; an overriding ``__post_init__`` must call this one."""

    def __post_init__(self) -> None:
        """Convert mappings to structs of their kind; raises ValueError in the format of msgspec's errors."""
        for name, encoded_name, type_ in _registered_fields(type(self)):
            value = getattr(self, name)
            built_value = _build_value(type_, value, f"$.{encoded_name}")
            if built_value is not value:
                msgspec.structs.force_setattr(self, name, built_value)


@cache
def _registered_fields(struct: type[msgspec.Struct]) -> list[tuple[str, str, inspect.Type]]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return [(f.name, f.encode_name, f.type) for f in info.fields if _has_registered_parts(f.type)]


def _has_registered_parts(type_: inspect.Type) -> bool:
    parts: tuple[inspect.Type, ...] = ()
    match type_:
        case inspect.Metadata():
            return bool(group_of(type_) or _deferred_struct(type_)) or _has_registered_parts(type_.type)
        case inspect.UnionType():
            parts = type_.types
        case inspect.VarTupleType() | inspect.ListType():
            parts = (type_.item_type,)
        case inspect.DictType():
            parts = (type_.value_type,)
    return any(map(_has_registered_parts, parts))


def _build_value(type_: inspect.Type, value: Any, location: str) -> Any:
    if value is None or value is msgspec.UNSET or isinstance(value, msgspec.Struct):
        return value
    match type_:
        case inspect.Metadata():
            group = group_of(type_)
            type_of = _deferred_struct(type_)
            if type_of is not None:
                return _convert_struct(value, type_of(), location)
            if group is None:
                return _build_value(type_.type, value, location)
            return build_registered(group, value, location, (type_.extra or {}).get("tag_field", _TAG_FIELD))
        case inspect.UnionType():
            return _build_value(next(filter(_has_registered_parts, type_.types)), value, location)
        case inspect.VarTupleType() | inspect.ListType():
            items = [_build_value(type_.item_type, item, f"{location}[{i}]") for i, item in enumerate(value)]
            return tuple(items) if isinstance(type_, inspect.VarTupleType) else items
        case inspect.DictType():
            return {key: _build_value(type_.value_type, item, f"{location}.{key}") for key, item in value.items()}
    return value


@cache
def _cached_type_info(type_: type) -> inspect.Type:
    return inspect.type_info(type_)


def convert(data: object, type_: Any) -> Any:
    """Convert like ``msgspec.convert``, to a type with ``registered`` parts outside any ``WithRegistered``."""
    value = msgspec.convert(data, type_)
    info = (
        _cached_type_info(type_) if isinstance(type_, type) else inspect.type_info(type_)
    )  # other types may be unhashable
    try:
        return _build_value(info, value, "$") if _has_registered_parts(info) else value
    except ValueError as error:
        raise msgspec.ValidationError(str(error)) from None


def build_registered(group: str, value: object, location: str = "$", tag_field: str = _TAG_FIELD) -> Any:
    """Build the struct described by a mapping with a ``kind``; raises ValueError in the format of msgspec's errors."""
    if not isinstance(value, Mapping):
        raise ValueError(f"Expected `object`, got `{_type_name(value)}` - at `{location}`")
    kind = value.get(tag_field)
    if kind is None:
        raise ValueError(f"Object missing required field `{tag_field}` - at `{location}`")
    if kind not in registry.names(group):
        raise ValueError(f"Invalid value '{kind}' - at `{location}.{tag_field}`")
    try:
        struct = registry.load(group, kind)
    except ValueError as error:
        raise ValueError(f"{error} - at `{location}.{tag_field}`") from None
    config = getattr(struct, "__struct_config__", None)
    if config is None or (config.tag_field, config.tag) != (tag_field, kind):
        raise ValueError(
            f"'{kind}' of {group} is not a struct with the tag '{kind}' in its field '{tag_field}' - at `{location}`"
        )
    return _convert_struct(value, struct, location)


def _convert_struct(value: object, struct: type[Any], location: str) -> Any:
    try:
        return msgspec.convert(value, struct)
    except msgspec.ValidationError as error:
        text, has_location, path = str(error).rpartition(" - at `$")
        raise ValueError(f"{text} - at `{location}{path}" if has_location else f"{error} - at `{location}`") from None


def _type_name(value: object) -> str:
    return {"list": "array", "NoneType": "null"}.get(type(value).__name__, type(value).__name__)
