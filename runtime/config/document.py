"""Configuration file: lookup by name, plain data with the position of every value, and overrides."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeVar

from onrig.runtime.config.expectation import format_value
from onrig.runtime.config.problem import START, ConfigError, Mark, NodePath, Problem, format_path, hint
from onrig.runtime.config.yaml_nodes import MAX_DEPTH, Data, end_mark, read_tree, value_at, with_value
from onrig.runtime.files import read_file
from onrig.runtime.printable import printable

T = TypeVar("T")

MAX_BYTES: Final = 1 << 20
MAX_ORIGIN_LENGTH: Final = 200
"""Maximum number of characters of an override quoted in messages about it."""

_ASSIGNMENT = re.compile(r"(?P<path>[^=]+)=(?P<value>.*)", re.DOTALL)
_PATH = re.compile(r"[^\s.\[\]]+(\[[0-9]{1,6}\])*(\.[^\s.\[\]]+(\[[0-9]{1,6}\])*)*")
_STEP = re.compile(r"\[(?P<index>[0-9]+)\]|(?P<key>[^.\[\]]+)")


@dataclass(frozen=True)
class Document:
    """Plain data, with the position of each value (``marks``) and of its key (``key_marks``).

    Positions refer to ``file``, except in subtrees set by an override; ``overrides`` gives the origin of these
    subtrees.
    """

    file: str
    data: Data
    marks: Mapping[NodePath, Mark]
    key_marks: Mapping[NodePath, Mark] = field(default_factory=dict)
    overrides: Mapping[NodePath, str] = field(default_factory=dict)


def load_document(path: Path | str) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: if the file cannot be read, is larger than 1 MiB, is not UTF-8, or is rejected by `parse_document`.
    """
    file = str(path)
    try:
        raw = read_file(Path(path), MAX_BYTES)
    except OSError as error:
        raise _error(file, START, f"cannot be read: {error.strerror or error}") from None
    return parse_content(raw, file)


def parse_content(raw: bytes, file: str) -> Document:
    """Parse the content of a YAML file; ``file`` is its name in messages.  Raises ConfigError like `load_document`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        mark = end_mark(raw[: error.start].decode())
        raise _error(file, mark, f"not UTF-8: byte 0x{raw[error.start]:02x}") from None
    return parse_document(text, file)


@lru_cache(maxsize=32)
def parse_document(text: str, file: str) -> Document:
    """Parse YAML text; ``file`` is its name in messages.  Cached, because an experiment reads the same files for every
    cell.

    Raises:
        ConfigError: for a syntax error, no document or more than one, duplicate or non-text keys, tags, ambiguous or
        non-finite numbers, self-references, more than 32 levels or 20 000 values; problems are reported together where
        possible.
    """
    tree = read_tree(text, file)
    if tree is None:
        raise _error(file, START, "the document is empty")
    return Document(file, tree.data, tree.marks, tree.key_marks)


def override(document: Document, assignment: str, *, origin: str | None = None) -> Document:
    """Set one value, as in ``learner.seed=3`` or ``explore.schedule[1].amplitude=0.5``, and return the new document.

    The value follows the syntax of the file (empty means null).  Missing mappings along the path are created; list
    items must exist.  Keys that contain a dot, a bracket or a space cannot be addressed.

    Raises:
        ConfigError: located in the pseudo file ``origin`` (by default ``--set ASSIGNMENT``), as are later problems
            with the new values.
    """
    origin = origin or override_origin(assignment)
    match = _ASSIGNMENT.fullmatch(assignment)
    if not match or not _PATH.fullmatch(match["path"].strip()):
        example_path = assignment.strip() if _PATH.fullmatch(assignment.strip()) and "=" not in assignment else "seed"
        raise _error(origin, START, f"expected PATH=VALUE, as in {example_path}=1")
    steps = _STEP.finditer(match["path"].strip())
    path: NodePath = tuple(int(step["index"]) if step["index"] else step["key"] for step in steps)
    if len(path) > MAX_DEPTH:
        raise _error(origin, START, f"nested more than {MAX_DEPTH} levels deep")
    try:
        tree = read_tree(match["value"], origin)
    except ConfigError as error:
        raise ConfigError(Problem(origin, START, problem.message) for problem in error.problems) from None
    value = tree.data if tree else None
    target = _settable_path(document.data, path, origin)
    for step in reversed(path[len(target) :]):
        value = {str(step): value}
    new_paths = list(_existing_paths(value, target))
    return Document(
        document.file,
        with_value(document.data, target, value),
        {**_overrides_outside(document.marks, target), **dict.fromkeys(new_paths, START)},
        {
            **_overrides_outside(document.key_marks, target),
            **{node_path: START for node_path in new_paths if node_path and isinstance(node_path[-1], str)},
        },
        {**_overrides_outside(document.overrides, target), target: origin},
    )


def with_value_from(document: Document, source: Document, node_path: NodePath) -> Document:
    """Return a document with the value at ``node_path`` and its positions copied from ``source``; all parents must be
    mappings."""

    def marks_below(marks: Mapping[NodePath, Mark]) -> dict[NodePath, Mark]:
        return {path: mark for path, mark in marks.items() if path[: len(node_path)] == node_path}

    return Document(
        document.file,
        with_value(document.data, node_path, value_at(source.data, node_path)),
        {**_overrides_outside(document.marks, node_path), **marks_below(source.marks)},
        {**_overrides_outside(document.key_marks, node_path), **marks_below(source.key_marks)},
        {**_overrides_outside(document.overrides, node_path), node_path: source.file},
    )


def override_origin(assignment: str) -> str:
    """Return the pseudo file to which an override's problems are attributed."""
    return f"--set {printable(assignment, MAX_ORIGIN_LENGTH)}"


