"""Strict YAML reader: plain data with the position of every value; ambiguous or unsafe text is rejected.

PyYAML scans, parses and composes (in pure Python, so that messages are the same on every machine); the data are built
here.  Plain scalars follow the core schema of YAML 1.2 (section 10.3.2), not YAML 1.1 like PyYAML's own loaders:
``1e-3`` is a float, and ``1:30``, ``on``, ``yes`` and ``2026-01-01`` are text.  The following are rejected although
YAML 1.2 allows them: integers with a leading zero (octal in YAML 1.1) or beyond 64 bits, ``.inf`` and ``.nan``, tags,
and keys that are not text.  Merge keys (no longer part of YAML 1.2) and duplicate keys (section 3.2.1.3) are rejected
as well.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple, TypeAlias

import yaml

from onrig.runtime.config.problem import START, ConfigError, Mark, NodePath, Problem

Scalar: TypeAlias = bool | int | float | str | None

_CONSTANTS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_OCTAL_LIKE = re.compile(r"[-+]?0[0-9]+")
FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN")
_MAX_INT_DIGITS = 64


def resolve_plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar.

    Raises:
        ValueError: if a number is ambiguous, too large or non-finite; the message is for the user.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _OCTAL_LIKE.fullmatch(text):
        raise ValueError(f"{text} could be meant as octal: drop the leading zero, or quote it if it is text")
    if INT.fullmatch(text):
        # base 0 reads 0x and 0o; the length is limited first, because int() of a long numeral is slow or raises
        value = int(text, 0) if len(text) <= _MAX_INT_DIGITS else 2**64
        if not -(2**63) <= value < 2**64:
            raise ValueError("integer does not fit into 64 bits")
        return value
    if FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"numbers must be finite, and {text} is too large for a float")
        return number
    if _NON_FINITE.fullmatch(text):
        raise ValueError(f"numbers must be finite, got {text} (quote it if it is text)")
    return text


Data: TypeAlias = Scalar | list["Data"] | dict[str, "Data"]

MAX_DEPTH: Final = 32
MAX_NODES: Final = 20_000
"""Maximum number of values in a document, counting each use of an alias: nested aliases could exhaust memory."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LINE_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_TOO_DEEP_MESSAGE = f"nested more than {MAX_DEPTH} levels deep"
_TOO_MANY_MESSAGE = f"more than {MAX_NODES} values (each use of an alias counts)"


class Tree(NamedTuple):
    """Plain data with the position of every value and of its key, if it has one."""

    data: Data
    marks: dict[NodePath, Mark]
    key_marks: dict[NodePath, Mark]


def read_tree(text: str, file: str) -> Tree | None:
    """Parse one YAML document; return None if it is empty.

    A value reached through an alias has the position of its anchor, which is the text to correct.

    Raises:
        ConfigError: with the first syntax error, or with all rejected scalars, keys and tags.
    """
    try:
        loader = _Loader(text, file)
    except yaml.reader.ReaderError as error:
        message = f"character #x{ord(text[error.position]):04x} is not allowed"
        raise ConfigError([Problem(file, end_mark(text[: error.position]), message)]) from None
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError([Problem(file, _to_mark(mark) if mark else START, _syntax_message(error))]) from None
    except ValueError:
        # PyYAML lets int() and chr() fail on an absurd %YAML version and on an escape beyond U+10FFFF.
        raise ConfigError([Problem(file, _to_mark(loader.get_mark()), "a number is out of range here")]) from None
    finally:
        loader.dispose()
    if node is None or (isinstance(node, yaml.ScalarNode) and node.style is None and node.value == ""):
        return None
    builder = _Builder(file, loader.problems)
    data = builder.build(node, ())
    if builder.problems:
        raise ConfigError(sorted(set(builder.problems), key=lambda problem: problem.mark))
    return Tree(data, builder.marks, builder.key_marks)


def end_mark(text: str) -> Mark:
    """Return the position just after ``text``, counting line breaks as in YAML 1.1."""
    lines = _LINE_BREAK.split(text)
    return Mark(len(lines), len(lines[-1]) + 1)


