"""The section ``python: {GROUP: {NAME: FILE.py:ATTRIBUTE}}``: plugins in Python files, registered before other sections
are read."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime import registry
from onrig.runtime.config.document import MAX_BYTES, Document, problem_at
from onrig.runtime.config.problem import ConfigError, NodePath, Problem, hint
from onrig.runtime.config.yaml_nodes import Data, replaced, value_at
from onrig.runtime.files import read_file
from onrig.runtime.python_files import NotTrusted, python_file

KEY: Final = "python"
_PLANT: Final[NodePath] = ("device", "twin", "plant")
MAX_BARRIER_BYTES: Final = 64 << 20
_NAME: Final = re.compile(r"[A-Za-z]\w{0,63}")


def with_pieces(document: Document, base: Path | None) -> Document:
    """Register the plugins named in a configuration; the result holds their resolved paths.

    ``base``: the configuration's folder; None if already resolved. Raises ConfigError, also for an untrusted file.
    """
    section = document.data.get(KEY) if isinstance(document.data, dict) else None
    if not isinstance(section, dict):
        return document  # other types are reported by the conversion
    problems: list[Problem] = []
    refused: dict[Path, NodePath] = {}
    data = document.data
    for key, pieces in section.items():
        group = next((group for group in registry.GROUPS if registry.key_of(group) == key), None)
        if group is None:
            meant = hint(key, map(registry.key_of, registry.GROUPS))
            problems.append(problem_at(document, (KEY, key), f"unknown group '{key}'{meant} at {KEY}", at_key=True))
            continue
        for name, place in pieces.items() if isinstance(pieces, dict) else ():
            node_path: NodePath = (KEY, key, name)
            try:
                data = replaced(data, node_path, _registered(group, name, place, _folder(document, node_path, base)))
            except NotTrusted as refusal:
                refused.setdefault(refusal.path, node_path)
            except ValueError as error:
                problems.append(problem_at(document, node_path, f"{error} at {KEY}.{key}.{name}"))
    if refused:
        problems.append(problem_at(document, next(iter(refused.values())), str(NotTrusted(*refused))))
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(document, data=data)


def with_plant_file(document: Document, beside: Path) -> Document:
    """Resolve the file that a plant reads (a solver's model): full path and digest.

    ``beside``: the configuration's folder.  An unreadable file is left to the plant, which reports it.
    """
    return _with_file(document, beside, _PLANT, registry.PLANTS, MAX_BYTES)


def with_barrier(document: Document, beside: Path) -> Document:
    """Resolve the table of a sampled barrier: full path and digest; a missing one is left to the checks."""
    return _with_file(document, beside, ("limits", "predicted"), registry.BOXES, MAX_BARRIER_BYTES)


def _with_file(document: Document, beside: Path, at: NodePath, group: str, max_bytes: int) -> Document:
    """Resolve the file that a piece of a group names in its ``file_field``: full path, and digest as ``sha256``."""
    try:
        section = value_at(document.data, at)
    except (KeyError, TypeError, IndexError):
        return document
    field = _file_field(group, section)
    if not isinstance(section, dict) or not isinstance(section.get(field), str):
        return document
    path = ((_folder(document, (*at, field), beside) or beside) / str(section[field])).absolute()
    resolved: dict[str, Data] = {**section, field: str(path)}
    with suppress(OSError):
        resolved.setdefault("sha256", hashlib.sha256(read_file(path, max_bytes)).hexdigest())
    return dataclasses.replace(document, data=replaced(document.data, at, resolved))


def _file_field(group: str, section: Data) -> str:
    """Field of a piece that names a file; empty if it reads none, or cannot be loaded (reported later)."""
    kind = section.get("kind") if isinstance(section, dict) else None
    try:
        return str(registry.load(group, kind).file_field) if isinstance(kind, str) else ""
    except (KeyError, ValueError, AttributeError):
        return ""


def _registered(group: str, name: str, place: Data, base: Path | None) -> str:
    if not isinstance(place, str) or not _NAME.fullmatch(name):
        raise ValueError("expected NAME: FILE.py:ATTRIBUTE")
    file = python_file(place, base)
    registry.add_file(group, name, file)
    return file.resolved


def _folder(document: Document, node_path: NodePath, base: Path | None) -> Path | None:
    """Return the base folder of a relative path; the working directory for an override."""
    overridden = any(node_path[:n] in document.overrides for n in range(len(node_path) + 1))
    return Path() if base is not None and overridden else base


class _Named(msgspec.Struct):
    python: dict[str, dict[str, str]] | msgspec.UnsetType = msgspec.UNSET


def register_resolved(config: msgspec.Raw | bytes) -> None:
    """Register the plugins of a resolved configuration in JSON before it is decoded.

    Raises ValueError, also for a file that has changed or is not trusted.
    """
    named = msgspec.json.decode(config, type=_Named).python
    for key, pieces in ({} if named is msgspec.UNSET else named).items():
        for name, place in pieces.items():
            _registered(f"onrig.{key}", name, place, None)
