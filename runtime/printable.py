"""Text that is safe to show, whoever wrote it: devices, learners, policies and files may say anything.

A terminal takes escape codes for orders, and characters that turn the writing direction around make a line say what it
does not.  Whatever is not printable is therefore shown as the escape that stands for it.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 2000
"""Characters of one thing somebody says that are shown."""
_LAYOUT: Final = frozenset("\n\t")


def printable(text: str, longest: int = LONGEST) -> str:
    """Return a text on one line with nothing in it but printable characters, cut short beyond ``longest`` of them."""
    cut = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in cut)


def printable_lines(text: str) -> str:
    """Return a text of any length whose lines and tabs are kept, and of the rest what is printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _LAYOUT else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
