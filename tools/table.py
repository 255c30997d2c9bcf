"""Aligned text tables."""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """A title, column heads, and rows of text; ``str()`` aligns them."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = [(self.title, *self.heads), *((f"  {row[0]}", *row[1:]) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(max(map(len, lines)))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=False)).rstrip() for line in lines)
