"""Tokens of expressions, and errors with their position."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_LENGTH: Final = 2000
"""Maximum number of characters in an expression."""
_TOKEN: Final = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_]\w*)|`(?P<quoted>[^`\n]*)`"
    r"|(?P<sign>\*\*|<=|>=|==|!=|[-+*/<>(),])",
    re.ASCII,
)
_PYTHON_OPERATORS: Final = {"^": "**", "&": "and", "|": "or", "!": "not", "=": "=="}
_MAX_QUOTED_LENGTH: Final = 40


class ExpressionError(ValueError):
    """Raised for an invalid expression; the message begins with the line and column in the expression, counted from
    1."""


class Token(NamedTuple):
    """Smallest part of an expression."""

    kind: str
    """``number``, ``word``, ``quoted`` (a name in backquotes, stored without them), ``sign`` or ``end``."""
    text: str
    offset: int
    """Offset in the expression."""

    def __str__(self) -> str:
        """Text for messages, quoted and shortened."""
        return "the end" if self.kind == "end" else repr(self.text[:_MAX_QUOTED_LENGTH])


def error_at(text: str, offset: int, message: str) -> ExpressionError:
    """Build the error at an offset of an expression."""
    line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
    return ExpressionError(f"line {line}, column {column} of the expression: {message}")


def tokenise(text: str) -> list[Token]:
    """Split an expression into tokens, followed by an ``end``; raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise error_at(text, MAX_LENGTH, f"expected at most {MAX_LENGTH} characters, got {len(text)}")
    tokens, offset, end = [], 0, len(text.rstrip())
    while offset < end:
        if text[offset].isspace():
            offset += 1
            continue
        match = _TOKEN.match(text, offset)
        if match is None:
            character = text[offset]
            remedy = f", write {_PYTHON_OPERATORS[character]}" if character in _PYTHON_OPERATORS else ""
            raise error_at(text, offset, f"unexpected {character!r}{remedy}")
        kind = str(match.lastgroup)
        tokens.append(Token(kind, match[kind], offset))
        offset = match.end()
    return [*tokens, Token("end", "", end)]
