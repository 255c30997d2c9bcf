"""Reports as one HTML file that needs nothing else: no scripts, no network, pictures inlined; tables as Markdown, too.

The palette is that of the live page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape as escape_markup
from importlib.resources import files
from typing import Final, NamedTuple

from onrig.runtime.printable import printable_lines
from onrig.tools.bench.report import aligned
from onrig.tools.reports.style import Chart, Picture, png_uri

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
        """Columns of plain text; a terminal's spaces are all of one width."""
        rows = (self.heads, *self.rows)
        text = aligned([(", ".join(filter(None, row[: self.names])), *row[self.names :]) for row in rows])
        return text.replace("\u2009", " ")

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


_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE: Final = """
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 62rem; color: var(--ink); background: var(--panel);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .7rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.lead, .note, figcaption { color: var(--soft); }
.note, figcaption { font-size: .875rem; max-width: 52rem; }
.warn { background: var(--raised); border-left: 4px solid var(--warn); border-radius: 6px; padding: .6rem .9rem; }
.warn p { margin: .2rem 0; }
ul { list-style: none; padding: 0; margin: 0; } li { margin: .15rem 0; }
.better { color: var(--good); } .worse { color: var(--bad); }
figure { margin: 0 0 2.2rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px; }
figure h3 { margin-bottom: .5rem; } figcaption { margin-top: .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; white-space: nowrap; text-align: right; }
tbody th { font-weight: 500; text-align: left; } tbody th:first-child { color: var(--soft); }
thead th { border-bottom: 1px solid var(--soft); font-weight: 600; } thead th:first-child { text-align: left; }
tr.start > * { border-top: 1px solid var(--line); }
tbody tr:hover { background: var(--raised); }
pre { background: var(--raised); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; font-size: .8rem; }
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1.4rem 0; }
.tile { background: var(--raised); border-radius: 8px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.35rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .8rem; } .tile.alarming b { color: var(--bad); }
.badge { display: inline-block; border-radius: 1rem; padding: .1rem .7rem; background: var(--raised); }
.badge.good { color: var(--good); } .badge.bad { color: var(--bad); }
nav { font-size: .875rem; margin: .8rem 0 0; } nav a { margin-right: 1rem; color: var(--soft); }
.prose td, .prose th { white-space: normal; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
.prose th:nth-child(-n+3) { white-space: nowrap; }
#again + pre { white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; }
details pre { max-height: 32rem; overflow: auto; }
footer { margin-top: 3rem; color: var(--soft); font-size: .8rem; }
"""


class Tile(NamedTuple):
    """Headline figure."""

    value: str
    label: str
    alarming: bool = False


class Fault(NamedTuple):
    """A post-mortem on the page."""

    name: str
    told: str
    hint: str
    data_uri: str | None
    files: str


class RunPage(NamedTuple):
    """Everything that the page says."""

    title: str
    lead: str
    outcome: str
    completed: bool
    tiles: Sequence[Tile]
    warnings: Sequence[str]
    charts: Sequence[Chart]
    sheets: Sequence[Sheet]
    faults: Sequence[Fault]
    circumstances: Sequence[tuple[str, str]]
    reproduce: Sequence[str]
    configuration: str
    footer: str


class Content(NamedTuple):
    """Everything that the report says, in its order."""

    title: str
    lead: str
    warnings: Sequence[str]
    claims: Mapping[str, Sequence[str]]
    pictures: Sequence[Picture]
    sheets: Sequence[Sheet]
    sources: Mapping[str, str]
    """Texts to show as they are, by their heading."""


