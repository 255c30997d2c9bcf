"""Plugins in Python files named in a configuration: identity, trust and import.

A configuration names ``FILE.py:NAME`` relative to its folder; a run folder holds the resolved form
``PATH:NAME#sha256:HEX``. The content is read once, compared with its digest and executed, so that the executed code is
the recorded code.
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
_REFERENCE: Final = re.compile(r"(?P<path>[^\0]+\.py):(?P<name>[A-Za-z_]\w*)(?:#sha256:(?P<digest>[0-9a-f]{64}))?")
_TRUST_VARIABLE: Final = "ONRIG_TRUST"
"""Environment variable with the digests of the files that this process and its children may run."""
_trusts_everything = False
_allowed_by_digest: dict[str, bytes] = {}
"""Contents of the files that this process has read and may run, by digest."""
_received_by_digest: dict[str, bytes] = {}
"""Contents sent by another machine, by digest; they are used in place of local files."""


class PythonFile(NamedTuple):
    """A plugin in a Python file."""

    path: Path
    attribute: str
    sha256: str

    @property
    def identity(self) -> tuple[str, str]:
        """Identity of the plugin, independent of the file's location."""
        return self.sha256, self.attribute

    @property
    def resolved(self) -> str:
        """Resolved form, as in a run's ``config.yaml``."""
        return f"{self}#sha256:{self.sha256}"

    def __str__(self) -> str:
        return f"{self.path}:{self.attribute}"


class NotTrusted(ValueError):
    """Error raised for files whose code is not trusted."""

    def __init__(self, *paths: Path) -> None:
        # The remedy comes first, because long messages are truncated.
        super().__init__(f"its Python code runs only with --trust; read it first: {', '.join(map(str, paths))}")
        self.path = paths[0]


def python_file(text: str, base: Path | None) -> PythonFile:
    """Parse the name of a plugin, either as written in a configuration in the folder ``base`` or in the resolved form.

    A file named in the written form is trusted if ``base`` is the working directory or one of its subfolders; one named
    in the resolved form is trusted if this process or its parent trusts its digest. ``base`` is None for results, such
    as a run folder's configuration, which must use the resolved form. Raises NotTrusted if the file is not trusted, and
    ValueError if the name is invalid, or the file is missing or has changed since it was resolved.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' does not name a plugin in a file: expected FILE.py:NAME")
    path, digest = Path(match["path"]), match["digest"]
    if digest is None:
        if base is None:
            raise ValueError(f"'{path}' lacks the SHA-256 that the files of a run or an experiment have")
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{path}' must be in the configuration's folder or a subfolder")
        path = (base / path).resolve()
    try:
        content = _read_content(path, digest)
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read: {error.strerror or error}") from None
    content_digest = hashlib.sha256(content).hexdigest()
    if digest is not None and content_digest != digest:
        raise ValueError(f"'{path}' has changed since the run began: restore it, or start a new run")
    file = PythonFile(path, match["name"], content_digest)
    if digest is None and base is not None and base.resolve().is_relative_to(Path.cwd()):
        trust(content_digest)
    if not (_trusts_everything or content_digest in trusted_digests()):
        raise NotTrusted(path)
    trust(content_digest)
    _allowed_by_digest[content_digest] = content
    return file


def _read_content(path: Path, digest: str | None) -> bytes:
    received_content = _received_by_digest.get(digest or "")
    return read_file(path, MAX_BYTES) if received_content is None else received_content


def allowed_contents() -> dict[str, bytes]:
    """Return the contents of the files that this process may run, by digest, for ``receive`` on another machine."""
    return dict(_allowed_by_digest)


def receive(contents: Mapping[str, bytes]) -> None:
    """Allow files sent by another machine to run, and use them in place of local files."""
    for content in contents.values():
        digest = hashlib.sha256(content).hexdigest()
        _received_by_digest[digest] = content
        trust(digest)


def trust(digest: str) -> None:
    """Trust a file in this process and its child processes."""
    os.environ[_TRUST_VARIABLE] = ",".join(sorted({*trusted_digests(), digest}))


def trust_everything() -> None:
    """Trust every file named in a configuration (``--trust``)."""
    global _trusts_everything
    _trusts_everything = True


def trusted_digests() -> set[str]:
    """Return the digests of the trusted files."""
    return set(filter(None, os.environ.get(_TRUST_VARIABLE, "").split(",")))


def import_file(file: PythonFile) -> ModuleType:
    """Import a file as a module, once per process; exceptions raised by its code propagate."""
    name = f"{file.path.stem}_{file.sha256[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    content = _read_content(file.path, file.sha256)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ValueError("it has changed since it was checked")
    module = ModuleType(name)
    module.__file__ = str(file.path)
    sys.modules[name] = module  # before execution, because msgspec looks up annotations there
    try:
        exec(compile(content, str(file.path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
