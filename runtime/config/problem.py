"""What is wrong with a configuration, and where: the errors every layer of loading raises."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

NodePath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the document's root to a value; () is the root."""

_PLAIN_KEY = re.compile(r"[\w-]+")
_STEP = re.compile(r"\[(?P<index>\d{1,9})\]|(?P<key>[^.\[\]]+)")


class Mark(NamedTuple):
    """A place in a file, both counted from 1; columns count characters."""

    line: int
    column: int


START: Final = Mark(1, 1)
MAX_MESSAGE: Final = 400
"""Characters of a message that are shown: it may quote the file, and a key there may be a megabyte."""


class Problem(NamedTuple):
    """One thing that is wrong; ``str(problem)`` is ``FILE:LINE:COL: message`` on a single printable line."""

    file: str
    mark: Mark
    message: str

    def __str__(self) -> str:
        return _printable(f"{self.file}:{self.mark.line}:{self.mark.column}: {_shortened(self.message)}")


class ConfigError(Exception):
    """A configuration cannot be used; ``str()`` gives one problem per line."""

    problems: tuple[Problem, ...]

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def format_path(path: NodePath) -> str:
    """Write a path as users do, ``explore.schedule[1].amplitude``; the root is empty."""
    text = ""
    for step in path:
        if isinstance(step, str) and _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"


def path_steps(path: str) -> NodePath:
    """Read a path as `format_path` writes it (plain keys only): ``sensors[0].name``."""
    return tuple(int(step["index"]) if step["index"] else step["key"] for step in _STEP.finditer(path))


def _printable(text: str) -> str:
    # Quoted YAML may hold newlines and terminal escapes, and these texts end up on a terminal and in line-based logs.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
