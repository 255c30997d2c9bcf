"""``onrig report`` of a run's folder: pictures of its post-mortems, and the page."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from onrig.runtime.config.document import MAX_BYTES
from onrig.runtime.files import MAX_JSON_BYTES, read_file, replace_file
from onrig.runtime.run_config import RunConfig
from onrig.runtime.supervise.post_mortem import post_mortems
from onrig.runtime.view.run_view import RunFiles, number, read_run
from onrig.tools.check import in_one_line
from onrig.tools.experiments.store import write_whole
from onrig.tools.reports.page import Fault, RunPage, run_page
from onrig.tools.reports.run.charts import episodes_chart, policies_chart, timing_chart
from onrig.tools.reports.run.fault_picture import PICTURE, draw_post_mortems, read_last_moments
from onrig.tools.reports.run.memory_chart import coverage_chart, read_contents, read_surface, surfaces_chart
from onrig.tools.reports.run.tables import (
    circumstances,
    counts_sheet,
    events_sheet,
    how_to_reproduce,
    policies_sheet,
    tiles,
    warnings,
)
from onrig.tools.reports.style import Chart, png_uri, why_no_pictures
from onrig.tools.terminal import drawn

PAGE: Final = "report.html"
_CONFIG_LIMIT: Final = 50_000
_SHORT: Final = 40


def report_run(folder: Path, config: RunConfig, out: Path | None = None, damage: Sequence[str] = ()) -> Path:
    """Write the page of a run, finished or under way, with a warning for each line of ``damage``; returns its path.

    Raises OSError.
    """
    material = read_run(folder, config)
    notes = [f"Damaged: {line}." for line in damage]
    charts: list[Chart] = []
    if why := why_no_pictures():
        notes.append(why)
    else:
        drawn("A post-mortem", lambda: draw_post_mortems(folder, config), notes.append)
        charts = _charts(material, notes)
    page = run_page(_page(material, charts, notes)).encode()
    if out is None:
        write_whole(folder / PAGE, page)
    else:
        replace_file(out, page)
    return out or folder / PAGE


def _charts(m: RunFiles, notes: list[str]) -> list[Chart]:
    drawers: tuple[Callable[[RunFiles], Chart | None], ...] = (episodes_chart, policies_chart, timing_chart)
    charts = [c for draw in drawers if (c := drawn("A chart", partial(draw, m), notes.append)) is not None]
    active = int(number(m.section("policies").get("active")))
    contents, surface = read_contents(m.folder, m.config), read_surface(m.folder, m.config, active)
    if isinstance(contents, str):
        notes.append(f"The memory is not drawn: {contents}.")
    elif chart := drawn("The memory", lambda: coverage_chart(m.config, contents, surface), notes.append):
        charts.append(chart)
    if surface is not None and (isinstance(contents, str) or surface.action.shape[0] > 1):
        chart = drawn("The policy", lambda: surfaces_chart(m.config, surface), notes.append)
        charts += [chart] if chart is not None else []
    return charts


def _page(m: RunFiles, charts: list[Chart], notes: list[str]) -> RunPage:
    config, reason = m.config, m.summary.get("exit_reason")
    sheets = [s for s in (counts_sheet(m), policies_sheet(m), events_sheet(m)) if s is not None]
    text = ""
    with contextlib.suppress(OSError):
        text = read_file(m.folder / "config.yaml", MAX_BYTES).decode(errors="replace")[:_CONFIG_LIMIT].rstrip()
    return RunPage(
        title=f"{config.rig.name} {config.task.name}: run {m.folder.resolve().name}",
        lead=f"{in_one_line(config)}; strategy {config.selection.strategy}, seed {config.seed}.",
        outcome=_outcome(m, reason),
        completed=reason == "completed",
        tiles=tiles(m),
        warnings=warnings(m, notes),
        charts=charts,
        sheets=sheets,
        faults=_faults(m.folder),
        circumstances=circumstances(m),
        reproduce=how_to_reproduce(m),
        configuration=text,
        footer=f"Onrig {_version()}, {time.strftime('%Y-%m-%d %H:%M')}",
    )


def _outcome(m: RunFiles, reason: object) -> str:
    """How it ended, in two or three words; the reason itself is among the warnings."""
    if not reason:
        return "unfinished"
    fault = m.summary.get("fault")
    return str(reason) if len(str(reason)) < _SHORT else f"ended by a fault: {fault}" if fault else "did not complete"


def _faults(folder: Path) -> list[Fault]:
    found = []
    for at in post_mortems(folder):
        told = read_last_moments(at)
        picture: str | None = None
        with contextlib.suppress(OSError):
            picture = png_uri(read_file(at / PICTURE, MAX_JSON_BYTES))
        story = told.story
        where = f"episode {story.get('episode', '?')}, tick {story.get('tick', '?')}, policy {story.get('policy', '?')}"
        t = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(number(story.get("t_unix_s"))))
        detail = f" ({story['detail']})" if story.get("detail") else ""
        found.append(
            Fault(
                f"{at.name}: {where}",
                f"{t}: {story.get('cause', 'unknown')}{detail}",
                str(story.get("hint", "")),
                picture,
                f"{at.relative_to(folder)}: records.csv, frames.jsonl, fault.json",
            )
        )
    return found


def _version() -> str:
    try:
        return version("onrig")
    except PackageNotFoundError:
        return "unknown"