def problem_at(document: Document, path: NodePath, message: str, *, at_key: bool = False) -> Problem:
    """Return a problem located at the value (or the key) of ``path``, or at the nearest enclosing value if ``path``
    does not exist."""
    marks = document.key_marks if at_key and path in document.key_marks else document.marks
    while path and path not in marks:
        path = path[:-1]
    origins = (document.overrides.get(path[:n]) for n in range(len(path), -1, -1))
    file = next((origin for origin in origins if origin is not None), document.file)
    return Problem(file, marks.get(path, START), message)


def _settable_path(data: Data, path: NodePath, origin: str) -> NodePath:
    """Return the part of ``path`` that exists, plus the first step that has to be created."""
    for i, step in enumerate(path):
        location = format_path(path[:i]) or "the document"
        if isinstance(step, int):
            if not isinstance(data, list) or step >= len(data):
                description = f"has {len(data)} items" if isinstance(data, list) else f"is {format_value(data)}"
                raise _error(origin, START, f"no item {step} to set: {location} {description}")
            data = data[step]
        elif data is None:
            return _creatable_path(path, i, origin)
        elif not isinstance(data, dict):
            raise _error(origin, START, f"no setting {step!r} to set: {location} is {format_value(data)}")
        elif step not in data:
            return _creatable_path(path, i + 1, origin)
        else:
            data = data[step]
    return path


def _creatable_path(path: NodePath, n_existing: int, origin: str) -> NodePath:
    if any(isinstance(step, int) for step in path[n_existing:]):
        raise _error(origin, START, f"{format_path(path)}: the list does not exist; set the complete list")
    return path[:n_existing]


def _existing_paths(data: Data, node_path: NodePath) -> Iterator[NodePath]:
    yield node_path
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in children:
        yield from _existing_paths(value, (*node_path, step))


def _overrides_outside(entries: Mapping[NodePath, T], path: NodePath) -> dict[NodePath, T]:
    return {node_path: entry for node_path, entry in entries.items() if node_path[: len(path)] != path}


def _error(file: str, mark: Mark, message: str) -> ConfigError:
    return ConfigError([Problem(file, mark, message)])


def shipped_names(folder: str = "") -> list[str]:
    """Return the names of the shipped configurations in a folder of ``configs`` (the top level holds the runs)."""
    root = files("onrig.configs").joinpath(folder) if folder else files("onrig.configs")
    names = [str(p.name) for p in root.iterdir()]
    return sorted(n.removesuffix(".yaml") for n in names if n.endswith(".yaml"))


def find_config(name: str, folder: str = "", base: Path = Path()) -> Path:
    """Locate a configuration by path (relative to ``base``), or ``FOLDER/NAME.yaml`` by its name.

    A name is looked up next to the file that uses it, then among the shipped configurations. For a run, a folder with a
    ``run.yaml`` is accepted too. Raises FileNotFoundError with the possible names.
    """
    path = Path(name)
    if not name:
        raise FileNotFoundError("the name of the file is empty")
    if path.suffix or len(path.parts) != 1:
        if is_file(base / path):
            return base / path
        suggestion = (
            f" (did you mean '{path.stem}'?)" if path.name == name and path.stem in shipped_names(folder) else ""
        )
        return _run_config_in(base / path, folder, f"no file '{base / path}'{suggestion}")
    local_path = base / folder / f"{name}.yaml"
    if folder and is_file(local_path):
        return local_path
    names = shipped_names(folder)
    if name not in names:
        local_names = (p.stem for p in (base / folder).glob("*.yaml")) if folder else ()
        suggestion = (
            f" (did you mean '{path}.yaml'?)" if is_file(base / f"{path}.yaml") else hint(name, {*names, *local_names})
        )
        return _run_config_in(base / path, folder, f"no '{name}'{suggestion}; shipped with Onrig: {', '.join(names)}")
    return Path(str(files("onrig.configs").joinpath(*folder.split("/") if folder else (), f"{name}.yaml")))


def _run_config_in(path: Path, folder: str, message: str) -> Path:
    """Return the ``run.yaml`` in a rig's folder (`onrig init`); raises FileNotFoundError, with ``message`` if there is
    no folder."""
    if folder or not os.path.isdir(path):  # is_dir() is also False for a name that is too long
        raise FileNotFoundError(message)
    if is_file(path / "run.yaml"):
        return path / "run.yaml"
    if is_file(path / "config.yaml"):
        raise FileNotFoundError(f"'{path}' is the folder of a run; its configuration is {path / 'config.yaml'}")
    raise FileNotFoundError(f"'{path}' is a folder without a run.yaml")


def is_file(path: Path) -> bool:
    """Return whether the file exists; False for an invalid file name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
