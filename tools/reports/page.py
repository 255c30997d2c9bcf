"""The report as one HTML file that needs nothing else: no scripts, no network, pictures inlined."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from onrig.tools.reports.figure import Picture
from onrig.tools.reports.markup import escape
from onrig.tools.reports.sheet import Sheet

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c1f23; --soft: #5b636d; --paper: #fcfcfb; --line: #d9dde1; --shade: #f1f3f5;
  --better: #0b6e4f; --worse: #a3390b; --warn: #fdf3d8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #a3abb5; --paper: #16191d; --line: #363c44;
  --shade: #20252b; --better: #5fd0a5; --worse: #ff9a6b; --warn: #3a3218; } }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .7rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.lead, .note, figcaption { color: var(--soft); }
.note, figcaption { font-size: .875rem; max-width: 52rem; }
.warn { background: var(--warn); border-radius: 6px; padding: .6rem .9rem; }
.warn p { margin: .2rem 0; }
ul { list-style: none; padding: 0; margin: 0; } li { margin: .15rem 0; }
.better { color: var(--better); } .worse { color: var(--worse); }
figure { margin: 0 0 2.2rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px; }
figure h3 { margin-bottom: .5rem; } figcaption { margin-top: .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; white-space: nowrap; text-align: right; }
tbody th { font-weight: 500; text-align: left; } tbody th:first-child { color: var(--soft); }
thead th { border-bottom: 1px solid var(--ink); font-weight: 600; } thead th:first-child { text-align: left; }
tr.start > * { border-top: 1px solid var(--line); }
tbody tr:hover { background: var(--shade); }
pre { background: var(--shade); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; font-size: .8rem; }
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } }
"""


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


def page(content: Content) -> str:
    """Build the page; raises OSError where a picture cannot be read."""
    parts = [f"<h1>{escape(content.title)}</h1>", f'<p class="lead">{escape(content.lead)}</p>']
    if content.warnings:
        lines = "".join(f"<p>{escape(w)}</p>" for w in content.warnings)
        parts.append(f'<div class="warn">{lines}</div>')
    if content.claims:
        parts.append("<h2>At a glance</h2>")
        for conditions, told in content.claims.items():
            parts.append(f"<h3>{escape(conditions)}</h3>" if conditions else "")
            parts.append(f"<ul>{''.join(map(_claim, told))}</ul>")
    if content.pictures:
        parts.append("<h2>Figures</h2>")
        parts += [_figure(picture) for picture in content.pictures]
    parts += [sheet.html() for sheet in content.sheets]
    parts += [f"<h2>{escape(head)}</h2><pre>{escape(text)}</pre>" for head, text in content.sources.items()]
    body = "\n".join(filter(None, parts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(content.title)}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def markdown(content: Content) -> str:
    """The tables with what is said at a glance, as Markdown."""
    parts = [f"# {content.title}", "", content.lead, ""]
    parts += [f"> {w}\n" for w in content.warnings]
    if content.claims:
        parts += ["## At a glance", ""]
        for conditions, lines in content.claims.items():
            parts += [f"**{conditions}**", ""] if conditions else []
            parts += [*(f"* {line}" for line in lines), ""]
    parts += [sheet.markdown() for sheet in content.sheets]
    return "\n".join(parts)


def _claim(line: str) -> str:
    kind = {"▲": ' class="better"', "▼": ' class="worse"'}.get(line[:1], "")
    return f"<li><span{kind}>{escape(line[:1])}</span>{escape(line[1:])}</li>"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode()
    heading = f"As figure {picture.number} of 000: {picture.title}"
    return (
        f'<figure><h3>{escape(heading)}</h3><img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )
