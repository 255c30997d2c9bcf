from __future__ import annotations

import re
from pathlib import Path

import pytest

from onrig.tools.cli import main
from onrig.tools.experiments.store import Cell, Trial
from onrig.tools.reports.experiment import missing_figure_notes
from tests.tools.reports.synthetic import cell, constant_trials, noise, write_experiment

PNG = b"\x89PNG\r\n\x1a\n"
LEVELS = {"FIFO[Uniform]": 0.5, "FULL[Uniform]": 0.7, "FULL[PER]": 0.9}


def by_strategy(trial_cell: Cell, seed: int) -> Trial:
    return constant_trials(LEVELS[trial_cell.config.selection.strategy])(trial_cell, seed)


def three_cells(config: str = "pendulum", *overrides: str) -> list[Cell]:
    return [cell(config, *overrides, strategy=s) for s in LEVELS]


def row(table: str, *starts: str) -> list[str]:
    """Cells of the Markdown row that starts with these."""
    [matching_row] = [line for line in table.splitlines() if line.startswith("| " + " | ".join(starts) + " |")]
    return [text.strip() for text in matching_row.strip("|").split("|")][len(starts) :]


def test_an_experiment_is_reported_in_figures_tables_and_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [*three_cells(), *three_cells("magman")]
    write_experiment(
        tmp_path, cells, 12, make_trial=by_strategy, figures=[3, 12, 13, "table-6"], title="A <b>title</b>"
    )
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    names = ["figure-03-learning-curves.png", "figure-12-strategies.png"]
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == names
    assert all((tmp_path / "figures" / name).read_bytes().startswith(PNG) for name in names)

    tables = (tmp_path / "tables.md").read_text()
    # Seeds add 0 to 0.11: their median is 0.055, which pairing takes out of the differences.
    assert row(tables, "pendulum", "FIFO[Uniform]")[:4] == ["12/12", "0.555 [0.523, 0.587]", "0.555", "0.500"]
    assert row(tables, "magman", "FULL[PER] − FIFO[Uniform]")[:2] == ["12", "▲ +0.400 [+0.400, +0.400]"]
    assert row(tables, "pendulum", "FIFO[Uniform]")[5:] == ["≥ 120 [120, 120]", "0 of 12 (at least 0 %)"]
    assert row(tables, "pendulum", "FULL[PER]")[5:] == ["1 [1, 1]", "12 of 12 (at least 78 %)"]
    assert row(tables, "pendulum", "FULL[PER] − FIFO[Uniform]")[3] == "▲ 0.008 [0.008, 0.008] *"
    assert row(tables, "pendulum", "FULL[PER] − FULL[Uniform]")[1] == "▲ +0.200 [+0.200, +0.200]"
    assert "* ▲ FULL[Uniform] compared with FIFO[Uniform]: μ_final higher by 0.200 [0.200, 0.200]" in tables

    page = (tmp_path / "report.html").read_text()
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r"<script|https?://|<link|@import|url\(", page)
    order = [page.index(part) for part in ("At a glance", "Figures", "Differences from", "All cells", ">Spec</h2>")]
    assert order == sorted(order)
    assert "n = 12" in page

    assert "pendulum, FULL[PER]" in out
    assert "Figure 13 is not drawn: it needs finished trials of two strategies above 50 Hz" in out
    assert "Table 6 is missing" in out
    assert "Incomplete" not in out


def test_the_same_results_give_the_same_bytes_and_figures_without_data_are_removed(tmp_path: Path) -> None:
    write_experiment(tmp_path, three_cells()[:2], 3, make_trial=by_strategy)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "figure-20-retention-alpha.png").write_bytes(PNG)
    (tmp_path / "figures" / "mine.png").write_bytes(PNG)
    pages = []
    for _ in range(2):
        assert main(["report", str(tmp_path)]) == 0
        pages.append((tmp_path / "report.html").read_bytes())
    assert pages[0] == pages[1]
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {
        "figure-03-learning-curves.png",
        "figure-12-strategies.png",
        "mine.png",
    }


