"""The table of all figures: as generated, and with every experiment that repeats one."""

from __future__ import annotations

import pytest

from tests.studies.figures import PAGE, PAGES, PAPERS, SPECS, Size, lines, size_of_page

FIGURES = [figure for figures in PAPERS.values() for figure in figures]
OF_PAPERS = ("figure-", "table-", "oh-", "novati-", "cicek-2021-ddpg", "cicek-2021-td3", "han-")


def test_the_page_is_what_the_program_writes() -> None:
    assert PAGE.read_text("utf-8") == "\n".join(lines()) + "\n"


def test_every_experiment_at_a_paper_s_size_is_in_it() -> None:
    full = {path.stem for path in SPECS.glob("*.yaml") if path.stem.startswith(OF_PAPERS) and "-quick" not in path.stem}
    assert full == {figure.spec for figure in FIGURES} - {""}


@pytest.mark.parametrize("page", sorted({page for figure in FIGURES for page in figure.pages}))
def test_every_page_has_a_size(page: str) -> None:
    assert (PAGES / f"{page}.md").exists()
    assert size_of_page(page) > Size(0, 0)
