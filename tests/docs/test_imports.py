"""Modules imported by pages, the Makefile and the container exist: refactoring tools do not check them."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_IMPORT: Final = re.compile(r"from\s+((?:onrig|tests)[\w.]*)\s+import\s+(?:\(([^)]*)\)|([\w, ]+))")
_MODULE: Final = re.compile(r"-m ((?:onrig|tests)\.[\w.]*\w)")
_EXAMPLES: Final = {"tests.lab.NAME"}


def texts() -> Iterator[tuple[str, str]]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name == "CHANGELOG.md" or not (name.endswith(".md") or Path(name).name in ("Makefile", "Dockerfile", "run")):
            continue
        if not (ROOT / name).is_symlink():
            yield name, (ROOT / name).read_text()


def exists(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None


def test_imported_names_exist() -> None:
    missing = [
        f"{file}: {module} has no {name}"
        for file, text in texts()
        for module, group, line in _IMPORT.findall(text)
        for name in re.split(r"[,\s]+", re.sub(r" as \w+", "", (group or line).strip()))
        if name and not exists(module, name)
    ]
    missing += [
        f"{file}: no module {module}"
        for file, text in texts()
        for module in _MODULE.findall(text)
        if module not in _EXAMPLES and importlib.util.find_spec(module) is None
    ]
    assert not missing
