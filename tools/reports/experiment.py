"""``onrig report`` for an experiment: figures, tables and page of the finished trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import MAX_JSON_BYTES, read_fields, read_file
from onrig.tools.experiments.archive import DATA_FOLDER, write_archive
from onrig.tools.experiments.cost import Cost, read_costs
from onrig.tools.experiments.grid import cell_text
from onrig.tools.experiments.store import META, SPEC, AnyCell, WorldCell, read_cells, read_spec, write_atomically
from onrig.tools.load import print_problems
from onrig.tools.reports.conditions import describe_common, describe_conditions, varying_conditions
from onrig.tools.reports.curve_files import CURVES_FOLDER, write_curves
from onrig.tools.reports.curves import draw_curves, draw_dots
from onrig.tools.reports.page import Source
from onrig.tools.reports.results import (
    Experiment,
    Findings,
    compare_with_baseline,
    compare_with_plainer_sampling,
    read_experiment,
    warn_of_few_trials,
)
from onrig.tools.reports.scores import score_run, scores_sheets
from onrig.tools.reports.sheet import Sheet
from onrig.tools.reports.style import Plot, no_plots_reason
from onrig.tools.reports.sweeps import draw_sweeps
from onrig.tools.reports.tables import (
    ESTIMATES_NOTE,
    baselines,
    cells_sheet,
    describe_differences,
    differences_sheet,
    noise_sheets,
)
from onrig.tools.reports.worlds import build_world_findings
from onrig.tools.terminal import complain, draw_or_report

FIGURES_FOLDER: Final = "figures"
TABLES_FILE: Final = "tables.md"
PAGE_FILE: Final = "report.html"
_MAX_SOURCE_CHARACTERS: Final = 50_000
_ALTERNATIVE_FIGURES: Final = {6: (5,), 9: (9, 10), 18: (12,), 22: (7,), 23: (9, 10), 24: (8,)}
_REQUIRED_TRIALS: Final = {
    5: "three synthetic fractions",
    7: "three synthetic fractions with several algorithms",
    8: "three synthetic fractions with several probabilities of refreshing",
    9: "three control frequencies",
    10: "three control frequencies, with and without dropped experiences",
    11: "three strengths of noise",
    12: "two strategies at no more than 50 Hz without noise",
    13: "two strategies above 50 Hz without noise",
    14: "two strategies with noise",
    15: "strategies with importance sampling, with noise",
    19: "two sizes of networks",
    20: "three exponents of TDE or Expl",
    21: "three exponents of PER",
}
"""Trials required for each figure, all other conditions being equal."""
_TABLE_6: Final = "table-6"


def report_experiment(folder: Path, pages: Path | None = None) -> int:
    """Write an experiment's report and return the exit code.

    If ``pages`` is given, also publish the report there, as Markdown with its plots and the archived trials.
    """
    try:
        spec, cells = read_spec(folder), read_cells(folder)
        source = folder if pages is None else _archive_trials(folder, pages / DATA_FOLDER / spec.name, cells)
        world_cells = [cell for cell in cells if isinstance(cell, WorldCell)]
        experiment = None if world_cells else read_experiment(source)
        costs = read_costs(folder)
    except ConfigError as error:
        return print_problems(error)
    except OSError as error:
        return complain("report", f"'{error.filename or folder}' cannot be read: {error.strerror or error}")
    except ValueError as error:
        return complain("report", str(error) if str(folder) in str(error) else f"'{folder}' cannot be read: {error}")
    if experiment is not None and not experiment.results:
        problem = "no trial with finite rewards" if experiment.n_trials else "no finished trials yet"
        return complain("report", f"'{folder}' has {problem}")
    try:
        (folder / FIGURES_FOLDER).mkdir(exist_ok=True)
        if experiment is not None:
            plots, warnings = _draw_plots(folder / FIGURES_FOLDER, experiment)
            content = _build_findings(experiment, plots, [*_result_warnings(experiment), *warnings], costs)
        else:
            world_content = build_world_findings(source, folder / FIGURES_FOLDER, spec, world_cells)
            if world_content is None:
                return complain("report", f"'{folder}' has no finished trial with finite returns")
            content = world_content
        _write_report(folder, content, cells)
        page = None if pages is None else _write_page(pages, spec.name, content, _revisions_sentence(folder))
    except OSError as error:
        return complain("report", f"'{error.filename or folder}' cannot be written: {error.strerror or error}")
    _print_summary(folder, content)
    if page is not None:
        print(f"see {page}")
    return ExitCode.OK


def _archive_trials(folder: Path, archive: Path, cells: list[AnyCell]) -> Path:
    """Archive the trials from which a published page can be regenerated exactly."""
    if not (archive.exists() and archive.samefile(folder)):
        write_archive(folder, archive, cells)
    return archive


def _revisions_sentence(folder: Path) -> str:
    """Return a sentence that lists the Git revisions at which an experiment was started; empty if unknown."""
    meta = read_fields(folder / META)
    resumed = meta.get("resumed")
    starts = [meta, *(resumed if isinstance(resumed, list) else [])]
    revisions = [
        str(start["git_revision"])[:8] + " (with uncommitted changes)" * bool(start.get("git_dirty"))
        for start in starts
        if isinstance(start, dict) and start.get("git_revision")
    ]
    return f" Run at revision {', then '.join(dict.fromkeys(revisions))}." if revisions else ""


def _write_page(pages: Path, name: str, content: Findings, revisions: str) -> Path:
    """Write ``NAME.md`` and its plots, ``NAME-....png``."""
    pages.mkdir(parents=True, exist_ok=True)
    files = {plot: f"{name}-{plot.path.name}" for plot in content.plots}
    for plot, file in files.items():
        write_atomically(pages / file, plot.path.read_bytes())
    page = pages / f"{name}.md"
    sources = (
        f"The trials are in [{DATA_FOLDER}/{name}]({DATA_FOLDER}/{name}). The first command regenerates this page from "
        "them; the others rerun them:"
    )
    commands = (
        f"onrig report {pages}/{DATA_FOLDER}/{name} --pages {pages}",
        f"onrig experiment {name} --out runs/{name}",
        f"onrig report runs/{name} --pages {pages}",
    )
    content = content._replace(lead="\n".join((f"{content.lead}{revisions}\n\n{sources}\n\n```sh", *commands, "```")))
    write_atomically(page, content.page(files=files).markdown().encode())
    return page


def _write_report(folder: Path, content: Findings, cells: list[AnyCell]) -> None:
    """Write tables, page and curves."""
    sources = {"Spec": _read_text(folder / SPEC), "Where it ran": _read_text(folder / META)}
    page = content.page(*(Source(head, text) for head, text in sources.items() if text))
    write_atomically(folder / TABLES_FILE, page.markdown().encode())
    write_atomically(folder / PAGE_FILE, page.html().encode())
    write_curves(folder, cells)


def _draw_plots(folder: Path, experiment: Experiment) -> tuple[list[Plot], list[str]]:
    """Draw all plots and return them in the order of their figure numbers.

    Also returns notes about plots that could not be drawn and about figures that the spec names but that are missing.
    """
    results = experiment.results
    if reason := no_plots_reason():
        return [], [reason]
    notes: list[str] = []
    plots: list[Plot] = []
    for kind, draw in (("Curves", draw_curves), ("Dots", draw_dots), ("Sweeps", draw_sweeps)):
        plots += draw_or_report(kind, partial(draw, results, folder), notes.append) or []
    drawn_paths = {plot.path for plot in plots}
    for path in folder.glob("figure-*.png"):
        if path not in drawn_paths:  # from an earlier report
            path.unlink()
    plots.sort(key=lambda plot: plot.number)
    drawn_numbers = {plot.number for plot in plots}
    has_noise = any(r.noise is not None for r in results)
    return plots, [*notes, *missing_figure_notes(experiment.spec.figures, drawn_numbers, has_noise=has_noise)]


def missing_figure_notes(names: Sequence[int | str], drawn_numbers: set[int], *, has_noise: bool) -> list[str]:
    """Explain each figure or table that the spec names but that is missing."""
    lines = []
    for name in names:
        number = int(name) if isinstance(name, int) or name.isdecimal() else None
        if number is not None and not drawn_numbers.intersection(_ALTERNATIVE_FIGURES.get(number, (number,))):
            required_trials = _REQUIRED_TRIALS.get(next(iter(_ALTERNATIVE_FIGURES.get(number, (number,)))))
            requirement = f"it needs finished trials of {required_trials}, all other conditions being equal"
            reason = requirement if required_trials else "no report includes it"
            lines.append(f"Figure {number} is not drawn: {reason}.")
        elif number is None and name != _TABLE_6:
            lines.append(f"Unknown figure '{name}' in the spec: expected the number of a figure, or '{_TABLE_6}'.")
        elif name == _TABLE_6 and not has_noise:
            lines.append("Table 6 is missing: no finished trial measured noise in its mini-batches.")
    return lines


def _result_warnings(experiment: Experiment) -> list[str]:
    """Return the warnings shown above the results."""
    lines, results = [], experiment.results
    n_planned = experiment.n_cells * experiment.spec.trials
    if not experiment.is_finished:
        lines.append(
            f"Incomplete: {experiment.n_trials} of {n_planned} trials are finished, in {len(results)} of "
            f"{experiment.n_cells} cells; the results below cover only these."
        )
    n_non_finite = sum(r.n_non_finite for r in results)
    if n_non_finite:
        lines.append(f"{n_non_finite} trials are omitted because of non-finite rewards: see the table of all cells.")
    lines += [
        f"No trial of {cell_text(result.cell)} has finite rewards: the tables omit this cell."
        for result in experiment.unusable
    ]
    lines += warn_of_few_trials(min(len(r.seeds) for r in results))
    if any(r.cell.config.task.normalization is None for r in results):
        lines.append(
            "Some tasks have no reference scores (task.normalization): their μ is the mean raw reward per step, and "
            "their rise times are unknown."
        )
    if not all(r.is_evaluated for r in results):
        lines.append("Some cells have no noise-free evaluations: their performance was measured during training.")
    return lines


def _build_findings(
    experiment: Experiment, plots: list[Plot], warnings: list[str], costs: Mapping[str, Cost]
) -> Findings:
    spec, results = experiment.spec, experiment.results
    baseline_differences, sampling_differences = compare_with_baseline(results), compare_with_plainer_sampling(results)
    sheets: list[Sheet] = []
    if baseline_differences:
        sheets.append(differences_sheet(f"Differences from {' or '.join(baselines(results))}", baseline_differences))
    if sampling_differences:
        sheets.append(differences_sheet("Sampling methods with the same retention", sampling_differences))
    sheets += noise_sheets(results)
    if costs:
        # The plant is part of the task, which identifies the group.
        axes = [axis for axis in varying_conditions(r.setting for r in results) if axis != "plant"]
        conditions = [describe_conditions(axes, [r.setting.conditions[axis] for axis in axes]) for r in results]
        names = [
            ", ".join(filter(None, (text, r.setting.strategy))) for text, r in zip(conditions, results, strict=True)
        ]
        sheets[:0] = scores_sheets(list(map(score_run, names, results)), costs)
    sheets.append(cells_sheet(experiment))
    lead = (
        f"{spec.name}: {experiment.n_cells} cells, {spec.trials} trials each, {spec.episodes} episodes; "
        f"{describe_common([r.setting for r in results])}. {ESTIMATES_NOTE}"
    )
    return Findings(spec.title or spec.name, lead, warnings, describe_differences(baseline_differences), plots, sheets)


def _read_text(path: Path) -> str:
    try:
        return read_file(path, MAX_JSON_BYTES).decode(errors="replace")[:_MAX_SOURCE_CHARACTERS].rstrip()
    except OSError:
        return ""


def _print_summary(folder: Path, content: Findings) -> None:
    print(f"{content.title}\n\n{content.sheets[-1].text()}")
    for warning in content.warnings:
        print(f"\n{warning}")
    print(f"\nsee {folder / PAGE_FILE}, {folder / TABLES_FILE}, {folder / FIGURES_FOLDER} and {folder / CURVES_FOLDER}")
