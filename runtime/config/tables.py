"""Files of ``csv`` targets: their content is copied into the task, so that a run needs no other file."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Final

from onrig.runtime.config.document import Document, problem_at
from onrig.runtime.config.problem import ConfigError, NodePath, Problem
from onrig.runtime.config.yaml_nodes import value_at, with_value
from onrig.runtime.files import read_file

MAX_BYTES: Final = 1 << 18


def hash_of(content: str) -> str:
    """Return the SHA-256 of a table's text."""
    return hashlib.sha256(content.encode()).hexdigest()


def with_tables(document: Document, task_path: NodePath, folder_of_document: Path) -> Document:
    """Read the tables of the task at ``task_path`` into the document, from files in its folder; raises ConfigError.

    A table that is already present, as in a run's folder, is kept.
    """
    try:
        targets = value_at(document.data, (*task_path, "targets"))
    except (KeyError, TypeError, IndexError):
        return document
    problems: list[Problem] = []
    for name, target in targets.items() if isinstance(targets, dict) else ():
        file = target.get("file") if isinstance(target, dict) and target.get("kind") == "csv" else None
        if not isinstance(file, str) or not isinstance(target, dict) or target.get("content") is not None:
            continue
        path = (*task_path, "targets", name, "file")
        # A path in an override is relative to the working directory.
        is_override = any(path[: len(override_path)] == override_path for override_path in document.overrides)
        folder = Path() if is_override else folder_of_document
        try:
            content = read_file(folder / file, MAX_BYTES).decode()
        except OSError as error:
            problems.append(problem_at(document, path, f"'{folder / file}': {error.strerror or error}"))
        except UnicodeDecodeError:
            problems.append(problem_at(document, path, f"'{folder / file}' is not UTF-8 text"))
        else:
            resolved_target = {**target, "content": content, "sha256": hash_of(content)}
            document = dataclasses.replace(document, data=with_value(document.data, path[:-1], resolved_target))
    if problems:
        raise ConfigError(problems)
    return document
