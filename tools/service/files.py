"""Where the files go, and how they get there: all of them or none, and never over somebody else's."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from onrig.tools.service.texts import MARK, Artifact, Service, limits_text, rule_text, unit_text


class InTheWay(Exception):
    """A file that is not ours stands where one of ours is to go; one line."""


def artifacts(s: Service, home: Path, root: Path = Path("/")) -> list[Artifact]:
    """List the files of a service under ``root``; a user's own service is its unit alone, the rest takes root."""
    if s.for_user:
        folder = home / ".config/systemd/user"
        return [Artifact(root / folder.relative_to("/") / s.unit, unit_text(s))]
    return [
        Artifact(root / "etc/systemd/system" / s.unit, unit_text(s)),
        Artifact(root / f"etc/udev/rules.d/90-onrig-{s.name}.rules", rule_text(s)),
        Artifact(root / f"etc/security/limits.d/90-onrig-{s.name}.conf", limits_text(s)),
    ]


def standing(artifact: Artifact) -> str:
    """What stands in its place: ``new``, ``unchanged`` or ``replaced``; raises InTheWay."""
    try:
        text = artifact.path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "new"
    if text == artifact.text:
        return "unchanged"
    if not text.startswith(MARK):
        raise InTheWay(f"{artifact.path}: this file is not Onrig's; move it away, or take what you need from the text")
    return "replaced"


def write(files: Sequence[Artifact]) -> None:
    """Write all of them (mode 0644); on an OSError or InTheWay everything stands as it stood before."""
    before: list[tuple[Path, bytes | None]] = []
    made: list[Path] = []
    for artifact in files:
        standing(artifact)
    try:
        for artifact in files:
            folder = artifact.path.parent
            missing = [f for f in (folder, *folder.parents) if not f.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            made += missing
            before.append((artifact.path, artifact.path.read_bytes() if artifact.path.exists() else None))
            _replace(artifact.path, artifact.text.encode())
    except OSError:
        for path, content in before:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True) if content is None else _replace(path, content)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _replace(path: Path, content: bytes) -> None:
    fd, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, 0o644)
        os.replace(fresh, path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise
