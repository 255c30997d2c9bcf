"""The report of a run as one HTML file that needs nothing else: no scripts, no network, pictures inlined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from onrig.tools.reports.markup import escape
from onrig.tools.reports.page import STYLE
from onrig.tools.reports.run.drawing import Chart
from onrig.tools.reports.run.tables import Tile
from onrig.tools.reports.sheet import Sheet

_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE: Final = """
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1.4rem 0; }
.tile { background: var(--shade); border-radius: 8px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.35rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .8rem; } .tile.alarming b { color: var(--worse); }
.badge { display: inline-block; border-radius: 1rem; padding: .1rem .7rem; background: var(--shade); }
.badge.good { color: var(--better); } .badge.bad { color: var(--worse); }
nav { font-size: .875rem; margin: .8rem 0 0; } nav a { margin-right: 1rem; color: var(--soft); }
.prose td, .prose th { white-space: normal; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
.prose th:nth-child(-n+3) { white-space: nowrap; }
#again + pre { white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; }
details pre { max-height: 32rem; overflow: auto; }
footer { margin-top: 3rem; color: var(--soft); font-size: .8rem; }
"""


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


def html(page: RunPage) -> str:
    """Build the page; everything in it is escaped."""
    badge = "good" if page.completed else "bad"
    parts = [
        f"<h1>{escape(page.title)}</h1>",
        f'<p class="lead">{escape(page.lead)}</p>',
        f'<p><span class="badge {badge}">{escape(page.outcome)}</span></p>',
        _navigation(page),
        '<div class="tiles">' + "".join(map(_tile, page.tiles)) + "</div>",
    ]
    if page.warnings:
        parts.append('<div class="warn">' + "".join(f"<p>{escape(w)}</p>" for w in page.warnings) + "</div>")
    if page.charts:
        parts.append('<h2 id="figures">Figures</h2>')
        parts += map(_figure, page.charts)
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
    body = "\n".join(filter(None, parts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>{STYLE}{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _navigation(page: RunPage) -> str:
    there = [("figures", "Figures", page.charts), ("faults", "Post-mortems", page.faults)]
    links = [(name, text) for name, text, content in there if content]
    links += [("where", "Where it ran"), ("again", "How to reproduce it")]
    return "<nav>" + "".join(f'<a href="#{name}">{text}</a>' for name, text in links) + "</nav>"


def _tile(tile: Tile) -> str:
    alarming = " alarming" if tile.alarming else ""
    return f'<div class="tile{alarming}"><b>{escape(tile.value)}</b><span>{escape(tile.label)}</span></div>'


def _figure(chart: Chart) -> str:
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
