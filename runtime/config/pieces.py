"""The section ``python: {GROUP: {NAME: FILE.py:ATTRIBUTE}}``: plugins in Python files, registered before other sections
are read."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.runtime import registry
from onrig.runtime.config.document import MAX_BYTES, Document, problem_at
from onrig.runtime.config.problem import ConfigError, NodePath, Problem, hint
from onrig.runtime.config.yaml_nodes import Data, value_at, with_value
from onrig.runtime.files import read_file
from onrig.runtime.python_files import NotTrusted, python_file

KEY: Final = "python"
_PLANT: Final[NodePath] = ("device", "twin", "plant")
MAX_BARRIER_BYTES: Final = 64 << 20
_FILE_READING_PLUGINS: Final = (
    (_PLANT, registry.PLANTS, MAX_BYTES),
    (("limits", "predicted"), registry.BOXES, MAX_BARRIER_BYTES),
)
"""Plugins that may read a file, such as a solver's model or a barrier's table: path, group, maximum size."""
_RESULTS: Final = {"config.yaml": ("meta.json", "checksums.json", "buffer"), "spec.yaml": ("cells.json",)}
"""Files found next to a configuration or a spec only in a folder of results."""
_NAME: Final = re.compile(r"[A-Za-z]\w{0,63}")


def with_plugins(document: Document, base: Path | None) -> Document:
    """Register the plugins named in a configuration; return the configuration with their resolved paths.

    ``base``: the configuration's folder; None for results (`holds_results`), whose paths must already be resolved.
    Raises ConfigError, including for an untrusted file.
    """
    section = document.data.get(KEY) if isinstance(document.data, dict) else None
    if not isinstance(section, dict):
        return document  # other types are reported by the conversion
    problems: list[Problem] = []
    untrusted_files: dict[Path, NodePath] = {}
    data = document.data
    for key, plugins in section.items():
        group = next((group for group in registry.GROUPS if registry.group_key(group) == key), None)
        if group is None:
            suggestion = hint(key, map(registry.group_key, registry.GROUPS))
            problems.append(
                problem_at(document, (KEY, key), f"unknown group '{key}'{suggestion} at {KEY}", at_key=True)
            )
            continue
        for name, location in plugins.items() if isinstance(plugins, dict) else ():
            node_path: NodePath = (KEY, key, name)
            try:
                data = with_value(
                    data, node_path, _register_file(group, name, location, _base_folder(document, node_path, base))
                )
            except NotTrusted as refusal:
                untrusted_files.setdefault(refusal.path, node_path)
            except ValueError as error:
                problems.append(problem_at(document, node_path, f"{error} at {KEY}.{key}.{name}"))
    if untrusted_files:
        problems.append(problem_at(document, next(iter(untrusted_files.values())), str(NotTrusted(*untrusted_files))))
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(document, data=data)


def with_files(document: Document, folder: Path) -> Document:
    """Resolve the files that plugins read to their full paths, with their digests as ``sha256``.

    ``folder``: the configuration's folder. The plugin itself reports an unreadable file.
    """
    data = document.data
    for file in _plugin_files(data):
        path = ((_base_folder(document, file.node_path, folder) or folder) / file.name).absolute()
        data = with_value(data, file.node_path, str(path))
        if not file.sha256:
            with suppress(OSError):
                data = with_value(data, (*file.node_path[:-1], "sha256"), _digest_of(path, file.max_bytes))
    return dataclasses.replace(document, data=data)


def read_copies(data: Data) -> dict[str, bytes]:
    """Read the files that a resolved configuration's plugins use; return their contents, keyed by the path of the copy
    in a run folder."""
    copies = {}
    for file in _plugin_files(data):
        with suppress(OSError):
            copies[file.copy_path] = read_file(Path(file.name), file.max_bytes)
    return copies


def with_copies(document: Document, folder: Path) -> Document:
    """Return a run folder's resolved configuration, with the folder's copies in place of missing or changed files."""
    data = document.data
    for file in _plugin_files(data):
        copy = folder / file.copy_path
        if copy.is_file():
            with suppress(OSError):
                if _digest_of(Path(file.name), file.max_bytes) == file.sha256:
                    continue
            data = with_value(data, file.node_path, str(copy.absolute()))
    return dataclasses.replace(document, data=data)


class _File(NamedTuple):
    """File that a plugin names in its ``file_field``."""

    node_path: NodePath
    name: str
    sha256: str
    """Digest of the file's content; empty if not resolved yet."""
    max_bytes: int

    @property
    def copy_path(self) -> str:
        """Path of the copy in a run's folder."""
        return f"start/{self.sha256[:16]}{Path(self.name).suffix}"


def _plugin_files(data: Data) -> Iterator[_File]:
    for node_path, group, max_bytes in _FILE_READING_PLUGINS:
        try:
            section = value_at(data, node_path)
        except (KeyError, TypeError, IndexError):
            continue
        field = _file_field(group, section)
        if isinstance(section, dict) and isinstance(section.get(field), str):
            yield _File((*node_path, field), str(section[field]), str(section.get("sha256") or ""), max_bytes)


def _digest_of(path: Path, max_bytes: int) -> str:
    return hashlib.sha256(read_file(path, max_bytes)).hexdigest()


def _file_field(group: str, section: Data) -> str:
    """Return the name of a plugin's field that names a file; empty if it reads none or cannot be loaded (reported
    later)."""
    kind = section.get("kind") if isinstance(section, dict) else None
    try:
        return str(registry.load(group, kind).file_field) if isinstance(kind, str) else ""
    except (KeyError, ValueError, AttributeError):
        return ""


def _register_file(group: str, name: str, location: Data, base: Path | None) -> str:
    if not isinstance(location, str) or not _NAME.fullmatch(name):
        raise ValueError("expected NAME: FILE.py:ATTRIBUTE")
    file = python_file(location, base)
    registry.add_file(group, name, file)
    return file.resolved


def _base_folder(document: Document, node_path: NodePath, base: Path | None) -> Path | None:
    """Return the base folder of a relative path; the working directory for an override."""
    is_overridden = any(node_path[:n] in document.overrides for n in range(len(node_path) + 1))
    return Path() if base is not None and is_overridden else base


def holds_results(path: Path) -> bool:
    """Return whether a file is part of results: the configuration in a run's folder or the spec in an experiment's
    folder."""
    return any((path.parent / name).exists() for name in _RESULTS.get(path.name, ()))


class _PythonSection(msgspec.Struct):
    python: dict[str, dict[str, str]] | msgspec.UnsetType = msgspec.UNSET


def register_resolved(config: msgspec.Raw | bytes) -> None:
    """Register the plugins of a resolved configuration in JSON before it is decoded.

    Raises ValueError, including for a file that has changed or is not trusted.
    """
    plugin_groups = msgspec.json.decode(config, type=_PythonSection).python
    for key, plugins in ({} if plugin_groups is msgspec.UNSET else plugin_groups).items():
        for name, location in plugins.items():
            _register_file(f"onrig.{key}", name, location, None)
