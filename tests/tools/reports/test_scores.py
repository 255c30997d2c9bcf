"""Scores at equal experience and at equal compute, and the bytes of memories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.step_run import Evaluation, StepRun
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.memory.settings import Selection
from onrig.tools.cli import main
from onrig.tools.experiments.cost import COSTS, Cost, write_costs
from onrig.tools.experiments.grid import cell_text, expand_spec
from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import Trial, WorldCell, write_cells, write_trial
from onrig.tools.load import load
from onrig.tools.reports import style
from onrig.tools.reports.scores import ScoredCell, best_sheet, memory_bytes, score_world, scores_sheet
from onrig.tools.reports.world_results import WorldResult, read_results
from tests.tools.experiments.specs import write_spec
from tests.tools.reports.synthetic import cell as run_cell
from tests.tools.reports.synthetic import write_experiment

SPEC = """
    name: table
    title: A table
    trials: 2
    steps: 1000
    evaluation: {every: 100, episodes: 1}
    set: {random_steps: 0, updates_per_step: 0.5, update_every: 100}
    blocks:
      - {world: "plant:pendulum", called: cheap, set: {learner.ddpg.gamma: 0.9}}
      - {world: "plant:pendulum", called: dear, set: {algorithm: sac, updates_per_step: 1.0}}
      - {world: "plant:pendulum", called: batches, set: {algorithm: ppo, learner.ppo: {steps: 200, batch: 20}}}
    """
TASK = load("pendulum").task.normalization


def _cells(folder: Path, text: str = SPEC) -> list[WorldCell]:
    expanded = expand_spec(load_spec(write_spec(folder, text, "spec.yaml")), lambda config, settings: [])
    return [cell for cell in expanded if isinstance(cell, WorldCell)]


def _returns(performance: np.ndarray) -> np.ndarray:
    assert TASK is not None
    return 200 * (TASK.random_reward + performance * (TASK.reference_reward - TASK.random_reward))


def test_a_block_may_label_its_cells(tmp_path: Path) -> None:
    cheap_cell, expensive_cell, _ = _cells(tmp_path)
    assert cheap_cell.label == {"world": "pendulum", "called": "cheap"}
    assert cell_text(expensive_cell) == "pendulum, dear"
    with pytest.raises(ConfigError, match="two cells are both pendulum, cheap"):
        _cells(tmp_path, SPEC.replace("called: dear", "called: cheap"))


def test_expensive_updates_end_earlier_at_equal_computing_time(tmp_path: Path) -> None:
    cells = _cells(tmp_path)
    write_cells(tmp_path, cells)
    rising_returns = np.linspace(0.1, 1.0, 10)
    for cell in cells:
        for seed in range(5):
            returns = _returns(rising_returns - 0.025 * seed)
            write_trial(tmp_path, cell, seed, Trial(rising_returns, returns, None))
    scored = [score_world("pendulum", str(r.cell.label["called"]), r) for r in read_results(tmp_path, cells)]
    assert all(score is not None for score in scored)
    # 500 updates of 1 ms; 1000 of 2 ms, of which a quarter fits; 5 iterations of 0.05 s: all of them.
    costs = {c.id: Cost(0.0, s, 0.0, 1) for c, s in zip(cells, (1e-3, 2e-3, 0.05), strict=True)}
    sheet = scores_sheet([score for score in scored if score is not None], costs)
    rows = [dict(zip(sheet.header, row, strict=True)) for row in sheet.rows]
    assert [row["steps at equal compute"] for row in rows] == ["100 %", "20 %", "100 %"]
    assert [row["updates"] for row in rows] == ["500", "1000", "5"]
    assert [row["compute, s"] for row in rows] == ["0.5", "2.0", "0.2"]
    assert [row["final"] for row in rows] == ["0.950 [0.900, 1.000]"] * 3
    assert [row["lowest"] for row in rows] == ["0.900"] * 3
    assert [row["0.8 at"] for row in rows] == ["900 [800, 900]"] * 3
    assert [row["reached"] for row in rows] == ["5 of 5 (at least 55 %)"] * 3
    assert rows[1]["final at equal compute"] == "0.150 [0.100, 0.200]"
    assert rows[1]["area at equal compute"] == "0.100 [0.050, 0.150]"
    assert rows[2]["final at equal compute"] == rows[2]["final"]
    assert "final at equal compute" not in scores_sheet([score for score in scored if score is not None], {}).header


def test_the_best_is_ahead_of_those_that_it_beats_in_pairs() -> None:
    run = StepRun("plant:pendulum", 1000, Evaluation(100))
    noise = np.linspace(-0.05, 0.05, 10)

    def scored_cell(name: str, performance: np.ndarray, group: str = "pendulum") -> ScoredCell:
        curves = np.repeat(performance[:, None], 4, axis=1)
        return ScoredCell(
            group, name, WorldCell("id", {}, run), np.arange(len(curves)), curves, np.arange(4), np.arange(4)
        )

    good_cell = scored_cell("good", 0.9 + noise)
    sheet = best_sheet(
        [scored_cell("poor", 0.88 + noise), good_cell, scored_cell("like it", 0.9 + noise[::-1] - 0.001)]
    )
    assert [row[:3] for row in sheet.rows] == [("pendulum", "final", "good"), ("pendulum", "area", "good")]
    assert sheet.rows[0][3].startswith("like it, +0.0010 [")
    assert [row[4] for row in sheet.rows] == ["like it", "like it"]
    assert best_sheet([good_cell, scored_cell("poor", 0.88 + noise)]).rows == ()


def test_bytes_are_those_of_a_rigs_memory() -> None:
    def needed_bytes(learner: LearnerSettings, selection: Selection) -> float:
        run = StepRun("plant:pendulum", 1000, Evaluation(100), learner=learner, selection=selection)
        return memory_bytes(WorldCell("id", {"world": "pendulum"}, run))

    fifo = Selection("FIFO[Uniform]", capacity=400)
    row = 4 * (2 + 1 + 2 + 1 + 1 + 1 + 1 + 1)
    base_bytes = needed_bytes(LearnerSettings(), fifo)
    assert base_bytes == 400 * row
    assert needed_bytes(LearnerSettings(algorithm="sac"), fifo) - base_bytes == 400 * 12  # mean, deviation and draw
    assert needed_bytes(LearnerSettings(algorithm="ppo"), Selection("FULL[Uniform]")) == 2247 * (row + 12)
    assert needed_bytes(LearnerSettings(), Selection("FULL[Uniform]")) == 1000 * row
    assert memory_bytes(run_cell(episodes=5, strategy="FULL[Uniform]")) == 1000 * row


def test_a_score_requires_our_own_world_and_episodes_that_cannot_end_early() -> None:
    for run in (
        StepRun("gym:Pendulum-v1", 10),
        StepRun("plant:pendulum", 10, options={"end_outside": True}),
    ):
        result = WorldResult(WorldCell("id", {"world": "w"}, run), np.arange(1), np.zeros((1, 1)), 1, None, None)
        assert score_world("w", "cell", result) is None


def test_costs_are_measured_along_with_the_trials_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    spec = write_spec(tmp_path, "{name: one, title: A, trials: 1, episodes: 9, blocks: [{config: pendulum}]}")
    out = tmp_path / "out"
    monkeypatch.setattr(style, "DPI", 20)
    assert main(["experiment", str(spec), "--out", str(out), "--costs"]) == ExitCode.OK
    assert " ms  pendulum\n" in capsys.readouterr().out
    assert main(["experiment", str(spec), "--out", str(out), "--costs"]) == ExitCode.OK
    assert (out / COSTS).is_file()

    cells = [run_cell(strategy=strategy) for strategy in ("FIFO[Uniform]", "FULL[PER]")]
    folder = write_experiment(tmp_path / "made", cells, 3)
    write_costs(folder, {cell.id: Cost(1.0, 0.5, 0.0, 1) for cell in cells})
    assert main(["report", str(folder)]) == ExitCode.OK
    tables = (folder / "tables.md").read_text()
    assert "## Scores" in tables
    assert "| 500.00 | 6000.0 | 100 % |" in tables