def test_an_unfinished_experiment_is_reported_as_far_as_it_got(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = three_cells()
    write_experiment(
        tmp_path, cells, 4, make_trial=by_strategy, is_done=lambda trial_cell, seed: trial_cell is cells[0] and seed < 1
    )
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Incomplete: 1 of 12 trials are finished, in 1 of 3 cells" in out
    assert "Some medians are over only 1 trials: with fewer than 6, they have no 95 % interval" in out
    tables = (tmp_path / "tables.md").read_text()
    assert row(tables, "FIFO[Uniform]") == [
        *("1/4", "0.500", "0.500", "0.500", "0.500", "≥ 120", "0 of 1 (at least 0 %)")
    ]


def test_table_6_is_next_to_the_papers_values(tmp_path: Path) -> None:
    levels = {"Expl(1.0)[Uniform]": 1.6e-2, "TDE(1.0)[PER]": 1.8e-2}

    def make_trial(trial_cell: Cell, seed: int) -> Trial:
        level = levels[trial_cell.config.selection.strategy]
        return constant_trials(0.9)(trial_cell, seed)._replace(
            batch_noise=level * (1 + 0.01 * (seed % 2)) * constant_trials(1.0)(trial_cell, 0).train[:3] ** 0
        )

    cells = [cell("pendulum", *noise(0.02), strategy=s) for s in levels]
    write_experiment(tmp_path, cells, 6, make_trial=make_trial, figures=["table-6"])
    assert main(["report", str(tmp_path)]) == 0
    table = (tmp_path / "tables.md").read_text().split("## Table 6")[1].split("## All cells")[0]
    assert "| position | position: − first | position: mean | position: paper | velocity |" in table
    first_row, other_row = row(table, "Expl(1)[Uniform]"), row(table, "TDE(1)[PER]")
    assert first_row[1:5] == ["1.608 [1.600, 1.616]", "", "1.608", "1.584"]
    assert [other_row[k] for k in (2, 4, 12)] == ["↑ +0.201 [+0.200, +0.202]", "1.846", "1.594"]


@pytest.mark.parametrize(
    ("requested", "drawn_figures", "has_noise", "lines"),
    [
        ([3, 12, "table-6"], {3, 12}, True, []),
        ([6, 9, 23], {5, 10}, False, []),
        (
            ["12", 16],
            {3},
            False,
            ["Figure 12 is not drawn: it needs", "Figure 16 is not drawn: no report includes it."],
        ),
        (["table-9"], {3}, True, ["Unknown figure 'table-9' in the spec: expected the number"]),
        (["table-6"], {3}, False, ["Table 6 is missing: no finished trial measured noise"]),
    ],
)
def test_a_requested_figure_that_is_not_drawn_has_a_line(
    requested: list[int | str], drawn_figures: set[int], has_noise: bool, lines: list[str]
) -> None:
    notes = missing_figure_notes(requested, drawn_figures, has_noise=has_noise)
    assert len(notes) == len(lines)
    assert all(line.startswith(start) for line, start in zip(notes, lines, strict=True))


def refusal_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", str(folder)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert not (folder / "report.html").exists()
    return line


def test_an_experiment_without_finished_trials_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path, three_cells(), 3, is_done=lambda trial_cell, seed: False)
    assert refusal_message(tmp_path, capsys) == f"onrig report: '{tmp_path}' has no finished trials yet"


def test_an_experiment_without_finite_scores_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(
        tmp_path, three_cells(), 3, make_trial=lambda trial_cell, seed: constant_trials(float("inf"))(trial_cell, seed)
    )
    assert refusal_message(tmp_path, capsys) == f"onrig report: '{tmp_path}' has no trial with finite rewards"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("cells.json", None, "cannot be read"), ("cells.json", "[1", "damaged"), ("spec.yaml", "name: [", "spec.yaml:")],
)
def test_unreadable_results_are_reported_in_one_line(
    tmp_path: Path, name: str, content: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_experiment(tmp_path, three_cells(), 2, make_trial=by_strategy)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    assert message in refusal_message(tmp_path, capsys)


def test_an_unwritable_folder_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path, three_cells(), 2, make_trial=by_strategy)
    (tmp_path / "figures").write_text("in the way")
    assert "cannot be written" in refusal_message(tmp_path, capsys)
