"""``onrig report`` for a run's folder: plots of its post-mortems, and the report page."""

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
from onrig.runtime.supervise.post_mortem import find_post_mortems
from onrig.runtime.view.run_view import RunFiles, read_run, to_number
from onrig.tools.experiments.store import write_atomically
from onrig.tools.reports.page import (
    Badge,
    Contents,
    Figures,
    Incident,
    Incidents,
    Page,
    Part,
    Properties,
    Source,
    Tiles,
    Warnings,
)
from onrig.tools.reports.run.charts import episodes_chart, policies_chart, timing_chart
from onrig.tools.reports.run.expectations import advice_sheet, identification_sheet, pretraining_sheet
from onrig.tools.reports.run.fault_plot import PLOT_FILE, draw_post_mortems, read_last_moments
from onrig.tools.reports.run.memory_chart import coverage_chart, read_memory_sample, read_surface, surfaces_chart
from onrig.tools.reports.run.tables import (
    counts_sheet,
    environment_facts,
    events_sheet,
    how_to_reproduce,
    policies_sheet,
    tiles,
    warnings,
)
from onrig.tools.reports.style import Plot, no_plots_reason, png_uri
from onrig.tools.run_description import describe_run
from onrig.tools.run_facts import RunFacts, facts_from_files
from onrig.tools.terminal import draw_or_report

PAGE: Final = "report.html"
_CONFIG_LIMIT: Final = 50_000
_MAX_BADGE_CHARS: Final = 40


def report_run(folder: Path, config: RunConfig, out: Path | None = None, damage: Sequence[str] = ()) -> Path:
    """Write the page of a finished or active run, with a warning for each line of ``damage``, and return its path.

    Raises OSError.
    """
    files = read_run(folder, config)
    notes = [f"Damaged: {line}." for line in damage]
    charts: list[Plot] = []
    if reason := no_plots_reason():
        notes.append(reason)
    else:
        draw_or_report("A post-mortem", lambda: draw_post_mortems(folder, config), notes.append)
        charts = _draw_charts(files, notes)
    page = _build_page(files, charts, notes).html().encode()
    if out is None:
        write_atomically(folder / PAGE, page)
    else:
        replace_file(out, page)
    return out or folder / PAGE


def _draw_charts(m: RunFiles, notes: list[str]) -> list[Plot]:
    drawers: tuple[Callable[[RunFiles], Plot | None], ...] = (episodes_chart, policies_chart, timing_chart)
    charts = [c for draw in drawers if (c := draw_or_report("A chart", partial(draw, m), notes.append)) is not None]
    active_policy = int(to_number(m.section("policies").get("active")))
    sample, surface = read_memory_sample(m.folder, m.config), read_surface(m.folder, m.config, active_policy)
    if isinstance(sample, str):
        notes.append(f"The memory is not drawn: {sample}.")
    elif chart := draw_or_report("The memory", lambda: coverage_chart(m.config, sample, surface), notes.append):
        charts.append(chart)
    if surface is not None and (isinstance(sample, str) or surface.action.shape[0] > 1):
        chart = draw_or_report("The policy", lambda: surfaces_chart(m.config, surface), notes.append)
        charts += [chart] if chart is not None else []
    return charts


def _build_page(m: RunFiles, charts: list[Plot], notes: list[str]) -> Page:
    config, facts = m.config, facts_from_files(m)
    text = ""
    with contextlib.suppress(OSError):
        text = read_file(m.folder / "config.yaml", MAX_BYTES).decode(errors="replace")[:_CONFIG_LIMIT].rstrip()
    incidents = _read_incidents(m.folder)
    sections: list[Part] = [Figures(charts)]
    if incidents:
        sections.append(Incidents("Post-mortems", "The last two seconds before each recorded fault.", incidents))
    sheets = (
        advice_sheet(m),
        pretraining_sheet(m),
        identification_sheet(m),
        counts_sheet(m),
        policies_sheet(m),
        events_sheet(m),
    )
    sections += [sheet for sheet in sheets if sheet is not None]
    sections += [
        Properties("Where it ran", environment_facts(m)),
        Source("How to reproduce it", "\n".join(how_to_reproduce(m))),
        Source("Configuration", text, "config.yaml, as resolved"),
    ]
    contents = {"Figures": charts, "Post-mortems": incidents, "Where it ran": True, "How to reproduce it": True}
    head: list[Part] = [
        Badge(_outcome(facts), facts.is_completed),
        Contents([heading for heading, content in contents.items() if content]),
        Tiles(tiles(m, facts)),
        Warnings(warnings(m, facts, notes)),
    ]
    return Page(
        f"{config.rig.name} {config.task.name}: run {m.folder.resolve().name}",
        f"{describe_run(config)}; strategy {config.selection.strategy}, seed {config.seed}.",
        [*head, *sections],
        f"Onrig {_version()}, {time.strftime('%Y-%m-%d %H:%M')}",
    )


def _outcome(facts: RunFacts) -> str:
    """Return the run's outcome in a few words; the reason is among the warnings."""
    if not facts.ended:
        return "unfinished"
    if len(facts.ended) < _MAX_BADGE_CHARS:
        return facts.ended
    return f"ended by a fault: {facts.fault}" if facts.fault else "did not complete"


def _read_incidents(folder: Path) -> list[Incident]:
    incidents = []
    for post_mortem in find_post_mortems(folder):
        moments = read_last_moments(post_mortem)
        plot: str | None = None
        with contextlib.suppress(OSError):
            plot = png_uri(read_file(post_mortem / PLOT_FILE, MAX_JSON_BYTES))
        facts = moments.facts
        position = (
            f"episode {facts.get('episode', '?')}, tick {facts.get('tick', '?')}, policy {facts.get('policy', '?')}"
        )
        t = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(to_number(facts.get("t_unix_s"))))
        detail = f" ({facts['detail']})" if facts.get("detail") else ""
        incidents.append(
            Incident(
                f"{post_mortem.name}: {position}",
                f"{t}: {facts.get('cause', 'unknown')}{detail}",
                str(facts.get("hint", "")),
                plot,
                f"{post_mortem.relative_to(folder)}: records.csv, frames.jsonl, fault.json",
            )
        )
    return incidents


def _version() -> str:
    try:
        return version("onrig")
    except PackageNotFoundError:
        return "unknown"
