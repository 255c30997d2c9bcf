"""Pieces in Python files that a configuration names: their identity, whether they may run, and their import.

A file is written ``FILE.py:NAME`` beside the configuration, and resolved to ``PATH:NAME#sha256:HEX``, which is what a
run folder holds.  The content is read once, compared with its digest and executed: what ran is what was recorded.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from onrig.runtime.files import read_file

MAX_BYTES: Final = 1 << 20
_WRITTEN: Final = re.compile(r"(?P<path>[^\0]+\.py):(?P<name>[A-Za-z_]\w*)(?:#sha256:(?P<digest>[0-9a-f]{64}))?")
_TRUST: Final = "ONRIG_TRUST"
"""Environment variable with the digests of the files that this process and its children may run."""
_everything = False
_allowed: dict[str, bytes] = {}
"""Contents by digest of the files that this process found and may run."""
_received: dict[str, bytes] = {}
"""Contents by digest that another machine sent, in place of files."""


class PythonFile(NamedTuple):
    """A piece in a file."""

    path: Path
    attribute: str
    sha256: str

    @property
    def identity(self) -> tuple[str, str]:
        """What makes two pieces the same, wherever their files are."""
        return self.sha256, self.attribute

    @property
    def resolved(self) -> str:
        """As a resolved configuration has it."""
        return f"{self}#sha256:{self.sha256}"

    def __str__(self) -> str:
        return f"{self.path}:{self.attribute}"


class NotTrusted(ValueError):
    """Files that nobody allowed to run."""

    def __init__(self, *paths: Path) -> None:
        # What to do comes first: long messages are cut.
        super().__init__(f"its Python code runs only with --trust; read it first: {', '.join(map(str, paths))}")
        self.path = paths[0]


def python_file(text: str, beside: Path | None) -> PythonFile:
    """Read a name of a piece, written in a configuration in the folder ``beside``, or resolved.

    The written form is allowed to run where that folder is the working directory or below it, the resolved one where
    the caller or its parent process said so.  Raises NotTrusted, and ValueError for a bad name, a missing file, and one
    that has changed since it was resolved.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no piece in a file: expected FILE.py:NAME")
    path, digest = Path(match["path"]), match["digest"]
    if digest is None:
        if beside is None or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{path}' must be beside the configuration or in a folder below it")
        path = (beside / path).resolve()
    try:
        content = _content(path, digest)
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read: {error.strerror or error}") from None
    found = hashlib.sha256(content).hexdigest()
    if digest is not None and found != digest:
        raise ValueError(f"'{path}' has changed since the run began: restore it, or start a new run")
    file = PythonFile(path, match["name"], found)
    if digest is None and beside is not None and beside.resolve().is_relative_to(Path.cwd()):
        trust(found)
    if not (_everything or found in trusted()):
        raise NotTrusted(path)
    trust(found)
    _allowed[found] = content
    return file


def _content(path: Path, digest: str | None) -> bytes:
    received = _received.get(digest or "")
    return read_file(path, MAX_BYTES) if received is None else received


def allowed_contents() -> dict[str, bytes]:
    """Contents by digest of the files that this process may run, for ``receive`` on another machine."""
    return dict(_allowed)


def receive(contents: Mapping[str, bytes]) -> None:
    """Allow files to run that another machine sends, and take them in place of what is at their paths here."""
    for content in contents.values():
        digest = hashlib.sha256(content).hexdigest()
        _received[digest] = content
        trust(digest)


def trust(digest: str) -> None:
    """Allow a file to run in this process and in those that it starts."""
    os.environ[_TRUST] = ",".join(sorted({*trusted(), digest}))


def trust_everything() -> None:
    """Allow every file to run that a configuration names (``--trust``)."""
    global _everything
    _everything = True


def trusted() -> set[str]:
    """Digests of the files that may run."""
    return set(filter(None, os.environ.get(_TRUST, "").split(",")))


def module_of(file: PythonFile) -> ModuleType:
    """The module of a file, executed once per process; raises whatever its code raises."""
    name = f"{file.path.stem}_{file.sha256[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    content = _content(file.path, file.sha256)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ValueError("it has changed since it was checked")
    module = ModuleType(name)
    module.__file__ = str(file.path)
    sys.modules[name] = module  # before it runs: msgspec looks annotations up there
    try:
        exec(compile(content, str(file.path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