def document(title: str, parts: Iterable[str]) -> str:
    """Put parts that are escaped already into a page with this title."""
    body = "\n".join(filter(None, parts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_palette()}{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


@cache
def _palette() -> str:
    """The live page's colours, by day and by night."""
    return files("onrig.tools.web").joinpath("static", "palette.css").read_text(encoding="utf-8")


def experiment_page(content: Content) -> str:
    """Build the page of an experiment; raises OSError where a picture cannot be read."""
    parts = [f"<h1>{escape(content.title)}</h1>", f'<p class="lead">{escape(content.lead)}</p>']
    parts.append(_warnings(content.warnings))
    if content.claims:
        parts.append("<h2>At a glance</h2>")
        for conditions, told in content.claims.items():
            parts.append(f"<h3>{escape(conditions)}</h3>" if conditions else "")
            parts.append(f"<ul>{''.join(map(_claim, told))}</ul>")
    if content.pictures:
        parts.append("<h2>Figures</h2>")
        parts += [_picture(picture) for picture in content.pictures]
    parts += [sheet.html() for sheet in content.sheets]
    parts += [f"<h2>{escape(head)}</h2><pre>{escape(text)}</pre>" for head, text in content.sources.items()]
    return document(content.title, parts)


def run_page(page: RunPage) -> str:
    """Build the page of a run; everything in it is escaped."""
    badge = "good" if page.completed else "bad"
    parts = [
        f"<h1>{escape(page.title)}</h1>",
        f'<p class="lead">{escape(page.lead)}</p>',
        f'<p><span class="badge {badge}">{escape(page.outcome)}</span></p>',
        _navigation(page),
        '<div class="tiles">' + "".join(map(_tile, page.tiles)) + "</div>",
    ]
    parts.append(_warnings(page.warnings))
    if page.charts:
        parts.append('<h2 id="figures">Figures</h2>')
        parts += map(_chart, page.charts)
    if page.faults:
        parts.append('<h2 id="faults">Post-mortems</h2>')
        parts.append('<p class="note">The last two seconds before each fault that was kept.</p>')
        parts += [_fault(fault, is_open=i in (0, len(page.faults) - 1)) for i, fault in enumerate(page.faults)]
    parts += [f'<div class="prose">{sheet.html()}</div>' for sheet in page.sheets]
    rows = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in page.circumstances)
    parts.append(f'<h2 id="where">Where it ran</h2><div class="prose"><table><tbody>{rows}</tbody></table></div>')
    commands = escape("\n".join(page.reproduce))
    parts.append(f'<h2 id="again">How to reproduce it</h2><pre>{commands}</pre>')
    parts.append(
        f"<h2>Configuration</h2><details><summary>config.yaml, as resolved</summary>"
        f"<pre>{escape(page.configuration)}</pre></details>"
    )
    parts.append(f"<footer>{escape(page.footer)}</footer>")
    return document(page.title, parts)


def markdown(content: Content, pictures: Mapping[Picture, str] | None = None) -> str:
    """The tables with what is said at a glance, as Markdown; and pictures, by the names of their files."""
    parts = [f"# {content.title}", "", content.lead, ""]
    parts += [f"> {w}\n" for w in content.warnings]
    if content.claims:
        parts += ["## At a glance", ""]
        for conditions, lines in content.claims.items():
            parts += [f"**{conditions}**", ""] if conditions else []
            parts += [*(f"* {line}" for line in lines), ""]
    for picture, file in (pictures or {}).items():
        parts += [f"## {picture.title}", "", f"![{picture.title}]({file})", "", picture.caption, ""]
    parts += [sheet.markdown() for sheet in content.sheets]
    return "\n".join(parts)


def _claim(line: str) -> str:
    kind = {"▲": ' class="better"', "▼": ' class="worse"'}.get(line[:1], "")
    return f"<li><span{kind}>{escape(line[:1])}</span>{escape(line[1:])}</li>"


def _navigation(page: RunPage) -> str:
    there = [("figures", "Figures", page.charts), ("faults", "Post-mortems", page.faults)]
    links = [(name, text) for name, text, content in there if content]
    links += [("where", "Where it ran"), ("again", "How to reproduce it")]
    return "<nav>" + "".join(f'<a href="#{name}">{text}</a>' for name, text in links) + "</nav>"


def _tile(tile: Tile) -> str:
    alarming = " alarming" if tile.alarming else ""
    return f'<div class="tile{alarming}"><b>{escape(tile.value)}</b><span>{escape(tile.label)}</span></div>'


def _warnings(lines: Sequence[str]) -> str:
    return '<div class="warn">' + "".join(f"<p>{escape(line)}</p>" for line in lines) + "</div>" if lines else ""


def _picture(picture: Picture) -> str:
    paper = f"As figure {picture.number} of de Bruin et al. 2018: " if picture.number else ""
    heading = f"{paper}{picture.title}"
    return _chart(Chart(heading, picture.caption, png_uri(picture.path.read_bytes()), picture.title))


def _chart(chart: Chart) -> str:
    return (
        f'<figure><h3>{escape(chart.title)}</h3><img alt="{escape(chart.alt)}" src="{chart.data_uri}">'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def _fault(fault: Fault, *, is_open: bool) -> str:
    picture = f'<figure><img alt="last moments" src="{fault.data_uri}"></figure>' if fault.data_uri else ""
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(fault.name)}</summary><p>{escape(fault.told)}</p>"
        f'<p class="note">{escape(fault.hint)}</p>{picture}<p class="note">{escape(fault.files)}</p></details>'
    )
