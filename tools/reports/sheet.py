"""Tables as plain text, Markdown and HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape as escape_markup
from typing import Final, NamedTuple

from onrig.runtime.printable import printable_lines
from onrig.tools.terminal import align

BETTER: Final = "▲"
WORSE: Final = "▼"
_CLASSES: Final = {BETTER: "better", WORSE: "worse"}
_CODE: Final = re.compile(r"`([^`]+)`")


def escape(text: str) -> str:
    """Escape text for HTML, so that markup, control characters and bidirectional overrides have no effect."""
    return escape_markup(printable_lines(text))


def escape_prose(text: str) -> str:
    """Escape a sentence for HTML and turn text in backticks into code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def anchor(text: str) -> str:
    """Return the fragment identifier of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def heading(text: str) -> str:
    """Return the HTML heading of a section, with an anchor."""
    return f'<h2 id="{anchor(text)}">{escape(text)}</h2>'


def markdown_table(rows: Sequence[Sequence[str]], n_name_columns: int = 1) -> str:
    """Format rows, header first, as Markdown; the first ``n_name_columns`` columns are text, the others numbers."""
    rule = ["---"] * n_name_columns + ["---:"] * (len(rows[0]) - n_name_columns)
    return "\n".join(map(_markdown_row, (rows[0], rule, *rows[1:])))


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


class Sheet(NamedTuple):
    """Table with a header; the first ``n_name_columns`` columns identify a row."""

    title: str
    n_name_columns: int
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the table as aligned columns of plain text."""
        rows = (self.header, *self.rows)
        text = align(
            [(", ".join(filter(None, row[: self.n_name_columns])), *row[self.n_name_columns :]) for row in rows]
        )
        return text.replace("\u2009", " ")

    def markdown(self) -> str:
        """Return the table as Markdown, with its title and notes."""
        table = markdown_table((self.header, *self.rows), self.n_name_columns)
        return "\n".join((f"## {self.title}", "", table, *(f"\n{note}" for note in self.notes), ""))

    def html(self) -> str:
        """Return the table as an HTML section.

        Repeated values in the first column are shown only once. Lines wrap in tables that contain only text.
        """
        attributes = (' class="name"' if k < self.n_name_columns else "" for k in range(len(self.header)))
        head = "".join(
            f'<th scope="col"{attribute}>{escape(h)}</th>' for attribute, h in zip(attributes, self.header, strict=True)
        )
        body, previous = [], None
        for row in self.rows:
            first = "" if self.n_name_columns > 1 and row[0] == previous else row[0]
            start = ' class="start"' if self.n_name_columns > 1 and row[0] != previous else ""
            previous = row[0]
            cells = "".join(self._cell_html(k, cell) for k, cell in enumerate((first, *row[1:])))
            body.append(f"<tr{start}>{cells}</tr>")
        notes = "".join(f'<p class="note">{escape_prose(note)}</p>' for note in self.notes)
        kind = "prose" if self.n_name_columns == len(self.header) else "wide"
        return (
            f"{heading(self.title)}\n"
            f'<div class="{kind}"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
            + "\n".join(body)
            + f"\n</tbody></table></div>\n{notes}"
        )

    def _cell_html(self, column: int, cell: str) -> str:
        if column < self.n_name_columns:
            return f'<th scope="row">{escape_prose(cell)}</th>'
        mark = _CLASSES.get(cell[:1])
        return f'<td class="{mark}">{escape(cell)}</td>' if mark else f"<td>{escape(cell)}</td>"


def drop_empty_columns(sheet: Sheet) -> Sheet:
    """Remove the columns that are empty in every row."""
    columns = [k for k in range(len(sheet.header)) if any(row[k] for row in sheet.rows)]
    n_name_columns = sum(k < sheet.n_name_columns for k in columns)
    rows = tuple(tuple(row[k] for k in columns) for row in sheet.rows)
    return sheet._replace(n_name_columns=n_name_columns, header=tuple(sheet.header[k] for k in columns), rows=rows)
