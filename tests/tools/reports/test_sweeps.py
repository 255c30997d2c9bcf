from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.experiments.store import Cell
from onrig.tools.reports import style
from onrig.tools.reports.curves import draw_curves, group_by_figure
from onrig.tools.reports.results import Result, read_experiment
from onrig.tools.reports.sweeps import SWEEPS, paper_figure, sweep_lines
from tests.tools.reports.synthetic import cell, constant_trials, noise, write_experiment

FIFO = "FIFO[Uniform]"


def synthetic(kind: str, fraction: float, refresh_probability: float = 1.0) -> tuple[str, ...]:
    return (f"selection.synthetic={{{kind}: {fraction}, refresh: {refresh_probability}}}",) if fraction else ()


def results(folder: Path, cells: list[Cell]) -> list[Result]:
    unique = {trial_cell.id: trial_cell for trial_cell in cells}
    return read_experiment(write_experiment(folder, list(unique.values()), 2, make_trial=constant_trials(0.5))).results


FRACTIONS = (0.0, 0.1, 0.5)
GRIDS: dict[int, list[Cell]] = {
    5: [
        cell("pendulum", *synthetic(kind, f), f"selection.capacity={c}")
        for kind in ("states", "actions")
        for f in FRACTIONS
        for c in (5000, 10000)
    ],
    7: [
        cell("pendulum", *synthetic("states", f), f"learner.algorithm={a}") for f in FRACTIONS for a in ("ddpg", "dqn")
    ],
    8: [cell("pendulum", *synthetic("states", f, p)) for f in FRACTIONS for p in (0.25, 1.0)],
    9: [cell("pendulum", f"rate_hz={r}", *synthetic("states", f)) for r in (50, 100, 200) for f in (0, 0.1)],
    10: [
        cell("pendulum", f"rate_hz={r}", f"selection.write_probability={p}")
        for r in (50, 100, 200)
        for p in (1, 50 / r)
    ],
    11: [cell("pendulum", *noise(s)) for s in (0, 0.01, 0.05)],
    20: [cell(strategy=f"Expl({a})[{s}]") for a in (0.5, 1.0, 1.25) for s in ("Uniform", "PER")],
    21: [cell("pendulum", f"learner.per_alpha={a}", strategy="FULL[PER]") for a in (0.4, 0.7, 1.0)],
}
LINES = {5: 4, 7: 2, 8: 2, 9: 2, 10: 2, 11: 1, 20: 2, 21: 1}


@pytest.mark.parametrize("number", GRIDS)
def test_a_grid_gives_only_the_figure_that_shows_its_sweep(tmp_path: Path, number: int) -> None:
    all_results = results(tmp_path, GRIDS[number])
    lines_by_slug = {s.slug: sweep_lines(s, all_results) for s in SWEEPS}
    numbers = [paper_figure(s, lines_by_slug[s.slug])[0] for s in SWEEPS if lines_by_slug[s.slug]]
    assert numbers == [number]
    [lines] = [lines for lines in lines_by_slug.values() if lines]
    assert len(lines) == LINES[number]
    # Fraction 0 represents either kind and any refreshing, 50 Hz either way of continuing from it.
    assert all(len(line.x) == 3 and line.x == sorted(line.x) for line in lines)


def test_two_values_are_not_a_sweep(tmp_path: Path) -> None:
    all_results = results(tmp_path, [cell("pendulum", *noise(s)) for s in (0, 0.02)])
    assert not any(sweep_lines(s, all_results) for s in SWEEPS)


@pytest.mark.parametrize(
    ("overrides", "strategies", "numbers"),
    [
        ((), ("FIFO[Uniform]", "FULL[PER]"), {12: 2}),
        ((), ("FIFO[Uniform]",), {}),
        (("rate_hz=100",), ("FIFO[Uniform]", "FULL[PER]"), {13: 2}),
        (noise(0.02), ("FIFO[Uniform]", "FULL[PER]"), {14: 2}),
        (noise(0.02), ("FIFO[Uniform]", "FULL[PER]", "FIFO[PER+IS]"), {14: 2, 15: 3}),
        ((), ("FIFO[Uniform]", "FULL[PER]", "Expl(0.5)[PER]", "Expl(1.0)[PER]", "Expl(1.5)[PER]"), {12: 2}),
    ],
)
def test_strategies_appear_in_the_figure_of_their_conditions(
    tmp_path: Path, overrides: tuple[str, ...], strategies: tuple[str, ...], numbers: dict[int, int]
) -> None:
    results_by_figure = group_by_figure(
        results(tmp_path, [cell("pendulum", *overrides, strategy=s) for s in strategies])
    )
    assert {number: len(groups[0].results) for number, groups in results_by_figure.items()} == numbers
    assert all(len(groups) == 1 for groups in results_by_figure.values())


@pytest.mark.parametrize(
    ("other", "figures"), [("learner.ddpg.network=ddpg_original", [3, 19]), ("learner.algorithm=td3", [3])]
)
def test_networks_are_compared_if_nothing_else_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, figures: list[int]
) -> None:
    monkeypatch.setattr(style, "DPI", 20)
    all_results = results(tmp_path, [cell("pendulum", strategy=FIFO), cell("pendulum", other, strategy=FIFO)])
    assert [plot.number for plot in draw_curves(all_results, tmp_path)] == figures
