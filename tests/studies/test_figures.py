"""The table of all figures: as generated, and with every experiment that reproduces one."""

from __future__ import annotations

import pytest

from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import read_cells, read_trials
from tests.studies.figures import PAGE, PAGES, PAPERS, SPECS, Figure, Size, lines, size_in_archive, size_of_page

FIGURES = [figure for figures in PAPERS.values() for figure in figures]
OF_PAPERS = ("figure-", "table-", "oh-", "novati-", "cicek-2021-ddpg", "cicek-2021-td3", "han-")


def test_the_page_matches_the_program() -> None:
    assert PAGE.read_text("utf-8") == "\n".join(lines()) + "\n"


def test_every_paper_sized_experiment_is_on_the_page() -> None:
    full = {path.stem for path in SPECS.glob("*.yaml") if path.stem.startswith(OF_PAPERS) and "-quick" not in path.stem}
    assert full == {figure.spec for figure in FIGURES} - {""}


@pytest.mark.parametrize("page", sorted({page for figure in FIGURES for page in figure.pages}))
def test_every_page_states_its_size(page: str) -> None:
    assert (PAGES / f"{page}.md").exists()
    assert size_of_page(page) > Size(0, 0)


@pytest.mark.parametrize("figure", [f for f in FIGURES if f.archived], ids=lambda figure: str(figure.name))
def test_a_figure_counts_the_archived_cells_of_its_own_conditions(figure: Figure) -> None:
    archive = PAGES / "data" / figure.pages[0]
    noise = None if figure.name in ("12", "13") else 0.02
    is_other_rate = figure.name == "13"
    strategies = {
        strategy for b in load_spec(SPECS / f"{figure.spec}.yaml").spec.blocks for strategy in b.grid["strategy"]
    }
    trials = [
        len(read_trials(archive, cell).seeds)
        for cell in read_cells(archive)
        if cell.label.get("noise") == noise and ("rate_hz" in cell.label) is is_other_rate
        if cell.label["strategy"] in strategies and cell.label["config"] in ("pendulum", "magman")
        if figure.name != "Table 6" or cell.label["config"] == "pendulum"
    ]
    assert size_in_archive(figure.pages[0], figure.spec).trials == sum(trials) > 0
