"""Text on its way into HTML."""

from __future__ import annotations

from html import escape as escape_markup

from onrig.runtime.printable import printable_lines


def escape(text: str) -> str:
    """Make of any text what a browser shows as that text: no markup, no control characters, no reversals."""
    return escape_markup(printable_lines(text))
