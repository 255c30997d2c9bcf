"""Settings of a configuration, derived from the structs that define them: types, bounds, defaults and docstrings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect as types

from onrig.hw.bounds import LARGEST, SMALLEST
from onrig.runtime.config.problem import NodePath
from onrig.runtime.config.registered import group_of, group_structs
from onrig.runtime.run_config import RunConfig
from onrig.tools.options import field_docs, one_line

REQUIRED: Final = "required"
MIN_HIDDEN_BOUND: Final = 1e8
"""Magnitude from which on bounds are not shown, since they only keep sums finite."""


class Field(NamedTuple):
    """One setting."""

    name: str
    values: str
    """Type and bounds in words."""
    default: str
    """Default in YAML; empty if ``meaning`` explains the effect of omitting the setting."""
    meaning: str


class Section(NamedTuple):
    """Settings of one mapping, or the additional settings of one of its variants."""

    path: str
    variant: str
    """``KEY: VALUE`` that chooses the variant; empty for settings that the variants share."""
    meaning: str
    fields: tuple[Field, ...]

    @property
    def path_parts(self) -> list[str]:
        """Components of the path, with ``a | b`` for sections with the same settings and ``NAME`` for a user-defined
        name.
        """
        return self.path.split(".") if self.path else []


def sections_of_run(section_types: Mapping[NodePath, type]) -> list[Section]:
    """Return all sections of a run's configuration.

    ``section_types`` maps paths to the types of the sections that other packages define.
    """
    field_type = types.type_info(RunConfig)
    assert isinstance(field_type, types.StructType)
    return list(_sections("", field_type, {".".join(map(str, path)): type_ for path, type_ in section_types.items()}))


def _sections(path: str, struct: types.StructType, section_types: Mapping[str, type]) -> Iterator[Section]:
    fields = [_resolve_type(path, field, section_types) for field in struct.fields]
    yield _section(path, "", struct, fields)
    yield from _nested_sections(path, fields, section_types)


def _resolve_type(path: str, field: types.Field, section_types: Mapping[str, type]) -> types.Field:
    """Return a field, with its type replaced if another package defines one for its path."""
    section_type = section_types.get(_join_path(path, field.encode_name))
    return (
        field
        if section_type is None
        else types.Field(field.name, field.encode_name, types.type_info(section_type), field.required)
    )


def _section(path: str, variant: str, struct: types.StructType, fields: Iterable[types.Field]) -> Section:
    docs = field_docs(struct.cls)
    members = tuple(
        Field(f.encode_name, _describe_type(f.type), _default(f), docs.get(f.name) or _section_summary(f.type))
        for f in fields
    )
    return Section(path, variant, one_line(struct.cls.__doc__ or ""), members)


def _section_summary(field_type: types.Type) -> str:
    """Return the first sentence of the docstring of a field's section."""
    docs = [struct.cls.__doc__ or "" for _, struct in _nested_structs(field_type)]
    return first_sentence(one_line(docs[0])) if len(docs) == 1 else ""


def first_sentence(text: str) -> str:
    """Return the text up to the first full stop that ends a sentence."""
    return re.split(r"(?<=\.)(?<!App\.)(?= [A-Z]|$)", text)[0]


def _nested_sections(path: str, fields: Sequence[types.Field], section_types: Mapping[str, type]) -> Iterator[Section]:
    """Yield the sections of the mappings in these fields; fields with the same mapping share one section."""
    groups: dict[tuple[type, ...], tuple[list[str], list[types.StructType]]] = {}
    for field in fields:
        nested_structs = list(_nested_structs(field.type))
        if nested_structs:
            structs = [struct for _, struct in nested_structs]
            names, _ = groups.setdefault(tuple(struct.cls for struct in structs), ([], structs))
            names.append(field.encode_name + nested_structs[0][0])
    for names, structs in groups.values():
        location = _join_path(path, " | ".join(names))
        is_single = len(structs) == 1 and not structs[0].tag_field
        yield from (
            _sections(location, structs[0], section_types) if is_single else _variants(location, structs, section_types)
        )


