"""Strict conversion of a document's data to structs; all problems are reported at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from onrig.runtime.config import registered
from onrig.runtime.config.document import Document, problem_at
from onrig.runtime.config.expectation import format_value
from onrig.runtime.config.mismatch import explain, is_optional
from onrig.runtime.config.problem import ConfigError, NodePath, Problem, format_path, suggestion
from onrig.runtime.config.yaml_nodes import value_at, with_value, without_key

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)

_MAX_PROBLEMS: Final = 100
"""Maximum number of problems reported for one value."""


class Conversion(NamedTuple, Generic[T]):
    """Converted value of part of a document, and every problem with it."""

    value: T | None
    """None if the conversion failed. It succeeds if all problems are out-of-bounds numbers, which are replaced by valid
    ones."""
    problems: list[Problem]
    repaired_paths: tuple[NodePath, ...] = ()
    """Paths affected by replaced numbers: the path of the value if it has a default, otherwise that of its section."""

    def require_value(self) -> T:
        """Return the value; raises ConfigError if there is any problem."""
        if self.problems:
            raise ConfigError(self.problems)
        return cast(T, self.value)


def convert(document: Document, path: NodePath, type_: type[T]) -> T:
    """Convert the value at ``path``, strictly (no text for a number, no bool for a float; an int is accepted as a
    float).

    Raises:
        ConfigError: with each wrong value at its position, each unknown field at its key, each missing field at its
        mapping.
    """
    return read(document, path, type_).require_value()


def convert_sections(
    document: Document, sections: Mapping[str, object], *, optional: Collection[str] = ()
) -> dict[str, object]:
    """Convert each top-level key to its type; missing ``optional`` keys are omitted from the result.

    Raises:
        ConfigError: with the problems of each section and every unknown or missing section, in line order.
    """
    return read_sections(document, sections, optional=optional).require_value()


def convert_by_section(document: Document, type_: type[StructT]) -> StructT:
    """Convert the entire document to a msgspec struct: `convert_sections` with the struct's fields as sections.

    Raises:
        ConfigError: like `convert_sections`; at the root if the struct's ``__post_init__`` raises ValueError.
    """
    return read_by_section(document, type_).require_value()


def read(document: Document, path: NodePath, type_: type[T]) -> Conversion[T]:
    """Convert the value at ``path`` as far as possible, treating each bad value as absent."""
    try:
        data = value_at(document.data, path)
    except KeyError:
        return Conversion(None, [problem_at(document, path, f"missing {format_path(path)}")])
    problems: list[Problem] = []
    repaired_paths: list[NodePath] = []
    paths_with_unknown_key: set[NodePath] = set()
    while len(problems) < _MAX_PROBLEMS:
        try:
            converted = registered.convert(data, type_)
        except msgspec.ValidationError as error:
            mismatch = explain(error, data, type_)
        else:
            return Conversion(
                converted if len(repaired_paths) == len(problems) else None, problems, tuple(repaired_paths)
            )
        # The missing field is probably the misspelled key.
        if mismatch.path in paths_with_unknown_key and not mismatch.at_key:
            break
        if mismatch.at_key:
            paths_with_unknown_key.add(mismatch.path[:-1])
        message = _with_hint(mismatch.text, path + mismatch.text_path, mismatch.hint)
        problems.append(problem_at(document, path + mismatch.path, message, at_key=mismatch.at_key))
        try:
            if is_optional(type_, data, mismatch.path):
                data = without_key(data, mismatch.path)
                repaired_path = path + mismatch.path
            elif mismatch.nearest is not None:
                data = with_value(data, mismatch.path, mismatch.nearest)
                repaired_path = path[:1] or mismatch.path[:1]
            else:
                break
        except KeyError:
            break
        if mismatch.nearest is not None:
            repaired_paths.append(repaired_path)
    return Conversion(None, problems)


def read_sections(
    document: Document, sections: Mapping[str, object], *, optional: Collection[str] = ()
) -> Conversion[dict[str, object]]:
    """Convert each top-level key to its type, like `read`; ``optional`` keys may be missing."""
    if not isinstance(document.data, dict):
        expected = (
            f"expected settings, one per line ({_shorten_list(list(sections))}), got {format_value(document.data)}"
        )
        return Conversion(None, [problem_at(document, (), expected)])
    problems: list[Problem] = []
    repaired_paths: list[NodePath] = []
    values: dict[str, object] = {}
    for name in document.data.keys() - sections.keys():
        message = _with_hint(f"unknown key {name!r}", (), suggestion(name, list(sections)))
        problems.append(problem_at(document, (name,), message, at_key=True))
    for name, type_ in sections.items():
        if name in document.data:
            section = read(document, (name,), cast(type[object], type_))
            values[name] = section.value
            problems += section.problems
            repaired_paths += section.repaired_paths
        elif name not in optional:
            problems.append(problem_at(document, (), f"missing required key {name!r}"))
    problems.sort(key=lambda p: (p.file != document.file, p.mark, p.file, p.message))
    return Conversion(values if len(repaired_paths) == len(problems) else None, problems, tuple(repaired_paths))


def read_by_section(document: Document, type_: type[StructT]) -> Conversion[StructT]:
    """Convert the entire document to a struct, like `read_sections`."""
    fields = msgspec.structs.fields(type_)
    sections = {f.encode_name: f.type for f in fields}
    conversion = read_sections(document, sections, optional={f.encode_name for f in fields if not f.required})
    if conversion.value is None:
        return Conversion(None, conversion.problems)
    try:
        value = type_(**{f.name: conversion.value[f.encode_name] for f in fields if f.encode_name in conversion.value})
    except ValueError as error:
        return Conversion(None, [*conversion.problems, problem_at(document, (), str(error))])
    return Conversion(value, conversion.problems, conversion.repaired_paths)


def _shorten_list(names: list[str]) -> str:
    return ", ".join(names[:3] + ["..."] * (len(names) > 3))


def _with_hint(text: str, path: NodePath, hint: str) -> str:
    return text + (f" at {format_path(path)}" if path else "") + (f" ({hint})" if hint else "")
