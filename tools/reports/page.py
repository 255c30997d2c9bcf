"""Report pages, as Markdown and as self-contained HTML with inlined plots and no scripts.

A page consists of a title and parts, and uses the live page's colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from onrig.tools.reports.sheet import BETTER, WORSE, Sheet, anchor, escape, escape_prose, heading
from onrig.tools.reports.style import Plot, palette_css

_CONTENT_SECURITY_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
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
code { font-size: .9em; background: var(--raised); border-radius: 3px; padding: 0 .2em; }
.better { color: var(--good); } .worse { color: var(--bad); }
figure { margin: 0 0 2.2rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px; }
figure h3 { margin-bottom: .5rem; } figcaption { margin-top: .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; white-space: nowrap; text-align: right; }
tbody th { font-weight: 500; text-align: left; } tbody th:first-child { color: var(--soft); }
thead th { border-bottom: 1px solid var(--soft); font-weight: 600; } thead th.name { text-align: left; }
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
.prose th:not(:last-child) { white-space: nowrap; }
#how-to-reproduce-it + pre { white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; }
details pre { max-height: 32rem; overflow: auto; }
footer { margin-top: 3rem; color: var(--soft); font-size: .8rem; }
"""


class Part(Protocol):
    """Part of a page; parts that also appear in Markdown have ``markdown()``."""

    def html(self) -> str:
        """Return the part as escaped HTML."""


class Page(NamedTuple):
    """Report page."""

    title: str
    lead: str
    parts: Sequence[Part]
    footer: str = ""

    def html(self) -> str:
        """Return the complete HTML file. Raises OSError if a plot cannot be read."""
        head = (f"<h1>{escape(self.title)}</h1>", f'<p class="lead">{escape_prose(self.lead)}</p>')
        foot = f"<footer>{escape(self.footer)}</footer>" if self.footer else ""
        body = (*head, *(part.html() for part in self.parts), foot)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_CONTENT_SECURITY_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{palette_css()}{_STYLE}</style></head>\n<body>\n"
            + "\n".join(filter(None, body))
            + "\n</body></html>\n"
        )

    def markdown(self) -> str:
        """Return the page's warnings, claims, figures and tables as Markdown."""
        parts = (part.markdown() for part in self.parts if isinstance(part, Warnings | Claims | Figures | Sheet))
        return "\n".join((f"# {self.title}", "", self.lead, "", *filter(None, parts)))


class Badge(NamedTuple):
    """Coloured badge that states the outcome in a few words."""

    text: str
    is_good: bool

    def html(self) -> str:
        return f'<p><span class="badge {"good" if self.is_good else "bad"}">{escape(self.text)}</span></p>'


class Tile(NamedTuple):
    """Headline figure."""

    value: str
    label: str
    is_alarming: bool = False

    def html(self) -> str:
        alarming = " alarming" if self.is_alarming else ""
        return f'<div class="tile{alarming}"><b>{escape(self.value)}</b><span>{escape(self.label)}</span></div>'


class Tiles(NamedTuple):
    """Headline figures."""

    tiles: Sequence[Tile]

    def html(self) -> str:
        return f'<div class="tiles">{"".join(tile.html() for tile in self.tiles)}</div>'


class Warnings(NamedTuple):
    """Block of warnings; empty if there are none."""

    lines: Sequence[str]

    def html(self) -> str:
        return (
            f'<div class="warn">{"".join(f"<p>{escape_prose(line)}</p>" for line in self.lines)}</div>'
            if self.lines
            else ""
        )

    def markdown(self) -> str:
        return "\n".join(f"> {line}\n" for line in self.lines)


class Claims(NamedTuple):
    """Lists of findings, one per condition; a line that starts with ``▲`` or ``▼`` is marked as better or worse."""

    heading: str
    by_conditions: Mapping[str, Sequence[str]]

    def html(self) -> str:
        lists = (
            (f"<h3>{escape(conditions)}</h3>" if conditions else "") + f"<ul>{''.join(map(_claim, lines))}</ul>"
            for conditions, lines in self.by_conditions.items()
        )
        return "\n".join((heading(self.heading), *lists))

    def markdown(self) -> str:
        parts = [f"## {self.heading}", ""]
        for conditions, lines in self.by_conditions.items():
            parts += [f"**{conditions}**", ""] if conditions else []
            parts += [*(f"* {line}" for line in lines), ""]
        return "\n".join(parts)


def _claim(line: str) -> str:
    kind = {BETTER: ' class="better"', WORSE: ' class="worse"'}.get(line[:1])
    return (
        f"<li>{escape_prose(line)}</li>"
        if kind is None
        else f"<li><span{kind}>{line[:1]}</span>{escape_prose(line[1:])}</li>"
    )


class Figures(NamedTuple):
    """Plots with their captions."""

    plots: Sequence[Plot]
    names: Mapping[Plot, str] = MappingProxyType({})
    """File names of the plots next to a Markdown page; plots without a file are omitted from the Markdown."""

    def html(self) -> str:
        return "\n".join((heading("Figures"), *map(_figure, self.plots))) if self.plots else ""

    def markdown(self) -> str:
        return "\n".join(
            f"## {plot.title}\n\n![{plot.title}]({file})\n\n{plot.caption}\n" for plot, file in self.names.items()
        )


def _figure(plot: Plot) -> str:
    alt = escape(plot.alt or plot.title)
    return (
        f'<figure><h3>{escape(plot.heading)}</h3><img alt="{alt}" src="{plot.uri}">'
        f"<figcaption>{escape_prose(plot.caption)}</figcaption></figure>"
    )


class Incident(NamedTuple):
    """Fault, with the last moments before it."""

    name: str
    cause: str
    hint: str
    plot_uri: str | None
    files: str


class Incidents(NamedTuple):
    """Collapsible list of faults; the first and the last are expanded."""

    heading: str
    note: str
    incidents: Sequence[Incident]

    def html(self) -> str:
        last_index = len(self.incidents) - 1
        items = (_render_incident(incident, is_open=i in (0, last_index)) for i, incident in enumerate(self.incidents))
        return "\n".join((heading(self.heading), f'<p class="note">{escape_prose(self.note)}</p>', *items))


def _render_incident(incident: Incident, *, is_open: bool) -> str:
    uri = incident.plot_uri
    plot = f'<figure><img alt="last moments before the fault" src="{uri}"></figure>' if uri else ""
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(incident.name)}</summary>"
        f'<p>{escape_prose(incident.cause)}</p><p class="note">{escape_prose(incident.hint)}</p>{plot}'
        f'<p class="note">{escape(incident.files)}</p></details>'
    )


class Properties(NamedTuple):
    """Table of names and values."""

    heading: str
    rows: Sequence[tuple[str, str]]

    def html(self) -> str:
        rows = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape_prose(v)}</td></tr>' for k, v in self.rows)
        return f'{heading(self.heading)}<div class="prose"><table><tbody>{rows}</tbody></table></div>'


class Source(NamedTuple):
    """Preformatted text, collapsed if it has a summary."""

    heading: str
    text: str
    summary: str = ""

    def html(self) -> str:
        body = f"<pre>{escape(self.text)}</pre>"
        folded = f"<details><summary>{escape(self.summary)}</summary>{body}</details>" if self.summary else body
        return heading(self.heading) + folded


class Contents(NamedTuple):
    """Links to the page's headings."""

    headings: Sequence[str]

    def html(self) -> str:
        return "<nav>" + "".join(f'<a href="#{anchor(h)}">{escape(h)}</a>' for h in self.headings) + "</nav>"
