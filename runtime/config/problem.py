"""Problems in a configuration and their positions: the errors raised by every layer of loading."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from onrig.runtime.exit_codes import Failure
from onrig.runtime.printable import printable
from onrig.runtime.registry import describe_exception

NodePath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the document's root to a value; () is the root."""
Finding: TypeAlias = tuple[NodePath, str]
"""Path of an inconsistent value, and the reason."""

_PLAIN_KEY = re.compile(r"[\w-]+")
_STEP = re.compile(r"\[(?P<index>\d{1,9})\]|(?P<key>[^.\[\]]+)")


class Mark(NamedTuple):
    """Position in a file, line and column counted from 1; columns count characters."""

    line: int
    column: int


START: Final = Mark(1, 1)
MAX_POSITION_LENGTH: Final = 5000
"""Maximum number of characters in a position, enough for the longest possible path."""
MAX_MESSAGE_LENGTH: Final = 400
"""Maximum number of characters of a message that are shown; it may quote a key of up to a megabyte."""


class Problem(NamedTuple):
    """One problem; ``str(problem)`` is ``FILE:LINE:COL: message`` on a single printable line."""

    file: str
    mark: Mark
    message: str

    def __str__(self) -> str:
        # Quoted YAML may hold newlines and terminal escapes; these texts end up on terminals and in line-based logs.
        position = f"{self.file}:{self.mark.line}:{self.mark.column}"
        return f"{printable(position, MAX_POSITION_LENGTH)}: {printable(self.message, MAX_MESSAGE_LENGTH)}"


class ConfigError(Failure):
    """Raised for an unusable configuration; ``str()`` gives one problem per line."""

    problems: tuple[Problem, ...]

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("")
        self.args = (self.problems,)  # used to unpickle the exception in another process

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def format_path(path: NodePath) -> str:
    """Format a path as users write it, ``explore.schedule[1].amplitude``; the root is empty."""
    text = ""
    for step in path:
        if isinstance(step, str) and _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def parse_path(path: str) -> NodePath:
    """Parse a path as formatted by `format_path` (plain keys only), such as ``sensors[0].name``."""
    return tuple(int(step["index"]) if step["index"] else step["key"] for step in _STEP.finditer(path))


def suggestion(name: str, allowed: Sequence[str]) -> str:
    """Return the closest allowed name, otherwise all of them, otherwise nothing."""
    return did_you_mean(name, allowed) or format_choices(allowed)


def hint(name: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'pendulum'?)``, or nothing if no allowed name is similar."""
    question = did_you_mean(name, allowed)
    return f" ({question})" if question else ""


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``did you mean 'pendulum'?``, or nothing if no allowed name is similar."""
    allowed_by_folded = {text.casefold(): text for text in allowed}
    matches = difflib.get_close_matches(name.casefold(), allowed_by_folded, n=1)
    return f"did you mean {allowed_by_folded[matches[0]]!r}?" if matches else ""


def describe_unknown_name(owner: str, kind: str, name: str, allowed: Sequence[str]) -> str:
    """Return a message about a name that ``owner`` does not define, with the most similar name or all of them."""
    remedy = did_you_mean(name, allowed) or f"it has {', '.join(allowed) or 'none'}"
    return f"{owner} has no {kind} '{name}' ({remedy})"


def format_choices(allowed: Sequence[str]) -> str:
    """Format the allowed names: ``one of a, b``, ``only a``, or nothing."""
    if len(allowed) > 1:
        return f"one of {', '.join(allowed)}"
    return f"only {allowed[0]}" if allowed else ""


def collect_problems(list_problems: Callable[[], Iterable[tuple[str, str]]], owner: str) -> list[tuple[str, str]]:
    """Collect the (path, message) problems of a possibly third-party plugin; an exception in its code becomes a
    problem."""
    try:
        return [*list_problems()]
    except Exception as error:
        return [("", f"{owner} raises {describe_exception(error)}")]


def collect_findings(
    list_problems: Callable[[], Iterable[Finding]], owner: str, node_path: NodePath
) -> Iterator[Finding]:
    """Collect the findings of a possibly third-party plugin; an exception in its code becomes a finding at
    ``node_path``."""
    try:
        yield from list_problems()
    except Exception as error:
        yield node_path, f"{owner} raises {describe_exception(error)}"
