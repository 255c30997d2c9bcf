"""Escaping of untrusted text for display: text from devices, learners, policies and files may contain any characters.

Escape codes control a terminal, and bidirectional control characters can falsify a line.  Non-printable
characters are therefore shown as escape sequences.
"""

from __future__ import annotations

from typing import Final

MAX_LENGTH: Final = 2000
"""Default maximum length of a text."""
_LAYOUT_CHARACTERS: Final = frozenset("\n\t")


def printable(text: str, max_length: int = MAX_LENGTH) -> str:
    """Truncate a text to ``max_length`` characters and escape the non-printable ones, so that it fits on one line."""
    shortened_text = text if len(text) <= max_length else f"{text[: max_length - 1]}…"
    return (
        shortened_text
        if shortened_text.isprintable()
        else "".join(c if c.isprintable() else _escape(c) for c in shortened_text)
    )


def printable_lines(text: str) -> str:
    """Escape the non-printable characters in a text of any length, except newlines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _LAYOUT_CHARACTERS else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