def _variants(path: str, structs: Sequence[types.StructType], section_types: Mapping[str, type]) -> Iterator[Section]:
    """Yield the settings common to most variants, then those specific to each."""

    def key(field: types.Field) -> tuple[str, str, str]:
        return field.encode_name, _describe_type(field.type), _default(field)

    counts = Counter(key(field) for struct in structs for field in struct.fields)
    common_keys = {field_key for field_key, count in counts.items() if 2 * count > len(structs)}
    fullest_struct = max(structs, key=lambda struct: sum(key(field) in common_keys for field in struct.fields))
    shared_fields = [field for field in fullest_struct.fields if key(field) in common_keys]
    other_structs = [struct for struct in structs if not common_keys <= set(map(key, struct.fields))]
    if shared_fields:
        meaning = f"For all except `{'`, `'.join(map(_variant_label, other_structs))}`." if other_structs else ""
        yield _section(path, "", fullest_struct, shared_fields)._replace(meaning=meaning)
        yield from _nested_sections(path, shared_fields, section_types)
    for struct in structs:
        own_fields = [field for field in struct.fields if key(field) not in common_keys]
        yield _section(path, _variant_label(struct), struct, struct.fields if struct in other_structs else own_fields)
        yield from _nested_sections(path, own_fields, section_types)


def _variant_label(struct: types.StructType) -> str:
    return f"{struct.tag_field}: {struct.tag}" if struct.tag_field else struct.cls.__name__.lower()


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _nested_structs(field_type: types.Type) -> Iterator[tuple[str, types.StructType]]:
    """Yield the mappings in a type, each after its path suffix: empty, ``[]`` in a list, or ``.NAME`` by name."""
    match field_type:
        case types.StructType():
            yield "", field_type
        case types.Metadata() if (group := group_of(field_type)) is not None:
            yield from (("", struct) for struct in group_structs(group))
        case types.Metadata():
            yield from _nested_structs(field_type.type)
        case types.UnionType():
            for member in field_type.types:
                yield from _nested_structs(member)
        case types.VarTupleType() | types.ListType():
            yield from (("[]", struct) for _, struct in _nested_structs(field_type.item_type))
        case types.DictType():
            yield from ((".NAME", struct) for _, struct in _nested_structs(field_type.value_type))


def _describe_type(field_type: types.Type) -> str:
    """Describe a type and its bounds in words."""
    match field_type:
        case types.Metadata() if group_of(field_type) is not None:
            return "section"
        case types.Metadata():
            unit = (field_type.extra or {}).get("unit")
            return f"{_describe_type(field_type.type)} ({unit})" if unit else _describe_type(field_type.type)
        case types.BoolType():
            return "true | false"
        case types.IntType():
            return f"whole number{_describe_bounds(field_type)}"
        case types.FloatType():
            return f"number{_describe_bounds(field_type)}"
        case types.StrType():
            return "text"
        case types.NoneType():
            return "null"
        case types.LiteralType():
            return " | ".join(map(str, field_type.values))
        case types.UnionType():
            kinds = [_describe_type(member) for member in field_type.types if not isinstance(member, types.NoneType)]
            null = ["null"] if len(kinds) < len(field_type.types) else []
            return " | ".join(dict.fromkeys([*kinds, *null]))
        case types.VarTupleType() | types.ListType():
            item, count = _describe_type(field_type.item_type), field_type.max_length
            return f"[{', '.join([item] * count)}]" if count and count == field_type.min_length else f"[{item}, ...]"
        case types.TupleType():
            return f"[{', '.join(map(_describe_type, field_type.item_types))}]"
        case types.NamedTupleType():
            return f"[{', '.join(_describe_type(field.type) for field in field_type.fields)}]"
        case types.DictType():
            return f"{{NAME: {_describe_type(field_type.value_type)}}}"
    return "section"


def _describe_bounds(number: types.IntType | types.FloatType) -> str:
    low, high = number.ge if number.gt is None else number.gt, number.le if number.lt is None else number.lt
    is_exclusive = number.gt is not None or low == SMALLEST
    if low is not None and (low == SMALLEST or low <= -LARGEST):
        low = 0 if is_exclusive else None
    if high is not None and high >= MIN_HIDDEN_BOUND:
        high = None
    low_text, high_text = (f"{value:.12g}" for value in (low or 0, high or 0))
    bounds = []
    if low is not None and high is not None and not is_exclusive and number.lt is None:
        bounds = [f" {low_text} to {high_text}"]
    else:
        bounds += [f" above {low_text}" if is_exclusive else f" from {low_text}"] if low is not None else []
        bounds += (
            [f" below {high_text}" if number.lt is not None else f" up to {high_text}"] if high is not None else []
        )
    return ",".join(bounds) + (f", multiple of {number.multiple_of}" if number.multiple_of else "")


def _default(field: types.Field) -> str:
    if field.required:
        return REQUIRED
    value: Any = field.default
    if value is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value in (msgspec.NODEFAULT, msgspec.UNSET) or isinstance(value, msgspec.Struct):
        return ""
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value
