"""A table of text that can be written as plain text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as escape_markup
from typing import Final, NamedTuple

from onrig.learner.trials.measures import Bounds
from onrig.runtime.printable import printable_lines
from onrig.tools.bench.report import aligned

BETTER: Final = "▲"
WORSE: Final = "▼"
_CLASSES: Final = {BETTER: "better", WORSE: "worse"}


class Sheet(NamedTuple):
    """Rows of equal length under their heads; the first ``names`` columns say what a row is of."""

    title: str
    names: int
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Columns of plain text."""
        rows = (self.heads, *self.rows)
        return aligned([(", ".join(filter(None, row[: self.names])), *row[self.names :]) for row in rows])

    def markdown(self) -> str:
        """Markdown with its title and notes."""
        rule = ["---"] * self.names + ["---:"] * (len(self.heads) - self.names)
        lines = [_piped(self.heads), _piped(rule), *(_piped(row) for row in self.rows)]
        return "\n".join((f"## {self.title}", "", *lines, *(f"\n{note}" for note in self.notes), ""))

    def html(self) -> str:
        """An HTML section; what repeats in the first column is shown once."""
        head = "".join(f'<th scope="col">{escape(h)}</th>' for h in self.heads)
        body, before = [], None
        for row in self.rows:
            first = "" if self.names > 1 and row[0] == before else row[0]
            start = ' class="start"' if self.names > 1 and row[0] != before else ""
            before = row[0]
            cells = "".join(self._cell(k, cell) for k, cell in enumerate((first, *row[1:])))
            body.append(f"<tr{start}>{cells}</tr>")
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in self.notes)
        return (
            f"<h2>{escape(self.title)}</h2>\n"
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
            + "\n".join(body)
            + f"\n</tbody></table></div>\n{notes}"
        )

    def _cell(self, column: int, cell: str) -> str:
        if column < self.names:
            return f'<th scope="row">{escape(cell)}</th>'
        mark = _CLASSES.get(cell[:1])
        return f'<td class="{mark}">{escape(cell)}</td>' if mark else f"<td>{escape(cell)}</td>"


def bounded(bounds: Bounds, digits: int, *, signed: bool = False, at_least: bool = False) -> str:
    """Write an estimate with its bounds: ``0.912 [0.901, 0.923]``; without them where there are none."""
    form = f"{'+' if signed else ''}.{digits}f"
    value = f"{'≥ ' if at_least else ''}{bounds.value:{form}}"
    return f"{value} [{bounds.low:{form}}, {bounds.high:{form}}]" if bounds.low == bounds.low else value


def without_empty(sheet: Sheet) -> Sheet:
    """Leave out the columns after the first that say nothing in any row, and an empty first one."""
    keep = [k for k in range(len(sheet.heads)) if any(row[k] for row in sheet.rows)]
    names = sum(k < sheet.names for k in keep)
    rows = tuple(tuple(row[k] for k in keep) for row in sheet.rows)
    return sheet._replace(names=names, heads=tuple(sheet.heads[k] for k in keep), rows=rows)


def _piped(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def escape(text: str) -> str:
    """Make of any text what a browser shows as that text: no markup, no control characters, no reversals."""
    return escape_markup(printable_lines(text))