def dump_yaml(data: object) -> str:
    """Write plain data (tuples as lists, finite numbers) as YAML that `read_tree` reads back as equal data.

    ``yaml.safe_dump`` would leave the strings ``1e-3`` and ``08`` unquoted.
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def value_at(data: Data, path: NodePath) -> Data:
    """Return the value at a path.

    Raises:
        KeyError: if it does not exist.
    """
    for step in path:
        match data, step:
            case dict(), str() if step in data:
                data = data[step]
            case list(), int() if 0 <= step < len(data):
                data = data[step]
            case _:
                raise KeyError(path)
    return data


def with_value(data: Data, path: NodePath, value: Data) -> Data:
    """Return a copy of ``data`` with ``value`` at ``path``, whose containers must exist; other values are shared."""
    if not path:
        return value
    step, remainder = path[0], path[1:]
    if isinstance(data, dict) and isinstance(step, str):
        return {**data, step: with_value(data.get(step), remainder, value)}
    if isinstance(data, list) and isinstance(step, int):
        return [with_value(item, remainder, value) if i == step else item for i, item in enumerate(data)]
    raise KeyError(path)


def without_key(data: Data, path: NodePath) -> Data:
    """Return a copy of ``data`` without the key at the end of ``path``, which must exist; other values are shared."""
    mapping = value_at(data, path[:-1])
    if not isinstance(mapping, dict):
        raise KeyError(path)
    return with_value(data, path[:-1], {key: value for key, value in mapping.items() if key != path[-1]})


class _Loader(yaml.BaseLoader):
    """Node composer with bounded depth and node count; rejects tags."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.problems: list[Problem] = []
        self._file = file
        self._depth = 0
        self._n_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP_MESSAGE, event.start_mark)
        # Keys are nodes too; the builder counts again, with every use of an alias.
        self._n_nodes += 1
        if self._n_nodes > 2 * MAX_NODES:
            raise yaml.composer.ComposerError(None, None, _TOO_MANY_MESSAGE, event.start_mark)
        # Recorded here because a node does not distinguish `!!str 12` from `12`.
        tag = getattr(event, "tag", None)
        if tag is not None:
            short_tag = tag.replace("tag:yaml.org,2002:", "!!")
            message = f"tags are not allowed, got {short_tag} (quotes make a value text)"
            self.problems.append(Problem(self._file, _to_mark(event.start_mark), message))
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Builder:
    """Builder of data from nodes; collects recoverable problems and raises on self-reference and excess size."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.marks: dict[NodePath, Mark] = {}
        self.key_marks: dict[NodePath, Mark] = {}
        self.problems = problems
        self._file = file
        self._open_nodes: set[int] = set()

    def build(self, node: yaml.Node, path: NodePath) -> Data:
        mark = _to_mark(node.start_mark)
        if id(node) in self._open_nodes:
            raise self._fatal_error(mark, "an alias refers to the value that contains it")
        if len(path) > MAX_DEPTH:
            raise self._fatal_error(mark, _TOO_DEEP_MESSAGE)
        if len(self.marks) >= MAX_NODES:
            raise self._fatal_error(mark, _TOO_MANY_MESSAGE)
        self.marks[path] = mark
        if isinstance(node, yaml.ScalarNode):
            return self._read_scalar(node)
        self._open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._build_mapping(node, path)
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self._open_nodes.discard(id(node))

    def _build_mapping(self, node: yaml.MappingNode, path: NodePath) -> dict[str, Data]:
        result: dict[str, Data] = {}
        for key_node, value_node in node.value:
            key = self._read_key(key_node)
            if key is None:
                continue
            node_path = (*path, key)
            if key in result:
                first_mark = self.key_marks[node_path]
                self._add_problem(
                    key_node, f"duplicate key {key!r}, first used in line {first_mark.line}, column {first_mark.column}"
                )
                continue
            self.key_marks[node_path] = _to_mark(key_node.start_mark)
            result[key] = self.build(value_node, node_path)
        return result

    def _read_key(self, node: yaml.Node) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._add_problem(node, "a key must be text, not a list or mapping")
            return None
        if node.style is None and node.value == "<<":
            self._add_problem(node, "merge keys (<<) are not part of YAML 1.2: write the keys out")
            return None
        try:
            is_text = node.style is not None or isinstance(resolve_plain(node.value), str)
        except ValueError:
            is_text = False
        if not is_text:
            self._add_problem(node, f"a key must be text: quote it, '{node.value}'")
            return None
        return self._read_text(node)

    def _read_scalar(self, node: yaml.ScalarNode) -> Scalar:
        if node.style is not None:
            return self._read_text(node)
        try:
            return resolve_plain(node.value)
        except ValueError as error:
            self._add_problem(node, str(error))
            return None

    def _read_text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        if _SURROGATE.search(text):
            self._add_problem(node, "\\ud800 to \\udfff are not characters: write \\U and eight digits")
        return text

    def _fatal_error(self, mark: Mark, message: str) -> ConfigError:
        return ConfigError([Problem(self._file, mark, message)])

    def _add_problem(self, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(self._file, _to_mark(node.start_mark), message))


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes text which either YAML version would interpret as a different type, and writes no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # Between single quotes PyYAML would fold U+0085 into a space; double quotes escape it.
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"(?:{INT.pattern})$"), list("+-0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{FLOAT.pattern})$"), list("+-.0123456789"))


def _to_mark(mark: yaml.Mark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


_CLEARER_MESSAGES: Final = {
    "mapping values are not allowed here": "a second ':' in a line, or a line indented too far",
    "found character '\\t' that cannot start any token": "a tab; indent and separate with spaces",
    "found character '`' that cannot start any token": "text that begins with '`' needs quotes",
    "found character '@' that cannot start any token": "text that begins with '@' needs quotes",
    "found character '%' that cannot start any token": "text that begins with '%' needs quotes",
    "could not find expected ':'": "expected NAME: VALUE",
}
"""Frequent parser errors, reworded for users."""


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    if error.problem in _CLEARER_MESSAGES:
        return _CLEARER_MESSAGES[error.problem]
    if error.problem is None or error.context is None:
        return error.problem or error.context or "not valid YAML"
    line = f" (line {error.context_mark.line + 1})" if error.context_mark else ""
    return f"{error.context}{line}: {error.problem}"
